"""The kubelet's wire contract: .proto files and the stubs generated from them (make proto)."""

import os

# gRPC's core reads this when it is imported. Without it, it writes to stderr whenever a peer closes a connection
# normally; errors are still reported. The packages that use gRPC import this one first.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# Its core has two ways to serve a socket: this one wakes one or two threads for each message, the other up to five, and
# waking a thread takes as long as much of the work (python -m benchmarks.sparse).
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")
