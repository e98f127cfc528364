"""What the API server fills in and drops before it validates."""
