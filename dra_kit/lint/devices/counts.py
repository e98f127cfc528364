"""How much requests ask for, devices and capacity, against what there is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dra_kit.kubernetes.resource import v1
from dra_kit.lint.devices.classes import known_matching, selectors_for, written_choices
from dra_kit.lint.structure.fields import Problem
from dra_kit.lint.structure.manifest import Manifest
from dra_kit.lint.surroundings import Surroundings
from dra_kit.text import did_you_mean


def count_problems(
    manifest: Manifest, classes: Mapping[str, v1.DeviceClass | None], surroundings: Surroundings
) -> Iterator[Problem]:
    """Yield requests for no device, or for more than there are."""
    for body in written_choices(manifest):
        if body.asked.allocation_mode != "ExactCount":
            continue
        path = f"{body.path}.count"
        written = manifest.document.positions.find(path)
        if written.exact and written.value.value == 0:
            text = "a count of 0 is none: the API server takes it for 1"
            yield Problem(path, "zero-count", text, "write how many devices are needed, or remove the request")
            continue
        device_class = classes.get(body.asked.device_class_name)
        known = known_matching(selectors_for(body, device_class), surroundings) if device_class is not None else []
        found = sum(number for _, number in known)
        shared = any(device.view.allow_multiple_allocations for device, _ in known)
        if found and not shared and found < body.asked.count:
            there = "1 known device matches" if found == 1 else f"{found} known devices match"
            text = f"{body.asked.count} devices are asked for, and only {there}"
            yield Problem(path, "too-few-devices", text, f"write count: {found}")


def capacity_problems(
    manifest: Manifest, classes: Mapping[str, v1.DeviceClass | None], surroundings: Surroundings
) -> Iterator[Problem]:
    """Yield requests for more of a capacity than any device has, or for one that none has: no claim ever gets it."""
    for body in written_choices(manifest):
        device_class = classes.get(body.asked.device_class_name)
        requests = body.asked.capacity.requests if body.asked.capacity is not None else {}
        if device_class is None or not requests:
            continue
        matching = known_matching(selectors_for(body, device_class), surroundings)
        known = [device.device.capacity for device, _ in matching]
        for name, asked in requests.items() if known else ():
            path = f"{body.path}.capacity.requests[{name}]"
            there = [capacity[name].value for capacity in known if name in capacity]
            if not there:
                names = sorted({one for capacity in known for one in capacity})
                text = f"{asked} of {name} is asked for, and no device that matches has a capacity of that name"
                wish = did_you_mean(name, names) or (f"they have {', '.join(names)}" if names else "remove the request")
                yield Problem(path, "too-much-capacity", text, wish.removeprefix("; "), key=True)
            elif asked > max(there):
                text = f"{asked} of {name} is asked for, and no device that matches has more than {max(there)}"
                yield Problem(path, "too-much-capacity", text, f"ask for at most {max(there)}")
