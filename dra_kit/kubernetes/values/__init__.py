"""Values of the Kubernetes API: quantities, semantic versions, JSON."""
