"""Slices: devices, their attributes, capacity and counters, their nodes and pools."""
