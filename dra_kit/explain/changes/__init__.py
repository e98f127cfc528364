"""What would have to change, tried with the allocator."""
