"""Fields that several kinds have: names, metadata, lists, conditions, CEL, taints."""
