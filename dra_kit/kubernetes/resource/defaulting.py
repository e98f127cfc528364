"""Defaults that the API server sets in objects of resource.k8s.io and in pods."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from typing import Any, Final

from dra_kit.kubernetes.resource.conversion import V1BETA1
from dra_kit.kubernetes.resource.schema.decode import decode
from dra_kit.kubernetes.resource.schema.table import LIST, MAP, item_type, struct
from dra_kit.kubernetes.values.json import Object

_POOL_LIMIT: Final = 100


def set_defaults(obj: Object, kind: str, api_version: str, now: str) -> None:
    """Fill in the defaults of an object, in place.

    Args:
        obj: JSON of the sent version; ``null`` counts as absent.
        kind: its kind.
        api_version: its version.
        now: the current time, the default of ``timeAdded`` of taints (``metav1.Time``).
    """
    spec = {} if obj.get("spec") is None else obj["spec"]
    match kind:
        case "ResourceSlice":
            for device in spec.get("devices") or ():
                for taint in ((device.get("basic") or {}) if api_version == V1BETA1 else device).get("taints") or ():
                    _fill(taint, "timeAdded", now)
        case "ResourceClaim":
            _requests(spec, api_version)
            for result in _results(obj.get("status") or {}):
                _tolerations(result)
        case "ResourceClaimTemplate":
            _requests(spec.get("spec") or {}, api_version)
        case "DeviceTaintRule":
            if spec.get("taint") is not None:
                _fill(spec["taint"], "timeAdded", now)
        case "ResourcePoolStatusRequest":
            _fill(spec, "limit", _POOL_LIMIT)
        case "Pod":
            set_pod_defaults(obj)
        case "Node":
            _allocatable(obj.get("status") or {})


def _allocatable(status: Object) -> None:
    """Use the capacity of a node as the default of ``allocatable``."""
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])


def _requests(spec: Object, api_version: str) -> None:
    for request in (spec.get("devices") or {}).get("requests") or ():
        if api_version != V1BETA1:
            bodies = [request["exactly"]] if request.get("exactly") is not None else []
        else:  # without a class it has subrequests, or is invalid
            bodies = [request] if request.get("deviceClassName") else []
            _tolerations(request)
        for body in (*bodies, *(request.get("firstAvailable") or ())):
            if not body.get("allocationMode"):
                body["allocationMode"] = "ExactCount"
            if body["allocationMode"] == "ExactCount" and not body.get("count"):
                body["count"] = 1
            _tolerations(body)


def _tolerations(body: Object) -> None:
    for toleration in body.get("tolerations") or ():
        if not toleration.get("operator"):
            toleration["operator"] = "Equal"


def _results(status: Object) -> Iterable[Object]:
    return ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()


def _fill(obj: Object, name: str, value: Any) -> None:
    if obj.get(name) is None:
        obj[name] = value


@cache
def _table() -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = json.loads(
        resources.files("dra_kit.kubernetes.resource.schema").joinpath("defaults.json").read_text()
    )
    return table


@cache
def _has_defaults(type_name: str) -> bool:
    """Return whether a type or one of its fields has defaults, at any depth."""
    waiting, seen = [type_name], set[str]()
    while waiting:
        name = waiting.pop().removeprefix(LIST).removeprefix(MAP)
        if name in _table():
            return True
        known = None if name in seen else struct(name)
        seen.add(name)
        waiting += [entry.type for entry in known.fields.values()] if known else ()
    return False


def apply_defaults(value: Any, type_name: str) -> None:
    """Fill in the defaults of a decoded value in place, at any depth."""
    if not _has_defaults(type_name):
        return
    if type_name.startswith((LIST, MAP)):
        below = item_type(type_name)
        for item in value.values() if isinstance(value, dict) else value:
            apply_defaults(item, below)
        return
    known = struct(type_name)
    if known is None:
        return
    for name, default in _table().get(type_name, {}).items():
        # the zero value of a field that is not a pointer cannot be distinguished from absence
        if value.get(name) is None or (known.fields[name].presence != "pointer" and value[name] in ("", 0)):
            value[name] = decode(default, known.fields[name].type)
    for name, entry in known.fields.items():
        if (item := value.get(name)) is not None:
            apply_defaults(item, entry.type)


def set_pod_defaults(pod: Object) -> None:
    """Fill in pull policies, requests from limits, empty volumes and host ports of a pod or pod template in place."""
    spec = pod.get("spec")
    if spec is None:
        return
    spec.setdefault("enableServiceLinks", True)
    for volume in spec.get("volumes") or ():
        if not any(value is not None for name, value in volume.items() if name != "name"):
            volume["emptyDir"] = {}
    set_pull_policies(pod)
    for container in _containers(pod):
        resources = container.get("resources") or {}
        if limits := resources.get("limits"):
            resources["requests"] = {**limits, **(resources.get("requests") or {})}
        for port in (container.get("ports") or ()) if spec.get("hostNetwork") else ():
            port["hostPort"] = port.get("hostPort") or port.get("containerPort")


def set_pull_policies(pod: Object) -> None:
    """Fill in ``imagePullPolicy`` of the containers of a pod or pod template, depending on the image's tag."""
    for container in _containers(pod):
        if not container.get("imagePullPolicy"):
            tag = container.get("image", "").rpartition("/")[2]
            latest = (":" not in tag and "@" not in tag) or tag.endswith(":latest")
            container["imagePullPolicy"] = "Always" if latest else "IfNotPresent"


def _containers(pod: Object) -> Iterator[Object]:
    for field in ("initContainers", "containers"):
        yield from pod["spec"].get(field) or ()
