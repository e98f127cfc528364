"""Which type fits where another is expected, and what type variables stand for then (cel-go's checker, v0.29.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from dra_kit.cel.types import DYN, Type

Substitution: TypeAlias = dict[str, Type]
"""What type variables stand for, by their names."""

_NULLABLE = frozenset({"opaque", "struct", "any", "duration", "timestamp", "null", "dyn", "param"})


def assignable(substitution: Substitution, given: Sequence[Type], expected: Sequence[Type]) -> Substitution | None:
    """Return the substitution with which all given types fit the expected ones; None if there is none."""
    if len(given) != len(expected):
        return None
    attempt = dict(substitution)
    return attempt if all(_assign(attempt, one, other) for one, other in zip(given, expected, strict=True)) else None


def most_general(one: Type, other: Type) -> Type:
    """Return the less specific of two types that are known to unify."""
    return one if _is_less_specific(one, other) else other


def substitute(substitution: Substitution, of: Type, *, unknown_is_dyn: bool = False) -> Type:
    """Return a type with its variables replaced; a variable without a type stays, or becomes dyn."""
    while of.kind == "param":
        found = substitution.get(of.name)
        if found is None:
            return DYN if unknown_is_dyn else of
        of = found
    if not of.parameters:
        return of
    parameters = tuple(substitute(substitution, p, unknown_is_dyn=unknown_is_dyn) for p in of.parameters)
    return of if parameters == of.parameters else Type(of.kind, of.name, parameters)


def _assign(substitution: Substitution, given: Type, expected: Type) -> bool:
    if expected.kind == "param":
        fits, bound = _bind(substitution, given, expected)
        if fits or bound:
            return fits
    if given.kind == "param":
        return _bind(substitution, expected, given)[0]
    if given.is_dynamic or expected.is_dynamic or "error" in {given.kind, expected.kind}:
        return True
    if given.kind == "null":
        return expected.nullable or expected.kind in _NULLABLE
    if expected.kind == "null":
        return given.nullable or given.kind in _NULLABLE
    if given.kind == "type":
        return expected.kind == "type"
    if given.kind != expected.kind or given.name != expected.name:
        return False
    if len(given.parameters) != len(expected.parameters):
        return False
    return all(_assign(substitution, g, e) for g, e in zip(given.parameters, expected.parameters, strict=True))


def _bind(substitution: Substitution, value: Type, variable: Type) -> tuple[bool, bool]:
    """Return whether the variable can stand for the type, and whether it stood for something before."""
    if value == variable:
        return True, True
    current = substitution.get(variable.name)
    if current is None:
        if _occurs(substitution, variable, value):
            return False, False
        substitution[variable.name] = value
        return True, False
    if value == current:
        return True, True
    if not _assign(substitution, value, current):
        return False, True
    general = most_general(value, current)
    if not _occurs(substitution, variable, general):
        substitution[variable.name] = general
    return True, True


def _occurs(substitution: Substitution, variable: Type, within: Type) -> bool:
    if variable == within:
        return True
    if within.kind == "param":
        found = substitution.get(within.name)
        return found is not None and _occurs(substitution, variable, found)
    return any(_occurs(substitution, variable, parameter) for parameter in within.parameters)


def _is_less_specific(one: Type, other: Type) -> bool:
    if one.is_dynamic or one.kind == "param":
        return True
    if other.is_dynamic or other.kind == "param" or one.kind != other.kind:
        return False
    if one.kind == "type":
        return True
    if one.name != other.name or len(one.parameters) != len(other.parameters):
        return False
    return all(_is_less_specific(a, b) for a, b in zip(one.parameters, other.parameters, strict=True))
