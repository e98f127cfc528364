"""Commands that run a driver in a cluster of one process."""
