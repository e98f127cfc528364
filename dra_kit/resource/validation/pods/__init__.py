"""Pods, and the taints of nodes that they tolerate."""
