"""Who may do what: RBAC, and the groups that need none."""
