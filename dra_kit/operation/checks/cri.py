"""What the container runtime of this node says of its own configuration, at its CRI socket."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct

from dra_kit.errors import Unavailable
from dra_kit.operation.checks.finding import Finding, fail, ok, warn

SOCKETS: Final = tuple(
    map(Path, ("/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/k3s/containerd/containerd.sock"))
)
"""Where runtimes listen by default: containerd, CRI-O, k3s and RKE2."""

_WHAT: Final = "container runtime"


class RuntimeInfo(Struct, frozen=True):
    """A runtime's own word.

    Attributes:
        name: such as ``containerd 2.4.2``.
        config: what it tells of its configuration; empty where it tells none.
    """

    name: str
    config: Mapping[str, Any]


async def check_runtime(socket: Path | None, cdi_dir: Path) -> list[Finding]:
    """Ask the runtime whether it reads CDI files, and from where.

    Args:
        socket: of the runtime; None for the first of :data:`SOCKETS` that there is, and for nothing where none is.
        cdi_dir: where drivers write their CDI files.
    """
    path = socket or next((path for path in SOCKETS if path.is_socket()), None)
    if path is None:
        return []
    try:
        info = await runtime_info(path)
    except Unavailable as error:
        return [warn(_WHAT, str(error), "run as root on the node, or give its socket as --cri-socket")]
    return list(info_findings(info, cdi_dir))


def info_findings(info: RuntimeInfo, cdi_dir: Path) -> Iterator[Finding]:
    """Yield findings about the runtime's own answer; a runtime that says nothing of CDI is judged by its release.

    Args:
        info: its answer.
        cdi_dir: where drivers write their CDI files.
    """
    config = info.config
    enabled, directories = config.get("enableCDI"), config.get("cdiSpecDirs")
    if enabled is False:
        yield fail(
            _WHAT, f"{info.name} has CDI off", "set enable_cdi = true in its configuration and restart it: without "
            "CDI containers get no device, and nobody says so",
        )  # fmt: skip
    elif directories and cdi_dir.resolve() not in {Path(str(item)).resolve() for item in directories}:
        yield fail(
            _WHAT, f"{info.name} reads CDI files in {', '.join(map(str, directories))}, not in {cdi_dir}",
            "add it to cdi_spec_dirs, or give --cdi-dir one of those",
        )  # fmt: skip
    elif enabled or directories:
        yield ok(_WHAT, f"{info.name} reads CDI files in {cdi_dir}")
    else:
        yield ok(_WHAT, f"{info.name} answers; it tells nothing of CDI, its release does")


async def runtime_info(socket: Path, *, timeout: float = 5.0) -> RuntimeInfo:
    """Ask a runtime (CRI ``Version`` and verbose ``Status``; containerd tells its configuration, CRI-O does not).

    Args:
        socket: of the runtime.
        timeout: seconds for each answer.

    Raises:
        Unavailable: it does not answer.
    """
    import grpc.aio

    from dra_kit.proto import cri_v1_pb2 as pb
    from dra_kit.proto import cri_v1_pb2_grpc as pb_grpc

    try:
        async with grpc.aio.insecure_channel(f"unix:{quote(str(socket))}") as channel:
            runtime = pb_grpc.RuntimeServiceStub(channel)
            version = await runtime.Version(pb.VersionRequest(), timeout=timeout)
            status = await runtime.Status(pb.StatusRequest(verbose=True), timeout=timeout)
    except grpc.aio.AioRpcError as error:
        raise Unavailable(
            f"nobody tells at {socket} how the runtime is configured ({error.code().name})", code="no-answer"
        ) from error
    name = f"{version.runtime_name} {version.runtime_version.removeprefix('v')}"
    return RuntimeInfo(name.strip() or "the runtime", _config(status.info))


def _config(info: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        config = json.loads(info.get("config") or "{}")
    except ValueError:
        return {}
    return config if isinstance(config, Mapping) else {}
