"""Access to the Kubernetes API: client, credentials, Events, informers, kopf."""
