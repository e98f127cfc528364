"""The webhook role (Deployment): checks opaque configuration when it is applied."""
