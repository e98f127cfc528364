"""What to write in v1 for objects of versions that are gone, as talks and blogs of 2023 and 2024 show them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from dra_kit.kubernetes.resource.conversion import OUTSIDE_EXACTLY, V1, V1BETA1, to_v1
from dra_kit.kubernetes.values.json import value_at
from dra_kit.lint.fixes.remedy import Enclose, Remedy, Rewrite, Unwrap
from dra_kit.lint.structure.fields import check_structure

_LONGEST: Final = 300
"""Characters of a text of v1 that a remedy shows."""
_IN_TEMPLATE: Final = {"ResourceClaimTemplate": ("spec",)}
"""Where the spec of a claim is below that of a template."""
_IN_V1: Final = frozenset({"DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice"})
_LIKE_V1BETA1: Final = frozenset({"v1beta1", "v1alpha3"})
"""Versions in which a request has the fields of exactly itself; v1alpha3 as of Kubernetes 1.31."""
WITHDRAWN: Final = {
    "ResourceClass": "ResourceClass was withdrawn in Kubernetes 1.31",
    "ResourceClaimParameters": "ResourceClaimParameters were withdrawn in Kubernetes 1.31",
    "ResourceClassParameters": "ResourceClassParameters were withdrawn in Kubernetes 1.31",
    "PodSchedulingContext": "PodSchedulingContext was withdrawn in Kubernetes 1.32",
}
"""Kinds of classic DRA, and when they went."""


def withdrawn(kind: str, body: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return what became of a kind of classic DRA, and what to write instead; None of other kinds.

    Args:
        kind: as it is written.
        body: the object.
    """
    if kind not in WITHDRAWN:
        return None
    if kind == "PodSchedulingContext":
        return WITHDRAWN[kind], "remove it: the scheduler allocates devices itself"
    if kind != "ResourceClass":
        return WITHDRAWN[kind], "write the parameters below spec.devices.config[].opaque of the claim or class"
    named = body.get("driverName")
    driver = named if isinstance(named, str) else "<driver>"
    expression = {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]}
    return WITHDRAWN[kind], f"write apiVersion: resource.k8s.io/v1, kind: DeviceClass, spec: {json.dumps(expression)}"


def classic_claim(kind: str, body: Mapping[str, Any]) -> str:
    """Return the v1 ``spec`` for a claim or template of v1alpha2, and what stays to do; empty if unknown."""
    is_template = kind == "ResourceClaimTemplate"
    path = ("spec", *_IN_TEMPLATE.get(kind, ()))
    named = value_at(body, (*path, "resourceClassName"))
    if not isinstance(named, str):
        return ""
    text = _shown({"devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": named}}]}})
    if not text:
        return ""
    text = f"{{spec: {text}}}" if is_template else text
    rest = f"; what its parametersRef names goes below {'.'.join(path)}.devices.config[].opaque"
    return text + rest if value_at(body, (*path, "parametersRef")) else text


def requests_of_v1(kind: str, content: Mapping[str, Any]) -> str:
    """Return the requests of a claim or template as v1 has them; empty of other kinds, and when they are too long.

    Args:
        kind: of the object.
        content: the object in v1, without defaults.
    """
    requests = value_at(content, ("spec", *_IN_TEMPLATE.get(kind, ()), "devices", "requests"))
    return _shown(requests) if kind.startswith("ResourceClaim") and requests else ""


def in_v1(kind: str, version: str, body: Mapping[str, Any]) -> tuple[Remedy, ...]:
    """Return the changes that make an object of an older version one of v1; empty unless all of it has its place there.

    Taint rules are in v1 only since Kubernetes 1.37, and stay as they are.

    Args:
        kind: of the object.
        version: its version.
        body: the object.
    """
    if kind not in _IN_V1 or version not in _LIKE_V1BETA1 | {"v1beta2"}:
        return ()
    rewrite = Rewrite("apiVersion", V1)
    if not check_structure(body, f"resource/v1.{kind}")[1]:
        # so it is in v1beta2, of all classes, and of what was written for v1 below an older version
        return (rewrite,)
    if version not in _LIKE_V1BETA1 or check_structure(body, f"resource/v1beta1.{kind}")[1]:
        return ()
    if check_structure(to_v1(dict(body), kind, V1BETA1), f"resource/v1.{kind}")[1]:
        return ()
    moves: list[Remedy] = []
    path = ("spec", *_IN_TEMPLATE.get(kind, ()), "devices", *(() if kind == "ResourceSlice" else ("requests",)))
    items: Any = value_at(body, path) or ()
    for index, item in enumerate(items):
        where = f"{'.'.join(path)}[{index}]"
        if kind == "ResourceSlice":
            moves += [Unwrap(where, "basic")] if "basic" in item else []
        elif keys := tuple(key for key in item if key not in OUTSIDE_EXACTLY):
            if "firstAvailable" in item:
                return ()
            moves.append(Enclose(where, keys, "exactly"))
    return (rewrite, *moves)


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else ""
