"""Answers for operators and authors: explain, lint, check, status, who, drain, snapshots, support bundles."""
