"""The libraries of functions in Kubernetes' order, and the overloads of a function."""

from __future__ import annotations

from functools import cache
from types import ModuleType
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
from dra_kit.kubernetes.cel.types import Overload

_LIBRARIES: Final = (operators, conversions, strings, network, collections, quantity_semver, regex, time)
"""In the order in which Kubernetes tries their overloads."""


@cache
def functions() -> dict[str, tuple[Overload, ...]]:
    """Return the overloads for expressions on devices by function, in the order in which they are tried."""
    return _by_function(*_LIBRARIES)


@cache
def all_functions() -> dict[str, tuple[Overload, ...]]:
    """Return the overloads for admission expressions by function, which include those for devices."""
    return _by_function(authorization) | functions()


def _by_function(*modules: ModuleType) -> dict[str, tuple[Overload, ...]]:
    found: dict[str, list[Overload]] = {}
    for module in modules:
        for overload in module.LIBRARY.overloads:
            found.setdefault(overload.function, []).append(overload)
    return {name: tuple(overloads) for name, overloads in found.items()}
