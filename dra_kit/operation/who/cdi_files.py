"""Which claims have CDI files on a node: what is left to say of drivers that neither they nor the kubelet tell of.

Drivers of dra-kit name their CDI devices by claim, request, pool and device (:mod:`dra_kit.kubelet.cdi.store`); those of the
Go helper, and others after it, begin the name with the claim's UID.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from dra_kit.kubelet.cdi.store import claim_kind
from dra_kit.kubelet.device_use import DeviceUse

_VENDOR_PREFIX: Final = "k8s."
_CLAIM_UID: Final = re.compile(r"(?:claim[-_])?(?P<uid>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?![0-9a-f])")
_BYTES_MAX: Final = 4 * 1024 * 1024


def devices_in_files(directories: Iterable[Path]) -> dict[str, DeviceUse]:
    """Return the devices of claims, by their qualified CDI names; damaged and unreadable files are left out.

    Args:
        directories: where runtimes look for CDI files.
    """
    found: dict[str, DeviceUse] = {}
    for directory in directories:
        for spec in _specs(directory):
            kind = str(spec.get("kind", ""))
            for device in spec.get("devices") or ():
                name = str(device.get("name", "")) if isinstance(device, dict) else ""
                if (use := _device_use(kind, name)) is not None:
                    found[f"{kind}={name}"] = use
    return found


def _device_use(kind: str, name: str) -> DeviceUse | None:
    vendor = kind.rpartition("/")[0]
    driver = vendor.removeprefix(_VENDOR_PREFIX)
    if kind == claim_kind(driver):
        # a request has no '_', so that the first one of a pool's is a slash again
        uid, *rest = name.split(":")
        if len(rest) in {3, 4}:
            request, pool, device, *share = rest
            return DeviceUse(
                driver=driver,
                pool=pool.replace("_", "/"),
                device=device,
                share=share[0] if share else "",
                request=request.partition("_")[0],
                claim_uid=uid,
            )
    match = _CLAIM_UID.match(name)
    return DeviceUse(driver=driver, pool="", device=name, claim_uid=match["uid"]) if match else None


def _specs(directory: Path) -> Iterator[dict[str, Any]]:
    with suppress(OSError):
        for path in sorted(directory.glob("*.json")) + sorted(directory.glob("*.y*ml")):
            with suppress(OSError, ValueError, RecursionError):
                if path.name.startswith(".") or path.stat().st_size > _BYTES_MAX:
                    continue
                spec = _parsed(path)
                if isinstance(spec, dict) and isinstance(spec.get("devices"), list):
                    yield spec


def _parsed(path: Path) -> object:
    if path.suffix == ".json":
        return json.loads(path.read_bytes())
    import yaml

    try:
        return yaml.safe_load(path.read_bytes())
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
