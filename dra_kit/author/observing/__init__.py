"""What an author's code in the controller learns of claims."""
