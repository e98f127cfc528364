"""Which replica of the controller is the active one, decided by a Lease."""
