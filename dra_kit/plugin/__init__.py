"""Our side of the kubelet's wire: the DRA service, the registration service, and their sockets."""
