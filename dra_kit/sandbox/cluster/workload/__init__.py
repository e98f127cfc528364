"""Containers as local processes: the sandbox's container runtime."""
