"""Opaque configuration: which entries of an allocation apply to which result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.resource.config import configs_for_result
from dra_kit.kubernetes.resource.v1 import DeviceAllocationConfiguration
from tests.golden.kind import Case, Line

NAME = "config"


def recognises(line: Line) -> bool:
    return {"config", "results", "selected"} <= line.keys()


def replay(lines: Iterable[Line], release: Release) -> Iterator[Case]:
    for line in lines:
        requests = [result["request"] for result in line["results"]]
        yield Case(line["id"], line, partial(_select, line, line["config"], requests))


def _select(line: Line, config: list[Line], requests: list[str]) -> Line:
    entries = [DeviceAllocationConfiguration.model_validate(entry) for entry in config]
    position = {id(entry): index for index, entry in enumerate(entries)}
    selected = [[position[id(entry)] for entry in configs_for_result(entries, request)] for request in requests]
    return line | {"selected": selected}
