"""The structured allocator: which devices the claims of a pod get on a node, exactly as kube-scheduler decides."""
