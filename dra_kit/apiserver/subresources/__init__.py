"""Subresources other than the status: of pods, namespaces, service accounts and workloads."""
