"""How many devices requests ask for, against how many there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dra_kit.lint.classes import Body, bodies, selectors_of
from dra_kit.lint.manifests import Manifest
from dra_kit.lint.matching import is_about, passes
from dra_kit.lint.structure import Problem
from dra_kit.lint.surroundings import Surroundings
from dra_kit.resource import v1


def count_problems(
    manifest: Manifest, classes: Mapping[str, v1.DeviceClass | None], surroundings: Surroundings
) -> Iterator[Problem]:
    """Requests for no device, or for more than there are."""
    for body in bodies(manifest):
        if body.asked.allocation_mode != "ExactCount":
            continue
        path = f"{body.path}.count"
        written = manifest.document.positions.find(path)
        if written.exact and written.value.value == 0:
            text = "a count of 0 is none: the API server takes it for 1"
            yield Problem(path, "zero-count", text, "write how many devices are needed, or remove the request")
            continue
        device_class = classes.get(body.asked.device_class_name)
        found = _matching(body, device_class, surroundings) if device_class is not None else None
        if found and found < body.asked.count:
            there = "1 known device matches" if found == 1 else f"{found} known devices match"
            text = f"{body.asked.count} devices are asked for, and only {there}"
            yield Problem(path, "too-few-devices", text, f"write count: {found}")


def _matching(body: Body, device_class: v1.DeviceClass, surroundings: Surroundings) -> int | None:
    """How many of the known devices a request means; None if there may be others, or some that can be shared."""
    of_class, own = selectors_of(device_class.spec.selectors), selectors_of(body.asked.selectors)
    advertised = surroundings.advertised
    if advertised is None or of_class is None or own is None or not is_about((*of_class, *own), advertised):
        return None
    found = 0
    for device, number in advertised.distinct:
        if passes((*of_class, *own), device.view):
            if device.view.allow_multiple_allocations:
                return None
            found += number
    return found
