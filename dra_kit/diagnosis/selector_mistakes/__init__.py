"""Frequent mistakes in selectors, with what to write instead. They are hints for people, not rules of Kubernetes."""
