"""Opaque config: the model, its decoding, and problems told at their place."""
