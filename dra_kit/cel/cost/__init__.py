"""What an evaluation costs: estimated before, counted meanwhile."""
