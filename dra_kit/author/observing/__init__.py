"""What an author's code in the controller is told of claims."""
