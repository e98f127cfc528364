"""Opaque config: the model, its decoding, and problems reported at their place."""
