"""The container runtime of a node: containers are processes of the sandbox."""
