"""Compiles checked expressions to Python closures."""
