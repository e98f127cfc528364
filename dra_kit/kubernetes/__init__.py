"""Kubernetes' own rules: values, manifests, CEL, API objects, allocation and scheduling."""
