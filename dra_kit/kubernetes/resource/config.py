"""The configuration of an allocation that applies to a result, and the names of requests.

The rules are those of ``resourceclaim.ConfigForResult`` in k8s.io/dynamic-resource-allocation v0.37.1: entries of the
class come before entries of the claim, and the last matching entry takes precedence.
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
"""The path of the list of configs, by kind; the same in v1, v1beta2 and v1beta1."""


def base_request(request: str) -> str:
    """Return the request of a result or config entry: ``gpu`` for the subrequest ``gpu/big``."""
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
        The entries in the API's order; later entries take precedence.
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
    """Return the entries of ``configs_for_result`` whose parameters are for ``driver``."""
    return [e for e in configs_for_result(entries, request) if e.opaque is not None and e.opaque.driver == driver]


def request_names(requests: Iterable[v1.DeviceRequest]) -> frozenset[str]:
    """Return the names for constraints, configuration and results: ``request`` and ``request/subrequest``."""
    found = set()
    for request in requests:
        found.add(request.name)
        found |= {f"{request.name}/{alternative.name}" for alternative in request.first_available}
    return frozenset(found)
