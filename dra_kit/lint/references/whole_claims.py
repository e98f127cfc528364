"""Claims whose requests are configured differently: a container that names none of them gets what both set."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from msgspec import Struct

from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.config import base_request, configs_for_driver


class Difference(Struct, frozen=True):
    """Two requests of a claim that a driver is given different configs for."""

    driver: str
    one: str
    other: str


def difference(spec: v1.ResourceClaimSpec, classes: Mapping[str, v1.DeviceClass | None]) -> Difference | None:
    """Return the first difference between the configs of a claim's requests, by the precedence of the API.

    A request that a driver has no config for may be for a device of another driver, and is like all others.

    Args:
        spec: of the claim.
        classes: those that are known, by name; their configs count, too.
    """
    seen: dict[str, tuple[str, str]] = {}
    for request, device_class in _choices(spec):
        entries = [*_of_class(request, classes.get(device_class)), *_of_claim(spec)]
        for driver in dict.fromkeys(entry.opaque.driver for entry in entries if entry.opaque is not None):
            configs = configs_for_driver(entries, request, driver)
            if not configs or configs[-1].opaque is None:
                continue
            text = json.dumps(configs[-1].opaque.parameters, sort_keys=True, default=str)
            name = base_request(request)
            before, other = seen.setdefault(driver, (text, name))
            if before != text and other != name:
                return Difference(driver, other, name)
    return None


def _choices(spec: v1.ResourceClaimSpec) -> Iterator[tuple[str, str]]:
    """Yield requests, or ``request/subrequest``, and the class of each."""
    for request in spec.devices.requests:
        if request.exactly is not None:
            yield request.name, request.exactly.device_class_name
        for alternative in request.first_available:
            yield f"{request.name}/{alternative.name}", alternative.device_class_name


def _of_class(request: str, device_class: v1.DeviceClass | None) -> Iterator[v1.DeviceAllocationConfiguration]:
    for config in device_class.spec.config if device_class is not None else ():
        yield v1.DeviceAllocationConfiguration(source="FromClass", requests=(request,), opaque=config.opaque)


def _of_claim(spec: v1.ResourceClaimSpec) -> Iterator[v1.DeviceAllocationConfiguration]:
    for config in spec.devices.config:
        yield v1.DeviceAllocationConfiguration(source="FromClaim", requests=config.requests, opaque=config.opaque)
