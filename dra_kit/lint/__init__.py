"""Checks of manifests: structure, the API server's rules, CEL, and mistakes that people make with devices.

Pure: files come as text, devices as objects, and findings go out as values.
"""
