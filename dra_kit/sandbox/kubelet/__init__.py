"""A kubelet as far as a driver sees it: plugins, claims, pods and their containers."""
