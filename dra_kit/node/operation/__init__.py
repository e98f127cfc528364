"""The node's operation socket: who has what, and how the driver is."""
