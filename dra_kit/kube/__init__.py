"""Access to the Kubernetes API: client, credentials, versions, events, the kopf operator."""
