"""Our side of the kubelet's wire: the DRA service, the registration service, and their sockets."""

import dra_kit.proto  # noqa: F401 (before any module here imports gRPC, for what it sets)
