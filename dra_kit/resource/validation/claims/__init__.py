"""Claims and their templates: requests, allocation, status."""
