"""A cluster in one process: API server, scheduler, controllers, kubelets, containers, and a driver in it."""
