"""The served kinds: their defaults, validation and printed columns."""
