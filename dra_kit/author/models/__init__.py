"""The base of everything an author constructs, and the rules and words of its errors."""
