"""CEL expressions: selectors of requests and classes, and derived attributes (KEP-6080)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from dra_kit import cel
from dra_kit.resource import names, v1
from dra_kit.resource.fielderror import FieldError, forbidden, invalid, required, too_long
from dra_kit.resource.gates import FeatureGates
from dra_kit.resource.validation.fields.lists import limited, over_limit

SELECTORS_MAX: Final = 32


def environment(gates: FeatureGates) -> cel.Environment:
    """Return the environment in which an API server with these gates compiles new expressions."""
    return cel.new(
        consumable_capacity="DRAConsumableCapacity" in gates, list_type_attributes="DRAListTypeAttributes" in gates
    )


def validate_selectors(
    selectors: Sequence[v1.DeviceSelector], path: str, declarations: cel.Environment
) -> list[FieldError]:
    """Check selectors of a request or class."""
    errors = over_limit(selectors, SELECTORS_MAX, path)
    for where, selector in limited(selectors, SELECTORS_MAX, path):
        if selector.cel is None:
            errors.append(required(f"{where}.cel"))
        else:
            errors += validate_expression(selector.cel.expression, f"{where}.cel.expression", declarations)
    return errors


def validate_expression(
    expression: str, path: str, declarations: cel.Environment, *, derived: bool = False
) -> list[FieldError]:
    """Check one expression: it compiles, has a fitting type, and is neither too long nor too costly."""
    if names.byte_length(expression) > cel.MAX_LENGTH:
        return [too_long(path, expression, cel.MAX_LENGTH)]
    cost, problem = _compiled(expression, declarations, derived=derived)
    if problem:
        return [invalid(path, expression, problem)]
    return [forbidden(path, "too complex, exceeds cost limit")] if cost > cel.MAX_COST else []


def expression_cost(expression: str, declarations: cel.Environment) -> int:
    """Return the estimated cost of a derived attribute's expression; 0 if it does not compile."""
    return _compiled(expression, declarations, derived=True)[0]


@lru_cache(maxsize=512)
def _compiled(expression: str, declarations: cel.Environment, *, derived: bool) -> tuple[int, str]:
    """Return cost, and what is wrong."""
    compiler = cel.compile_derived if derived else cel.compile_selector
    try:
        return compiler(expression, environment=declarations).cost, ""
    except cel.CelCompileError as error:
        return 0, _problem(expression, error)


def _problem(expression: str, error: cel.CelCompileError) -> str:
    """Return a compile error with the place in the text, as cel-go shows it."""
    if not error.line:
        return error.problem
    line = expression.split("\n")[error.line - 1]
    shown = f" | {line}\n | {'.' * (error.column - 1)}^"
    return f"compilation failed: ERROR: <input>:{error.line}:{error.column}: {error.problem}\n{shown}"
