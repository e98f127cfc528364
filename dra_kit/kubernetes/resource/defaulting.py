"""What the API server fills in where a field is absent, by rules that the schema table's defaults cannot have.

Source: Kubernetes 1.37.1 ``pkg/apis/resource/v1*/defaults.go`` and ``pkg/apis/core/v1/defaults.go``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from dra_kit.resource.conversion import V1BETA1
from dra_kit.resource.defaulting.pod_defaults import fill_in_pod_defaults
from dra_kit.values.json import Object

_POOL_LIMIT: Final = 100


def fill_in_defaults(obj: Object, kind: str, api_version: str, now: str) -> None:
    """Fill in the defaults of an object, in place.

    Args:
        obj: JSON of the version that was sent; ``null`` counts as absent.
        kind: its kind.
        api_version: its version.
        now: the time, which is when a taint without one was added (``metav1.Time``).
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
            fill_in_pod_defaults(obj)
        case "Node":
            _allocatable(obj.get("status") or {})


def _allocatable(status: Object) -> None:
    """Make everything of a node allocatable unless something else is given."""
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])


def _requests(spec: Object, api_version: str) -> None:
    for request in (spec.get("devices") or {}).get("requests") or ():
        if api_version != V1BETA1:
            bodies = [request["exactly"]] if request.get("exactly") is not None else []
        else:  # without a class it is one with subrequests, or a mistake
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
