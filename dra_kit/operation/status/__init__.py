"""How a driver is on a node: what its operation socket says of it, in words."""
