"""Objects of a cluster for explanations."""
