"""NVIDIA's Multi-Process Service: processes of a claim share a device, each with its part of cores and memory."""
