"""Common mistakes in CEL expressions: one small rule each, on the syntax tree."""
