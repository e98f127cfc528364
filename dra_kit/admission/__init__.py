"""The webhook role (Deployment): checks opaque configuration when it is applied; and the same checks as a policy."""
