"""The kubelet's wire contract: .proto files and the stubs generated from them (make proto)."""

import os

# gRPC's core reads this when it is imported. Without it, it writes to stderr whenever a peer ends a connection in the
# ordinary way; errors are still told. The packages that use gRPC import this one first.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# Its core has two ways to serve a socket: this one wakes a thread or two for each message, the other up to five, and to
# wake a thread that rests takes as long as much of the work (python -m benchmarks.sparse).
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")
