"""Explains why a claim or a pod gets devices or does not: per device, in total, and what would have to change."""
