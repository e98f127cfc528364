"""The names and functions that an expression may use: they depend on the compiler and on feature gates.

The libraries of functions are tried in Kubernetes' order.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Final, Protocol

from msgspec import Struct

from dra_kit.kubernetes.cel import types
from dra_kit.kubernetes.cel.functions import (
    authorization,
    collections,
    conversions,
    network,
    operators,
    quantity_semver,
    strings,
)
from dra_kit.kubernetes.cel.types import Overload, Type, list_of, map_of, optional_of, type_of_type
from dra_kit.kubernetes.release import DEFAULT, Change, KubernetesVersion

_LIBRARIES: Final = (operators, conversions, strings, network, collections, quantity_semver)
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


class CompileEnvironment(Protocol):
    """The names and functions for the compilation of an expression."""

    def variable(self, name: str) -> Type | None:
        """Return the type of a variable; None if it does not exist. A name may have dots."""
        ...

    def fields(self, of: Type) -> Mapping[str, Type] | None:
        """Return the fields of a type of objects; None if nothing can be selected from it."""
        ...

    def overloads(self, function: str) -> tuple[Overload, ...]:
        """Return the signatures of a function; empty if it does not exist."""
        ...


class DeviceEnvironment(Struct, frozen=True):
    """The environment of an expression on devices.

    Attributes:
        stored: the expression is already stored, so that feature gates are ignored. The scheduler always compiles this
            way, the API server only for unchanged expressions.
        consumable_capacity: feature gate DRAConsumableCapacity: ``device.allowMultipleAllocations`` exists.
        list_type_attributes: feature gate DRAListTypeAttributes: ``includes`` exists, attributes may be lists.
        version: the release that compiles and evaluates.
    """

    stored: bool = True
    consumable_capacity: bool = True
    list_type_attributes: bool = True
    version: KubernetesVersion = DEFAULT

    @property
    def attribute_type(self) -> Type:
        """The static type of an attribute's value."""
        return types.DYN if self.list_type_attributes else types.ANY

    def variable(self, name: str) -> Type | None:
        """Return the type of ``device``; None for every other name."""
        return types.DEVICE if name == "device" else None

    def fields(self, of: Type) -> Mapping[str, Type] | None:
        """Return the fields of ``device``; None for every other type."""
        return _device_fields(self) if of == types.DEVICE else None

    def overloads(self, function: str) -> tuple[Overload, ...]:
        """Return the signatures of a function; empty if it does not exist."""
        function = function.removeprefix(".")
        gated = function == "includes" and self.list_type_attributes and self.version.has(Change.INCLUDES_EXISTS)
        known = gated or is_known(function, self.version, stored=self.stored)
        return functions().get(function, ()) if known else ()


def is_known(function: str, version: KubernetesVersion, *, stored: bool) -> bool:
    """Return whether a release compiles calls of a function that other releases have, too."""
    compiler = version if stored else version.before  # the API server compiles new expressions for the release before
    if function in _OF_LISTS:
        return compiler.has(Change.LISTS_HAVE_FUNCTIONS)
    if function == "includes":
        return compiler.has(Change.INCLUDES_IS_IN_THE_BASE)
    return function != "isMask" or compiler.has(Change.MASKS_OF_NETWORKS)


_OF_LISTS: Final = frozenset(
    {"lists.range", "distinct", "first", "flatten", "last", "reverse", "slice", "sort", "@sortByAssociatedKeys"}
)


@cache
def _device_fields(environment: DeviceEnvironment) -> Mapping[str, Type]:
    found = {
        "driver": types.STRING,
        "attributes": map_of(types.STRING, map_of(types.STRING, environment.attribute_type)),
        "capacity": map_of(types.STRING, map_of(types.STRING, types.QUANTITY)),
    }
    return {**found, "allowMultipleAllocations": types.BOOL} if environment.consumable_capacity else found


STORED: Final = DeviceEnvironment()
"""The environment of the scheduler, and of an API server for stored expressions."""


def new(
    *, consumable_capacity: bool = True, list_type_attributes: bool = False, version: KubernetesVersion = DEFAULT
) -> DeviceEnvironment:
    """Return the environment for new or changed expressions in an API server; by default, with the gates of 1.37.

    Args:
        consumable_capacity: feature gate DRAConsumableCapacity.
        list_type_attributes: feature gate DRAListTypeAttributes.
        version: the release of the API server.
    """
    return DeviceEnvironment(
        stored=False,
        consumable_capacity=consumable_capacity,
        list_type_attributes=list_type_attributes,
        version=version,
    )


TYPE_NAMES: Final = {
    "bool": types.BOOL, "bytes": types.BYTES, "double": types.DOUBLE, "int": types.INT, "list": list_of(types.DYN),
    "map": map_of(types.DYN, types.DYN), "null_type": types.NULL, "string": types.STRING, "uint": types.UINT,
    "type": type_of_type(types.DYN), "google.protobuf.Duration": types.DURATION,
    "google.protobuf.Timestamp": types.TIMESTAMP, "net.IP": types.IP, "net.CIDR": types.CIDR,
    "optional_type": optional_of(types.DYN),
}  # fmt: skip
"""Names of types that can be used as values."""
