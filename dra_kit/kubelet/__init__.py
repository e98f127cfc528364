"""The kubelet's side of the wire: finds registration sockets and calls drivers as the kubelet does."""

import dra_kit.proto  # noqa: F401 (before any module here imports gRPC, for what it sets)
