"""The driver in a process of its own: started, updated, stopped."""
