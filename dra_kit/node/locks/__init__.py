"""Locks by name and by process that hold across the processes of a rolling update."""
