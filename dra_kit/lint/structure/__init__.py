"""Objects by the rules of the API: kinds and versions, fields and types, and what the API server refuses."""
