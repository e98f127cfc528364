"""CEL for the allocator: each expression is compiled once, and evaluated once for devices that look the same to it."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

from dra_kit import cel
from dra_kit.allocator.cluster.devices import AdvertisedDevice
from dra_kit.allocator.selectors.likeness import Likeness, glimpse_of, likeness_of
from dra_kit.cel.cost.meter import Meter
from dra_kit.cel.program import DerivedValue
from dra_kit.cel.syntax.reads import Read
from dra_kit.errors import CelCompileError, CelRuntimeError
from dra_kit.resource import v1
from dra_kit.values.semver import Version

_PROGRAMS: Final = 4096
"""Size of the cache of compiled expressions."""

_REMEMBERED: Final = 1024
"""Cached results of each device; expressions may be many, where each pod has its own."""

_ALIKE: Final = 65536
"""Cached results of devices that look the same to an expression."""

_Key = TypeVar("_Key")
_Result = TypeVar("_Result")

_FIELDS: Final = {bool: "bool", int: "int", str: "string", Version: "version"}


class Evaluator(Protocol):
    """Evaluates CEL expressions for devices."""

    def selects(self, expression: str, device: AdvertisedDevice, *, sees_sharing: bool) -> bool:
        """Whether a selector is true for a device.

        Args:
            expression: CEL of type bool.
            device: the device.
            sees_sharing: ``device.allowMultipleAllocations`` is what is published, otherwise false.

        Raises:
            CelCompileError: the expression is none.
            CelRuntimeError: it fails for this device.
        """
        ...

    def selector_reads(self, expression: str) -> tuple[Read, ...] | None:
        """Return the places of a device that a selector reads; None if they are not known, or it is no selector."""
        ...

    def derived_reads(self, expression: str) -> tuple[Read, ...] | None:
        """Likewise of the expression of a derived attribute."""
        ...

    def derive(self, expression: str, device: AdvertisedDevice) -> v1.DeviceAttribute:
        """Return the value of a derived attribute of a device; an attribute without a value if that is an empty list.

        Raises:
            CelCompileError: the expression is none, or of a type that no attribute has.
            CelRuntimeError: it fails for this device.
        """
        ...


class CelEvaluator:
    """Evaluates with ``dra_kit.cel`` what Kubernetes has stored, whatever gates are on.

    Args:
        meter: receives what each selector cost that was not known already; what it raises ends the search.
    """

    def __init__(self, meter: Meter | None = None) -> None:
        self.meter = meter
        self._devices: WeakKeyDictionary[AdvertisedDevice, _Evaluations] = WeakKeyDictionary()
        self._alike: dict[tuple[str, Likeness], bool | CelRuntimeError] = {}

    def selects(self, expression: str, device: AdvertisedDevice, *, sees_sharing: bool) -> bool:
        """See :class:`Evaluator`."""
        likeness = self.likeness(expression, device, sees_sharing=sees_sharing)
        known: bool | CelRuntimeError | None
        if likeness is not None:
            known = self._alike.get((expression, likeness))
        else:
            known = self._of(device).known(expression, sees_sharing=sees_sharing)
        if known is None:
            try:
                view = self.view(expression, device, sees_sharing=sees_sharing)
                known = _selector(expression).matches(view, self.meter)
            except CelRuntimeError as error:
                known = error
            if likeness is not None:
                _remember(self._alike, (expression, likeness), known, _ALIKE)
            else:
                self._of(device).remember(expression, known, sees_sharing=sees_sharing)
        if isinstance(known, CelRuntimeError):
            raise CelRuntimeError(known.message, kind=known.kind, key=known.key)
        return known

    def likeness(self, expression: str, device: AdvertisedDevice, *, sees_sharing: bool) -> Likeness | None:
        """Return what an expression can see of a device: its result is the same for devices of the same likeness.

        Arguments and errors are those of ``selects``; None where it is not known.
        """
        if not device.has_plain_attributes:
            return None
        return likeness_of(device, _selector(expression).reads, sees_sharing=sees_sharing)

    def selector_reads(self, expression: str) -> tuple[Read, ...] | None:
        """See :class:`Evaluator`."""
        program = _compiled_selector(expression)
        return None if isinstance(program, CelCompileError) else program.reads

    def derived_reads(self, expression: str) -> tuple[Read, ...] | None:
        """See :class:`Evaluator`."""
        program = _compiled_derived(expression)
        return None if isinstance(program, CelCompileError) else program.reads

    def derive(self, expression: str, device: AdvertisedDevice) -> v1.DeviceAttribute:
        """See :class:`Evaluator`."""
        return self._of(device).derive(expression)

    def view(self, expression: str, device: AdvertisedDevice, *, sees_sharing: bool) -> cel.Device:
        """Return the device as an expression sees it, perhaps without what the expression does not read.

        Arguments are those of ``selects``.

        Raises:
            CelCompileError: the expression is none.
            CelRuntimeError: an attribute has no value that expressions could see.
        """
        reads = _selector(expression).reads
        if reads is not None and device.has_plain_attributes:
            return glimpse_of(device, reads, sees_sharing=sees_sharing)
        return self._of(device).view(sees_sharing=sees_sharing)

    def _of(self, device: AdvertisedDevice) -> _Evaluations:
        evaluations = self._devices.get(device)
        if evaluations is None:
            # it must not refer to the device, which would then live for ever
            evaluations = self._devices[device] = _Evaluations(device.device, device.id.driver)
        return evaluations


class _Evaluations:
    """What is known of one device."""

    def __init__(self, device: v1.Device, driver: str) -> None:
        self._device = device
        self._driver = driver
        self._views: dict[bool, cel.Device] = {}
        self._selections: dict[tuple[str, bool], bool | CelRuntimeError] = {}
        self._attributes: dict[str, v1.DeviceAttribute | CelRuntimeError] = {}

    def known(self, expression: str, *, sees_sharing: bool) -> bool | CelRuntimeError | None:
        return self._selections.get((expression, sees_sharing))

    def remember(self, expression: str, result: bool | CelRuntimeError, *, sees_sharing: bool) -> None:
        _remember(self._selections, (expression, sees_sharing), result)

    def derive(self, expression: str) -> v1.DeviceAttribute:
        known = self._attributes.get(expression)
        if known is None:
            try:
                known = _attribute(_derived(expression).value(self.view(sees_sharing=True)))
            except CelRuntimeError as error:
                known = error
            _remember(self._attributes, expression, known)
        if isinstance(known, CelRuntimeError):
            raise CelRuntimeError(known.message, kind=known.kind, key=known.key)
        return known

    def view(self, *, sees_sharing: bool) -> cel.Device:
        view = self._views.get(sees_sharing)
        if view is None:
            try:
                view = cel.Device(
                    driver=self._driver,
                    attributes={name: value.to_json() for name, value in self._device.attributes.items()},
                    capacity={name: capacity.value for name, capacity in self._device.capacity.items()},
                    allow_multiple_allocations=sees_sharing and bool(self._device.allow_multiple_allocations),
                )
            except ValueError as error:
                raise CelRuntimeError(str(error)) from error
            self._views[sees_sharing] = view
        return view


def _remember(results: dict[_Key, _Result], key: _Key, result: _Result, most: int = _REMEMBERED) -> None:
    if len(results) >= most:
        results.clear()
    results[key] = result


def _selector(expression: str) -> cel.Selector:
    program = _compiled_selector(expression)
    if isinstance(program, CelCompileError):
        raise _again(program)
    return program


def _derived(expression: str) -> cel.Derived:
    program = _compiled_derived(expression)
    if isinstance(program, CelCompileError):
        raise _again(program)
    return program


@lru_cache(maxsize=_PROGRAMS)
def _compiled_selector(expression: str) -> cel.Selector | CelCompileError:
    try:
        return cel.compile_selector(expression, environment=cel.STORED)
    except CelCompileError as error:
        return _again(error)


@lru_cache(maxsize=_PROGRAMS)
def _compiled_derived(expression: str) -> cel.Derived | CelCompileError:
    try:
        return cel.compile_derived(expression, environment=cel.STORED)
    except CelCompileError as error:
        return _again(error)


def _again(error: CelCompileError) -> CelCompileError:
    """Return the same error without a traceback, which would keep frames alive and grow each time it is raised."""
    return CelCompileError(error.message, line=error.line, column=error.column, problem=error.problem)


def _attribute(value: DerivedValue) -> v1.DeviceAttribute:
    """Convert a derived value to an attribute; an empty list has no type and becomes one without a value."""
    if not isinstance(value, list):
        return v1.DeviceAttribute.model_validate({_FIELDS[type(value)]: _plain(value)})
    if not value:
        return v1.DeviceAttribute()
    return v1.DeviceAttribute.model_validate({f"{_FIELDS[type(value[0])]}s": [_plain(one) for one in value]})


def _plain(value: bool | int | str | Version) -> bool | int | str:
    return str(value) if isinstance(value, Version) else value
