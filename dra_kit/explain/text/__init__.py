"""Explanations in words, for a terminal."""
