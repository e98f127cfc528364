"""What is changed on a GPU for a claim, and taken back when the claim is released."""
