"""The end of a driver on a node: no new devices, what is prepared is released, what is in force is undone."""
