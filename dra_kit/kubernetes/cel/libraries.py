"""The libraries of functions in Kubernetes' order, and the overloads of a function."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

from dra_kit.kubernetes.cel.functions import (
    authorization,
    collections,
    conversions,
    network,
    operators,
    quantity_semver,
    regex,
    strings,
    time,
)
from dra_kit.kubernetes.cel.types import Library, Overload

LIBRARIES: Final = (
    operators.LIBRARY,
    conversions.LIBRARY,
    strings.LIBRARY,
    network.LIBRARY,
    collections.LIBRARY,
    quantity_semver.LIBRARY,
    regex.LIBRARY,
    time.LIBRARY,
)
"""In the order in which Kubernetes tries their overloads."""


def overloads(function: str) -> tuple[Overload, ...]:
    """Return the overloads of one function of expressions on devices; empty if it does not exist."""
    return functions().get(function, ())


def admission_overloads(function: str) -> tuple[Overload, ...]:
    """Return the overloads of one function, including those that only admission expressions have."""
    return all_functions().get(function, ())


@cache
def functions() -> dict[str, tuple[Overload, ...]]:
    """Return the overloads for expressions on devices by function, in the order in which they are tried."""
    return _by_function(LIBRARIES)


@cache
def all_functions() -> dict[str, tuple[Overload, ...]]:
    """Return the overloads for admission expressions by function, which include those for devices."""
    return _by_function((authorization.LIBRARY,)) | functions()


def _by_function(libraries: Iterable[Library]) -> dict[str, tuple[Overload, ...]]:
    found: dict[str, list[Overload]] = {}
    for library in libraries:
        for overload in library.overloads:
            found.setdefault(overload.function, []).append(overload)
    return {name: tuple(overloads) for name, overloads in found.items()}
