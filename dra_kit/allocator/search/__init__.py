"""The search for devices on one node, and the allocation that comes of it."""
