"""Drivers of the examples, and drivers with one fault each, judged by the conformance checks."""
