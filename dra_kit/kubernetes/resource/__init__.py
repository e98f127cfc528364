"""Objects of the API: models, defaults, conversion, validation."""
