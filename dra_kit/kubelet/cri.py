"""What the container runtime of this node reports about its configuration, on its CRI socket."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import grpc.aio
from msgspec import Struct

from dra_kit.errors import Unavailable
from dra_kit.kubelet.proto import cri_v1_pb2 as pb
from dra_kit.kubelet.proto import cri_v1_pb2_grpc as pb_grpc

_SECONDS: Final = 5.0


class RuntimeInfo(Struct, frozen=True):
    """What a runtime reports about itself.

    Attributes:
        name: such as ``containerd 2.4.2``.
    """

    name: str
    config: Mapping[str, Any]


async def runtime_info(socket: Path) -> RuntimeInfo:
    """Query a runtime (CRI ``Version`` and verbose ``Status``; containerd reports its configuration, CRI-O does not).

    Raises:
        Unavailable: it does not respond.
    """
    try:
        async with grpc.aio.insecure_channel(f"unix:{quote(str(socket))}") as channel:
            runtime = pb_grpc.RuntimeServiceStub(channel)
            version = await runtime.Version(pb.VersionRequest(), timeout=_SECONDS)
            status = await runtime.Status(pb.StatusRequest(verbose=True), timeout=_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise Unavailable(
            f"the container runtime at {socket} does not report its configuration ({error.code().name})",
            code="no-answer",
        ) from error
    name = f"{version.runtime_name} {version.runtime_version.removeprefix('v')}"
    return RuntimeInfo(name.strip() or "the runtime", _config(status.info))


def _config(info: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        config = json.loads(info.get("config") or "{}")
    except ValueError:
        return {}
    return config if isinstance(config, Mapping) else {}


SOCKETS: Final = tuple(
    map(Path, ("/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/k3s/containerd/containerd.sock"))
)
"""Where runtimes listen by default: containerd, CRI-O, k3s and RKE2."""
