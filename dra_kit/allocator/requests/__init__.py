"""What claims ask for: requests, capacity, constraints."""
