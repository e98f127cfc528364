"""Libraries of functions, one module for each group of libraries."""
