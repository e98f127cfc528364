"""Attacks on every door of the project, each held; ``make test-hostile``, docs/security.md says which."""
