"""A kubelet as far as DRA is concerned: it finds drivers, calls them, and leads pods with claims through their life."""

import dra_kit.kubelet.proto  # noqa: F401 (before any module here imports gRPC, for what it sets)
