"""Requests, selectors, constraints and configuration, against the devices, classes and drivers that are known."""
