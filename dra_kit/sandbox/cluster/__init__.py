"""A whole Kubernetes in one process: API server, controllers, scheduler, nodes with simulated kubelets."""
