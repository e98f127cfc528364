"""NVIDIA's management library: what the driver asks of it, the real one, and a fake that behaves like it."""
