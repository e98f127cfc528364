"""Drivers with one fault each, judged by the conformance checks (``make test-conformance``)."""
