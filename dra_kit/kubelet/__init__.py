"""dra-kit's side of the interfaces of kubelet and container runtime: DRA, registration, health, CDI, files."""

from __future__ import annotations

import dra_kit.kubelet.proto  # noqa: F401 (before any module here imports gRPC, for what it sets)
