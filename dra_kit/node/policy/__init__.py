"""The author's policy between what a node has and what it advertises."""
