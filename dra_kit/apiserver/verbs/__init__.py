"""The verbs of the API, on any kind."""
