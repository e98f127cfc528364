"""Which configuration of an allocation applies to which of its results, and the names of requests.

The rules are those of ``resourceclaim.ConfigForResult`` in k8s.io/dynamic-resource-allocation v0.37.1: the class's
entries come first, the claim's after them, and of the entries that match the last one is the strongest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.v1 import DeviceAllocationConfiguration

CONFIG_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "ResourceClaim": ("spec", "devices", "config"),
    "ResourceClaimTemplate": ("spec", "spec", "devices", "config"),
    "DeviceClass": ("spec", "config"),
}
"""Where objects carry a list of configs, by kind; the same in v1, v1beta2 and v1beta1."""


def base_request(request: str) -> str:
    """Return the request that a result or config entry names: of ``gpu/big``, a subrequest, it is ``gpu``."""
    return request.partition("/")[0]


def configs_for_result(
    entries: Iterable[DeviceAllocationConfiguration], request: str
) -> list[DeviceAllocationConfiguration]:
    """Return the opaque entries that apply to a result, for any driver.

    An entry applies if it names no request (that means all), the result's request, or the parent request of the
    result's subrequest. Entries of an unknown kind have no ``opaque`` and are skipped, as in Kubernetes.

    Args:
        entries: ``status.allocation.devices.config`` of a claim.
        request: ``request`` of the result, ``name`` or ``name/subrequest``.

    Returns:
        Those entries in the API's order, weakest first.
    """
    names = {request, base_request(request)}
    return [
        entry
        for entry in entries
        if entry.opaque is not None and (not entry.requests or not names.isdisjoint(entry.requests))
    ]


def configs_for_driver(
    entries: Iterable[DeviceAllocationConfiguration], request: str, driver: str
) -> list[DeviceAllocationConfiguration]:
    """Return the entries of ``configs_for_result`` whose parameters are for ``driver``, weakest first.

    Args:
        entries: ``status.allocation.devices.config`` of a claim.
        request: ``request`` of the result, ``name`` or ``name/subrequest``.
        driver: name of the driver.
    """
    return [e for e in configs_for_result(entries, request) if e.opaque is not None and e.opaque.driver == driver]


def request_names(requests: Iterable[v1.DeviceRequest]) -> frozenset[str]:
    """Return the names for constraints, configuration and results: ``request`` and ``request/subrequest``."""
    found = set()
    for request in requests:
        found.add(request.name)
        found |= {f"{request.name}/{alternative.name}" for alternative in request.first_available}
    return frozenset(found)
