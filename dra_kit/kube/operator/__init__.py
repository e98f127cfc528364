"""kopf inside a process that is more than an operator."""
