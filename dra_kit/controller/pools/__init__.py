"""Pools that belong to no node: found by the author's cluster provider, published by the active controller."""
