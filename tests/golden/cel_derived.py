"""CEL expressions of derived attributes: the attribute for a device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from dra_kit.errors import CelCompileError, CelRuntimeError
from dra_kit.kubernetes.cel.device import Device
from dra_kit.kubernetes.cel.environment import DeviceEnvironment
from dra_kit.kubernetes.cel.program import compile_derived
from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.values.semver import Version
from tests.golden.cel import devices_of, is_header, observed_cost
from tests.golden.kind import Case, Line

NAME = "cel-derived"

_FIELDS: dict[type, str] = {bool: "bool", int: "int", str: "string", Version: "version"}


def recognises(line: Line) -> bool:
    return is_header(line, "derived-attribute", "derived attributes")


def replay(lines: Iterable[Line], release: Release) -> Iterator[Case]:
    remaining = iter(lines)
    devices = devices_of(next(remaining), release)
    environment = DeviceEnvironment(version=release.version)
    for line in remaining:
        yield Case(line["id"], line, partial(_derive, line, devices[line["device"]], line["expr"], environment))


def _derive(line: Line, device: Device, expression: str, environment: DeviceEnvironment) -> Line:
    observed = {key: value for key, value in line.items() if key != "attribute"} | {"cost": 0}
    try:
        derived = compile_derived(expression, environment=environment)
    except CelCompileError:
        return observed | {"result": "cerr"}
    observed["cost"] = observed_cost(line, derived.cost)
    try:
        return observed | {"result": "ok", "attribute": _attribute(derived.value(device))}
    except CelRuntimeError:
        return observed | {"result": "err"}


def _attribute(value: Any) -> Line:
    if not isinstance(value, list):
        return {_FIELDS[type(value)]: _plain(value)}
    return {f"{_FIELDS[type(value[0])]}s": [_plain(one) for one in value]} if value else {}


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Version) else value
