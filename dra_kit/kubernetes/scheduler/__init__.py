"""Which node takes a pod, and what the controllers of claims and taints do.

Each module is named after the plugin step or the controller of Kubernetes whose rules it has. No I/O.
"""
