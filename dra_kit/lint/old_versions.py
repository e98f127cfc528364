"""What to write in v1 for objects of versions that are gone, as talks and blogs of 2023 and 2024 show them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

_LONGEST: Final = 300
"""Characters of a text of v1 that a remedy shows."""
_CLASSIC: Final = {
    "ResourceClass": "ResourceClass was withdrawn in Kubernetes 1.32",
    "ResourceClaimParameters": "ResourceClaimParameters were withdrawn in Kubernetes 1.31",
    "ResourceClassParameters": "ResourceClassParameters were withdrawn in Kubernetes 1.31",
    "PodSchedulingContext": "PodSchedulingContext was withdrawn in Kubernetes 1.32",
}


def withdrawn(kind: str, body: Mapping[str, Any]) -> tuple[str, str] | None:
    """What became of a kind of classic DRA, and what to write instead; None of other kinds.

    Args:
        kind: as it is written.
        body: the object.
    """
    if kind not in _CLASSIC:
        return None
    if kind == "PodSchedulingContext":
        return _CLASSIC[kind], "remove it: the scheduler allocates devices itself"
    if kind != "ResourceClass":
        return _CLASSIC[kind], "write the parameters below spec.devices.config[].opaque of the claim or class"
    named = body.get("driverName")
    driver = named if isinstance(named, str) else "<driver>"
    expression = {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]}
    return _CLASSIC[kind], f"write apiVersion: resource.k8s.io/v1, kind: DeviceClass, spec: {json.dumps(expression)}"


def classic_claim(kind: str, body: Mapping[str, Any]) -> str:
    """The ``spec.devices`` of v1 for a claim or template of v1alpha2; empty if it cannot be told."""
    spec: Any = body.get("spec")
    if kind == "ResourceClaimTemplate":
        spec = spec.get("spec") if isinstance(spec, Mapping) else None
    named = spec.get("resourceClassName") if isinstance(spec, Mapping) else None
    if not isinstance(named, str):
        return ""
    return _shown({"devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": named}}]}})


def requests_of_v1(kind: str, content: Mapping[str, Any]) -> str:
    """The requests of a claim or template as v1 has them; empty of other kinds, and when they are too long.

    Args:
        kind: of the object.
        content: the object in v1, without defaults.
    """
    spec: Any = content.get("spec")
    if kind == "ResourceClaimTemplate":
        spec = spec.get("spec") if isinstance(spec, Mapping) else None
    devices = spec.get("devices") if isinstance(spec, Mapping) else None
    requests = devices.get("requests") if isinstance(devices, Mapping) else None
    return _shown(requests) if kind.startswith("ResourceClaim") and requests else ""


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else ""
