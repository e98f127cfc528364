"""The kubelet's wire contract: .proto files and the stubs generated from them (make proto)."""

import os

# gRPC's core reads this when it is imported. Without it, it writes to stderr whenever a peer ends a connection in the
# ordinary way; errors are still told. The packages that use gRPC import this one first.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
