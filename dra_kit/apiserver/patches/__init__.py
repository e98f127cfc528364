"""The patches of the API: JSON, merge, strategic merge and apply; pure functions on JSON values."""
