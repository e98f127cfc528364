"""Doubles of NVIDIA's programs: their command lines and files, on the fake's GPUs. Never mixed with real ones."""
