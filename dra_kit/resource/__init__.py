"""The resource.k8s.io API as pure data: v1 models, names, validation, config resolution, slice planning."""
