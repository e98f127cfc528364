"""The kubelet's side of the wire: finds registration sockets and calls drivers as the kubelet does."""
