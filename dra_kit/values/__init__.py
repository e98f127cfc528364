"""Leaf values of the Kubernetes API, without I/O: quantities, semantic versions, JSON."""
