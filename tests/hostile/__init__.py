"""Attacks on every door of the project, each held; ``make test-hostile``, docs/explanation/security.md says which."""
