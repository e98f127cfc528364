"""The rules of kube-scheduler, pure: nodes, resources, claims, and the cycle that finds a node for a pod."""
