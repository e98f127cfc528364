"""What the controller clears away."""
