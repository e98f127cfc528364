"""Kinds that change what the API does: webhooks, admission policies, CustomResourceDefinitions."""
