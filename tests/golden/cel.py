"""CEL selectors: their value for a device, and whether an API server admits them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from dra_kit.errors import CelCompileError, CelRuntimeError
from dra_kit.kubernetes.cel.device import Device
from dra_kit.kubernetes.cel.environment import DeviceEnvironment
from dra_kit.kubernetes.cel.program import MAX_COST, compile_selector
from dra_kit.kubernetes.release import Release
from tests.golden.kind import Case, Line

NAME = "cel"

_RESULTS = {True: "true", False: "false"}


def recognises(line: Line) -> bool:
    return is_header(line, "verdicts of")


def is_header(line: Line, *beginnings: str) -> bool:
    return str(line.get("meta", "")).startswith(beginnings)


def devices_of(line: Line, release: Release) -> list[Device]:
    """Return the devices, to which the lines of a file refer by position."""
    return [
        Device(
            driver=device["driver"],
            attributes=device["attributes"],
            capacity=device["capacity"],
            allow_multiple_allocations=bool(device["allowMultipleAllocations"]),
            version=release.version,
        )
        for device in line["devices"]
    ]


def observed_cost(line: Line, cost: int) -> int:
    """Return the recorded estimate if it leads to the same admission, which is the verdict; else ours."""
    recorded: int = line["cost"]
    return recorded if (recorded <= MAX_COST) == (cost <= MAX_COST) else cost


def replay(lines: Iterable[Line], release: Release) -> Iterator[Case]:
    remaining = iter(lines)
    devices = devices_of(next(remaining), release)
    environment = DeviceEnvironment(version=release.version)
    for line in remaining:
        yield Case(line["id"], line, partial(_select, line, devices[line["device"]], line["expr"], environment))


def _select(line: Line, device: Device, expression: str, environment: DeviceEnvironment) -> Line:
    # the texts of errors are not compared
    observed = line | {"cost": 0}
    try:
        selector = compile_selector(expression, environment=environment)
    except CelCompileError:
        return observed | {"result": "cerr"}
    observed["cost"] = observed_cost(line, selector.cost)
    try:
        return observed | {"result": _RESULTS[selector.matches(device)]}
    except CelRuntimeError:
        return observed | {"result": "err"}
