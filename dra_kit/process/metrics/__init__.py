"""The numbers of a process: counted plainly, and given to Prometheus when it asks."""
