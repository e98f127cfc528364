"""Conformance: judge any DRA driver, in any language, by its sockets, its files and its objects."""
