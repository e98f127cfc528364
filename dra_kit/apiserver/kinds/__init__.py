"""The kinds that are served: what is defaulted, validated and shown of each."""
