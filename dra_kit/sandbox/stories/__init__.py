"""Manifests applied, and what is to become of them: stories, their expectations and verdicts."""
