"""Attempts whose outcome is known already."""
