"""What is derived from a release of Kubernetes: feature gates, types and fields, roles of a new cluster."""
