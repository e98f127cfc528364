"""Checks of a parsed expression: types, overloads, literals."""
