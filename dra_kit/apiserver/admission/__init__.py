"""What stands between a valid request and the storage: webhooks and policies."""
