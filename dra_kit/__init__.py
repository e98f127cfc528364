"""dra-kit: write Kubernetes DRA (Dynamic Resource Allocation) drivers in Python."""
