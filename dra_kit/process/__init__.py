"""The parts of every role's process: supervisor, liveness, probes, metrics, logging, tracing, connections."""
