"""The kubelet's life of a pod: its plan, containers, status and Events."""
