"""The slices of this node: what they are, and what an inventory is where there is no node."""
