"""Opaque configuration: what a claim or a DeviceClass may ask of a GPU, a MIG device or a GPU in passthrough."""
