"""Checks of manifests, and fixes of what they find."""
