"""Matching of devices and requests by CEL expressions, with cached results."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from dra_kit.errors import AllocationError, CelCompileError, CelRuntimeError
from dra_kit.kubernetes.allocator.devices import AdvertisedDevice, AdvertisedSlice, published_attribute, published_names
from dra_kit.kubernetes.allocator.requests import RequestAlternative
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.cel.device import Device as DeviceView
from dra_kit.kubernetes.cel.environment import DeviceEnvironment
from dra_kit.kubernetes.cel.program import DerivedExpression, DerivedValue, Selector, compile_derived, compile_selector
from dra_kit.kubernetes.cel.tree import DeviceRead
from dra_kit.kubernetes.cel.values import Meter
from dra_kit.kubernetes.release import Change, KubernetesVersion
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.matching import Node, node_matches
from dra_kit.kubernetes.resource.slice_reader import DeviceShape
from dra_kit.kubernetes.resource.v1 import DeviceAttribute, DeviceCapacity
from dra_kit.kubernetes.values.quantity import Quantity
from dra_kit.kubernetes.values.semver import Version

_PROGRAMS: Final = 4096
"""Size of the cache of compiled expressions."""
_REMEMBERED: Final = 1024
"""Maximum cached results per device; there may be many expressions if each pod has its own."""
_Key = TypeVar("_Key")
_Result = TypeVar("_Result")
_Program = TypeVar("_Program", Selector, DerivedExpression)
_FIELDS: Final = {bool: "bool", int: "int", str: "string", Version: "version"}


class CelEvaluator:
    """Evaluates stored expressions with ``dra_kit.cel``, regardless of gates.

    ``meter`` receives the cost of each selector that is not cached. If it raises an exception, the search ends.

    Args:
        version: the release of the scheduler.
        meter: see above.
    """

    def __init__(self, version: KubernetesVersion, meter: Meter | None = None) -> None:
        self.meter = meter
        self.environment: DeviceEnvironment = DeviceEnvironment(version=version)
        self._devices: WeakKeyDictionary[AdvertisedDevice, _Evaluations] = WeakKeyDictionary()

    def selects(self, expression: str, device: AdvertisedDevice, *, sees_sharing: bool) -> bool:
        """Whether a selector is true for a device.

        Without ``sees_sharing``, ``device.allowMultipleAllocations`` is false instead of the published value.

        Raises:
            CelCompileError: the expression is invalid.
            CelRuntimeError: it fails for this device.
        """
        return self._of(device).selects(expression, self.meter, sees_sharing=sees_sharing)

    def selector_reads(self, expression: str) -> tuple[DeviceRead, ...] | None:
        """Return the reads of a selector; None if they are unknown, or it does not compile."""
        program = _compiled_selector(expression, self.environment)
        return None if isinstance(program, CelCompileError) else program.reads

    def derived_reads(self, expression: str) -> tuple[DeviceRead, ...] | None:
        """Return the reads of the expression of a derived attribute; None as for a selector."""
        program = _compiled_derived(expression, self.environment)
        return None if isinstance(program, CelCompileError) else program.reads

    def derive(self, expression: str, device: AdvertisedDevice) -> v1.DeviceAttribute:
        """Return the value of a derived attribute of a device; an empty list has no value.

        Raises:
            CelCompileError: the expression is invalid, or attributes cannot have its type.
            CelRuntimeError: it fails for this device.
        """
        return self._of(device).derive(expression)

    def view(self, device: AdvertisedDevice, *, sees_sharing: bool) -> DeviceView:
        """Return the device for an expression; see ``selects``.

        Raises:
            CelRuntimeError: the value of an attribute is invalid.
        """
        return self._of(device).view(sees_sharing=sees_sharing)

    def _of(self, device: AdvertisedDevice) -> _Evaluations:
        evaluations = self._devices.get(device)
        if evaluations is None:
            # without a reference to the device, which would never be freed
            evaluations = self._devices[device] = _Evaluations(device.device, device.id.driver, self.environment)
        return evaluations


class _Evaluations:
    """The cached results of one device."""

    def __init__(self, device: v1.Device, driver: str, environment: DeviceEnvironment) -> None:
        self._device = device
        self._environment = environment
        self._driver = driver
        self._views: dict[bool, DeviceView] = {}
        self._selections: dict[tuple[str, bool], bool | CelRuntimeError] = {}
        self._attributes: dict[str, v1.DeviceAttribute | CelRuntimeError] = {}

    def selects(self, expression: str, meter: Meter | None, *, sees_sharing: bool) -> bool:
        key = expression, sees_sharing
        known = self._selections.get(key)
        if known is None:
            try:
                program = _valid(_compiled_selector(expression, self._environment))
                known = program.matches(self.view(sees_sharing=sees_sharing), meter)
            except CelRuntimeError as error:
                known = error
            _remember(self._selections, key, known)
        if isinstance(known, CelRuntimeError):
            raise CelRuntimeError(known.message, kind=known.kind, key=known.key)
        return known

    def derive(self, expression: str) -> v1.DeviceAttribute:
        known = self._attributes.get(expression)
        if known is None:
            try:
                program = _valid(_compiled_derived(expression, self._environment))
                known = _attribute(program.value(self.view(sees_sharing=True)))
            except CelRuntimeError as error:
                known = error
            _remember(self._attributes, expression, known)
        if isinstance(known, CelRuntimeError):
            raise CelRuntimeError(known.message, kind=known.kind, key=known.key)
        return known

    def view(self, *, sees_sharing: bool) -> DeviceView:
        view = self._views.get(sees_sharing)
        if view is None:
            try:
                view = DeviceView(
                    driver=self._driver,
                    attributes={name: value.to_json() for name, value in self._device.attributes.items()},
                    capacity={name: capacity.value for name, capacity in self._device.capacity.items()},
                    allow_multiple_allocations=sees_sharing and bool(self._device.allow_multiple_allocations),
                    version=self._environment.version,
                )
            except ValueError as error:
                raise CelRuntimeError(str(error)) from error
            self._views[sees_sharing] = view
        return view


def _remember(results: dict[_Key, _Result], key: _Key, result: _Result) -> None:
    if len(results) >= _REMEMBERED:
        results.clear()
    results[key] = result


def _valid(program: _Program | CelCompileError) -> _Program:
    if isinstance(program, CelCompileError):
        raise _without_traceback(program)
    return program


@lru_cache(maxsize=_PROGRAMS)
def _compiled_selector(expression: str, environment: DeviceEnvironment) -> Selector | CelCompileError:
    try:
        return compile_selector(expression, environment=environment)
    except CelCompileError as error:
        return _without_traceback(error)


@lru_cache(maxsize=_PROGRAMS)
def _compiled_derived(expression: str, environment: DeviceEnvironment) -> DerivedExpression | CelCompileError:
    try:
        return compile_derived(expression, environment=environment)
    except CelCompileError as error:
        return _without_traceback(error)


def _without_traceback(error: CelCompileError) -> CelCompileError:
    """Return the same error without a traceback, which would keep frames alive and grow with each raise."""
    return CelCompileError(error.message, line=error.line, column=error.column, problem=error.problem)


def _attribute(value: DerivedValue) -> v1.DeviceAttribute:
    """Convert a derived value to an attribute; an empty list becomes an attribute without a value."""
    if not isinstance(value, list):
        return v1.DeviceAttribute.model_validate({_FIELDS[type(value)]: _plain(value)})
    if not value:
        return v1.DeviceAttribute()
    return v1.DeviceAttribute.model_validate({f"{_FIELDS[type(value[0])]}s": [_plain(one) for one in value]})


def _plain(value: bool | int | str | Version) -> bool | int | str:
    return str(value) if isinstance(value, Version) else value


class DeviceMatcher:
    """Decides for one node which devices match a choice, lazily: only requested devices are evaluated."""

    def __init__(self, node: Node, gates: AllocatorRules, evaluator: CelEvaluator) -> None:
        self._node = node
        self._gates = gates
        self._sees_sharing = gates.variant.knows_sharing
        self._evaluator = evaluator

    def matches(self, choice: RequestAlternative, device: AdvertisedDevice) -> bool:
        """Whether the class's selectors, then the request's, and the device's node scope allow it.

        Raises:
            AllocationError: ``cel-compile``, ``cel-runtime``, ``node-selector-invalid``.
        """
        if device.device.binding_conditions and not self._gates.device_binding_and_status:
            return False
        where = f"class {choice.device_class.metadata.name}"
        if not self._all_true(choice, device, choice.class_selectors, where):
            return False
        if choice.selectors and not self._all_true(choice, device, choice.selectors, f"claim {choice.claim}"):
            return False
        if not device.spec.per_device_node_selection:
            return True
        try:
            return node_matches(self._node, *device.node_scope)
        except ValueError as error:
            raise _error(f"device {device.id}: {error}", choice, device, kind="node-selector-invalid") from error

    def attribute(self, choice: RequestAlternative, device: AdvertisedDevice, name: str) -> DeviceAttribute | None:
        """Return the attribute for constraints: a derived one of the choice, else the device's own.

        Raises:
            AllocationError: ``derived-compile``, ``derived-runtime``.
        """
        expression = choice.derived.get(name)
        if expression is None:
            return published_attribute(device, name)
        try:
            return self._evaluator.derive(expression, device)
        except CelCompileError as error:
            text = f"compile derived attribute {name} failed: {error}"
            raise _error(text, choice, device, kind="derived-compile") from error
        except CelRuntimeError as error:
            text = f"evaluate derived attribute {name} on device {device.id} failed: {error}"
            raise _error(text, choice, device, kind="derived-runtime") from error

    def _all_true(
        self, choice: RequestAlternative, device: AdvertisedDevice, expressions: Iterable[str], where: str
    ) -> bool:
        for index, expression in enumerate(expressions):
            try:
                if not self._evaluator.selects(expression, device, sees_sharing=self._sees_sharing):
                    return False
            except CelCompileError as error:
                text = f"{where}: selector #{index}: CEL compile error: {error}"
                raise _error(text, choice, device, kind="cel-compile") from error
            except CelRuntimeError as error:
                named = self._gates.has(Change.RUNTIME_ERRORS_NAME_DEVICES)
                at, text = (f" on device {device.id}", _with_hint(error)) if named else ("", error.message)
                text = f"{where}: selector #{index}{at}: CEL runtime error: {text}"
                raise _error(text, choice, device, kind="cel-runtime") from error
        return True


def _error(text: str, choice: RequestAlternative, device: AdvertisedDevice, *, kind: str) -> AllocationError:
    return AllocationError(
        text,
        kind=kind,
        claim=choice.claim,
        request=choice.name,
        device_class=choice.device_class.metadata.name,
        device=str(device.id),
    )


def _with_hint(error: CelRuntimeError) -> str:
    """Return the message with the hint of kube-scheduler."""
    if error.kind != "no-such-key":
        return error.message
    return (
        f"{error.message}. consider using CEL optional chaining (.? followed by orValue()) "
        "or guarding the check with has() for optional fields"
    )


Likeness: TypeAlias = tuple[Hashable, ...]
"""The values that an expression reads of a device, with its driver first."""
_Value = TypeVar("_Value")
_VALUES: Final = 2
"""Position of the first attribute value in the likeness of a plain device, after driver and shape."""
_NOTHING: Final[Mapping[str, Any]] = {}


def likeness_of(device: AdvertisedDevice, reads: Iterable[DeviceRead] | None, *, sees_sharing: bool) -> Likeness | None:
    """Return the values of a device that an expression reads; None if they are unknown or ambiguous.

    Without ``sees_sharing``, ``device.allowMultipleAllocations`` is false instead of the published value.
    """
    if reads is None:
        return None
    driver = device.id.driver
    found: list[Hashable] = [driver]
    for field, domain, name in reads:
        if field == "attributes":
            attributes = _attributes(device, published_names(driver, domain, name))
            if len(attributes) > 1:
                return None
            found.append(attributes[0] if attributes else None)
        elif field == "capacity":
            capacities = _published(_capacity(device), published_names(driver, domain, name))
            if len(capacities) > 1:
                return None
            found.append(str(capacities[0].value) if capacities else None)
        elif field == "allowMultipleAllocations":
            found.append(sees_sharing and device.shareable)
    return tuple(found)


def _capacity(device: AdvertisedDevice) -> Mapping[str, DeviceCapacity]:
    return device.device.capacity if device.form is None else device.form.capacity


def _attributes(device: AdvertisedDevice, names: Iterable[str]) -> list[Hashable]:
    """Return the attributes with these names, in a form that is equal if expressions see no difference."""
    if device.form is None:
        return [tuple(vars(one).values()) for one in _published(device.device.attributes, names)]
    return [tuple(one.items()) for one in _published(device.document.get("attributes", _NOTHING), names)]


def _published(values: Mapping[str, _Value], names: Iterable[str]) -> list[_Value]:
    return [values[name] for name in names if name in values]


class SliceLikeness:
    """What expressions read of the plain devices of a slice, without building models.

    With :class:`UsualGlimpse`, ``explain`` of 5,000 nodes of 8 devices takes 0.7 s instead of 1.4 s
    (``python -m benchmarks.explain``).
    """

    def __init__(self, reads: Iterable[DeviceRead]) -> None:
        self._attributes = sorted({(domain, name) for field, domain, name in reads if field == "attributes"})
        self._names: dict[str, tuple[str, ...]] = {}

    def of(self, slice_: AdvertisedSlice) -> tuple[Likeness, ...]:
        """Return for each plain device driver, shape and the values of the attributes that are read."""
        usual, driver = slice_.published.usual, slice_.spec.driver
        assert usual is not None  # noqa: S101 - the caller checked
        return tuple(zip(repeat(driver), usual.forms, *map(slice_.published.values, self.names(driver))))

    def names(self, driver: str) -> tuple[str, ...]:
        """Return the possible names of the attributes for a driver, in the order of the values."""
        names = self._names.get(driver)
        if names is None:
            names = self._names[driver] = tuple(
                dict.fromkeys(key for attribute in self._attributes for key in published_names(driver, *attribute))
            )
        return names


class UsualGlimpse:
    """What one expression reads of plain devices of a driver, as a part of what several expressions read.

    Attributes:
        likeness: maps the likeness for all expressions to the likeness for this one.
    """

    def __init__(self, reads: Iterable[DeviceRead], likeness: SliceLikeness, driver: str) -> None:
        reads = tuple(reads)
        names = likeness.names(driver)
        self._reads = reads
        self._driver = driver
        self._places = [
            (_VALUES + names.index(key), key, domain, name)
            for field, domain, name in reads
            if field == "attributes"
            for key in published_names(driver, domain, name)
        ]
        self.likeness: Callable[[Likeness], Likeness] = itemgetter(0, 1, *(place for place, _, _, _ in self._places))
        self._capacity: dict[DeviceShape, dict[str, dict[str, Quantity]]] = {}

    def view(self, seen: Likeness) -> DeviceView | None:
        """Create the device with this likeness for the expression; None if it reads a version, or what has two values.

        A name has two values if it is published with and without the driver as its domain.
        """
        form = seen[1]
        assert isinstance(form, DeviceShape)  # noqa: S101 - SliceLikeness put it there
        attributes: dict[str, dict[str, Any]] = {}
        for place, key, domain, name in self._places:
            if (value := seen[place]) is not None:
                if form.types[key] == "version" or name in attributes.get(domain, _NOTHING):
                    return None
                attributes.setdefault(domain, {})[name] = value
        capacity = self._capacity.get(form)
        if capacity is None:
            capacity = {}
            for field, domain, name in self._reads:
                names = published_names(self._driver, domain, name) if field == "capacity" else ()
                published = _published(form.capacity, names)
                if len(published) > 1:
                    return None
                if published:
                    capacity.setdefault(domain, {})[name] = published[0].value
            self._capacity[form] = capacity
        return DeviceView.of_scalars(self._driver, attributes, capacity)
