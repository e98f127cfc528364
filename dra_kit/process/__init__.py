"""What every role's process consists of: supervisor, liveness, probes, metrics, logging, tracing, connections."""
