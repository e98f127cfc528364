"""A client of NRI, the Node Resource Interface of containerd and CRI-O.

Plugins act when pods and containers start: subclass :class:`Plugin`, and run it with :class:`NriClient`.
Nothing here imports other parts of dra-kit.
"""

from __future__ import annotations

from dra_kit.kubelet.nri.client import FAIL_CLOSED, SOCKET, ClientState, NriClient
from dra_kit.kubelet.nri.hooks import HOOKS, HookCounters, HookEvent, Plugin, RuntimeParameters
from dra_kit.kubelet.nri.proto import nri_v1alpha1_pb2 as messages
from dra_kit.kubelet.nri.ttrpc import CallError, ConnectionLost, NriError, ProtocolError

__all__ = [
    "FAIL_CLOSED",
    "HOOKS",
    "SOCKET",
    "CallError",
    "ClientState",
    "ConnectionLost",
    "HookCounters",
    "HookEvent",
    "NriClient",
    "NriError",
    "Plugin",
    "ProtocolError",
    "RuntimeParameters",
    "messages",
]
