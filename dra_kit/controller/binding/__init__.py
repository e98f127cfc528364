"""Binding conditions (KEP-5007): the author's binder is asked, and claims are told what came of it."""
