"""Who has which device: from a node's sockets and files, or from the objects of a cluster."""
