"""From the text of an expression to its syntax tree, and what the tree reads."""
