"""Commands that look at a cluster or at a node."""
