"""CEL selectors, and which devices they select."""
