"""Pods, nodes and Events: the core group's kinds with rules of their own."""
