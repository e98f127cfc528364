"""Controllers of kube-controller-manager that the sandbox needs."""
