"""What the container runtime of this node says of its own configuration, at its CRI socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dra_kit.errors import Unavailable
from dra_kit.kubelet.cri import SOCKETS, RuntimeInfo, runtime_info
from dra_kit.operation.checks.finding import Finding, fail, ok, warn

_WHAT: Final = "container runtime"


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
