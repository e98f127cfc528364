"""YAML and JSON by kubectl's rules: events to nodes, scalars to values, within limits."""
