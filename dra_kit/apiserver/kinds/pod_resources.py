"""Resources at pod level: defaults, validation, and the quality of service.

Sources: Kubernetes 1.37 ``pkg/apis/core/v1/defaults.go`` and ``pkg/apis/core/v1/helper/qos``; measured on
kube-apiserver 1.37.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dra_kit.kubernetes.resource.field_errors import FieldError, forbidden, invalid, unsupported
from dra_kit.kubernetes.values.json import Object
from dra_kit.kubernetes.values.quantity import Quantity

_HUGE_PAGES: Final = "hugepages-"
_SUPPORTED: Final = ("cpu", _HUGE_PAGES, "memory")
_ZERO: Final = Quantity("0")


def default_pod_resources(spec: Object) -> None:
    """Fill in what the containers and the other half imply, in place; only if a pod has such resources at all."""
    resources = spec.get("resources") or {}
    if not _is_set(resources):
        return
    limits, requests = dict(resources.get("limits") or {}), dict(resources.get("requests") or {})
    for name, total in _of_containers(spec, "limits").items():
        everywhere = all(name in _amounts(item, "limits") for item in _containers(spec))
        if name not in limits and (name.startswith(_HUGE_PAGES) or (everywhere and _is_supported(name))):
            limits[name] = str(total)
    for name, total in _of_containers(spec, "requests").items():
        if name in {"cpu", "memory"} and name not in requests:
            requests[name] = str(total)
    requests = {**{name: limits[name] for name in limits if _is_supported(name)}, **requests}
    for field, amounts in (("limits", limits), ("requests", requests)):
        if amounts:
            resources[field] = dict(sorted(amounts.items()))


def pod_resource_errors(spec: Object) -> Iterator[FieldError]:
    """Yield what is wrong with the resources of a pod, compared with those of its containers."""
    resources = spec.get("resources") or {}
    path = "spec.resources"
    limits, requests = _amounts(spec, "limits"), _amounts(spec, "requests")
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name in sorted(amounts):
            if not _is_supported(name):
                yield unsupported(f"{path}.{field}[{name}]", name, _SUPPORTED)
    for name in sorted(requests):
        if name in limits and Quantity(requests[name]) > Quantity(limits[name]):
            yield invalid(
                f"{path}.requests", requests[name], f"must be less than or equal to {name} limit of {limits[name]}"
            )
    if resources.get("claims"):
        yield forbidden(f"{path}.claims", "claims may not be set for Resources at pod-level")
    for name, total in sorted(_of_containers(spec, "requests").items()):
        if name in requests and total > Quantity(requests[name]):
            detail = f"must be greater than or equal to aggregate container requests of {total}"
            yield invalid(f"{path}.requests[{name}]", requests[name], detail)
    for i, container in enumerate(spec.get("containers") or ()):
        for name, amount in sorted(_amounts(container, "limits").items()):
            if name in limits and Quantity(amount) > Quantity(limits[name]):
                detail = f"must be less than or equal to pod limits of {limits[name]}"
                yield invalid(f"{path}.containers[{i}][{name}].limits", amount, detail)


def quality_of_service(spec: Object) -> str:
    """Return ``qosClass``: Guaranteed, Burstable or BestEffort, by the resources of the pod or else its containers."""
    guaranteed, anything = True, False
    for owner in [spec] if _is_set(spec.get("resources") or {}) else _containers(spec):
        limits, requests = _amounts(owner, "limits"), _amounts(owner, "requests")
        for name in ("cpu", "memory"):
            limit, request = (Quantity(str(values.get(name, "0"))) for values in (limits, requests))
            anything = anything or limit > _ZERO or request > _ZERO
            guaranteed = guaranteed and limit > _ZERO and limit == request
    return "Guaranteed" if guaranteed and anything else "Burstable" if anything else "BestEffort"


def _is_set(resources: Object) -> bool:
    return bool(resources.get("limits") or resources.get("requests"))


def _is_supported(name: str) -> bool:
    return name in _SUPPORTED or name.startswith(_HUGE_PAGES)


def _containers(spec: Object) -> list[Object]:
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _amounts(owner: Object, field: str) -> dict[str, Any]:
    return (owner.get("resources") or {}).get(field) or {}


def _of_containers(spec: Object, field: str) -> dict[str, Quantity]:
    """Return what the containers need at the same time; init containers run one after the other, sidecars go on."""
    running: dict[str, Quantity] = {}
    highest: dict[str, Quantity] = {}
    for container in spec.get("initContainers") or ():
        for name, amount in _amounts(container, field).items():
            needed = running.get(name, _ZERO) + Quantity(str(amount))
            highest[name] = max(highest.get(name, _ZERO), needed)
            if container.get("restartPolicy") == "Always":
                running[name] = needed
    for container in spec.get("containers") or ():
        for name, amount in _amounts(container, field).items():
            running[name] = running.get(name, _ZERO) + Quantity(str(amount))
    return {name: max(running.get(name, _ZERO), highest.get(name, _ZERO)) for name in {**highest, **running}}
