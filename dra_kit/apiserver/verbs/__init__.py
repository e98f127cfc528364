"""Verbs: what the API server does with an object or a list."""
