"""Admission: webhooks and policies that may change or reject a write."""
