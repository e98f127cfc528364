"""CEL expressions: whether they compile in an environment with feature gates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from dra_kit.errors import CelCompileError
from dra_kit.kubernetes.cel.environment import DeviceEnvironment
from dra_kit.kubernetes.cel.program import compile_derived, compile_selector
from dra_kit.kubernetes.release import Release
from tests.golden.cel import is_header, observed_cost
from tests.golden.kind import Case, Line

NAME = "cel-compile"


def recognises(line: Line) -> bool:
    return is_header(line, "compile-time", "what compiles")


def replay(lines: Iterable[Line], release: Release) -> Iterator[Case]:
    remaining = iter(lines)
    next(remaining)
    for line in remaining:
        yield Case(line["id"], line, partial(_compile, line, line["expr"], _environment(line, release)))


def _environment(line: Line, release: Release) -> DeviceEnvironment:
    gates = line["gates"]
    return DeviceEnvironment(
        stored={"stored": True, "new": False}[line["env"]],
        # stored expressions ignore gates
        consumable_capacity=gates["ConsumableCapacity"] or line["env"] == "stored",
        list_type_attributes=gates["ListTypeAttributes"] or line["env"] == "stored",
        version=release.version,
    )


def _compile(line: Line, expression: str, environment: DeviceEnvironment) -> Line:
    compile_expression = compile_derived if line["derived"] else compile_selector
    try:
        program = compile_expression(expression, environment=environment)
    except CelCompileError:
        return line | {"result": "cerr", "cost": 0}
    return line | {"result": "ok", "cost": observed_cost(line, program.cost)}
