"""Commands that run a driver's roles in a cluster."""
