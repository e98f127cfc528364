"""Slices of a node that does not exist yet, for autoscalers and for the question whether such a node would help."""
