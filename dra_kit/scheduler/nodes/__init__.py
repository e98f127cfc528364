"""Nodes: whether one takes a pod, what it has left of cpu and memory, and whom its taints drive out."""
