"""Binding conditions (KEP-5007): the author's binder is asked, and the claims' status gets its answer."""
