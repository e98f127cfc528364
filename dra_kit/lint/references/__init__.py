"""Names that lead from one object to another."""
