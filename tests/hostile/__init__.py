"""Attacks on every interface of the project (``make test-hostile``); docs/explanation/security.md lists them."""
