"""``nvidia-ctk``: NVIDIA's own tool lists what a container needs of the driver, where it is installed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dra_kit as dra

from gpu_driver.hardware import Hardware
from gpu_driver.host import driver_root as where

_OF_A_CLAIM = "/nvidia-mps"
"""End of the container's folder for MPS: each claim that shares by MPS has one of its own there."""


def installed(hardware: Hardware, name: str) -> Path | None:
    """Return the program's path; None where it is not installed, or not wanted (an empty name)."""
    found = hardware.program(name) if name else None
    return None if found is None else Path(found)


def edits_of_driver(hardware: Hardware, name: str, driver_root: Path) -> dra.ContainerEdits:
    """Libraries, programs, firmware and hooks of the driver, without device nodes; the paths are the host's.

    Args:
        hardware: of the node.
        name: of the program.
        driver_root: where the driver is installed, on the host.

    Raises:
        TransientError: the program fails, or does not write a CDI spec.
    """
    seen = where.driver_root(hardware.host, driver_root)
    arguments = ["cdi", "generate", "--mode", "nvml", "--format", "json", "--driver-root", str(seen)]
    host, hooks_at = hardware.host, ("usr/bin/nvidia-cdi-hook", "bin/nvidia-cdi-hook")
    hook = next((path for path in hooks_at if where.behind(host / path, host).exists()), "")
    if hook:
        arguments += ["--nvidia-cdi-hook-path", f"/{hook}"]
    written = hardware.run(name, *arguments)
    try:
        spec: Mapping[str, Any] = json.loads(written)
        common = spec["containerEdits"]
        edits = dra.edits_from_cdi(
            {
                "cdiVersion": spec["cdiVersion"],
                "kind": spec["kind"],
                "devices": [{"name": "common", "containerEdits": common}],
            },
            device="common",
        )
    except (ValueError, KeyError, TypeError, dra.InvalidPrepared) as error:
        raise dra.TransientError(
            f"{name} cdi generate printed no valid CDI spec: {error}; update it, or disable it with --nvidia-ctk ''"
        ) from None
    mounts = [
        mount.model_copy(update={"host_path": _on_host(mount.host_path, seen, driver_root)})
        for mount in edits.mounts
        if not mount.container_path.endswith(_OF_A_CLAIM)
    ]
    hooks = [item.model_copy(update={"path": _on_host(item.path, seen, driver_root)}) for item in edits.hooks]
    return dra.ContainerEdits(env=edits.env, mounts=mounts, hooks=hooks, additional_gids=edits.additional_gids)


def _on_host(path: str, seen: Path, driver_root: Path) -> str:
    """Return a path below the driver's root, given as this process sees it, as the container runtime sees it."""
    try:
        return str(driver_root / Path(path).relative_to(seen))
    except ValueError:
        return path
