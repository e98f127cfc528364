"""What a container gets: the preparer, claims, and what it returns."""
