"""The numbers of a process: counted plainly, and told to Prometheus when it asks."""
