"""Reads the slices of a whole cluster: plain devices become models when they are looked at."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final, TypeVar

from msgspec import Struct
from pydantic import ValidationError

from dra_kit.kubernetes.cel.device import Device as DeviceView
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.api_model import APIModel
from dra_kit.kubernetes.resource.v1 import (
    Device,
    DeviceAttribute,
    DeviceCapacity,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dra_kit.kubernetes.values.amount import INT64_MAX, INT64_MIN
from dra_kit.kubernetes.values.json import ObjectView

_VERSIONS: Final = 4096


class PlainAttributes(dict[str, v1.DeviceAttribute]):
    """Attributes that are known to be plain, each of them: who made them has looked."""

    __slots__ = ()


def has_plain_attributes(device: v1.Device) -> bool:
    """Return whether there is certainly no attribute that makes every expression fail, regardless of what it reads."""
    if type(device.attributes) is PlainAttributes:
        return True
    for attribute in device.attributes.values():  # noqa: SIM110 - asked of every device of a cluster: all() takes longer
        if not is_plain(attribute):
            return False
    return True


def is_plain(attribute: v1.DeviceAttribute) -> bool:
    """Return whether an attribute surely makes no expression fail that does not read it."""
    if len(attribute.model_fields_set) != 1:
        return False
    if attribute.string is not None:
        return attribute.string.isascii()
    if attribute.version is not None:
        return is_version(attribute.version)
    return attribute.int_ is not None or attribute.bool_ is not None


@lru_cache(maxsize=_VERSIONS)
def is_version(text: str) -> bool:
    """Whether a text is a version that expressions can see."""
    try:
        DeviceView(driver="", attributes={"version": {"version": text}})
    except ValueError:
        return False
    return True


_Model = TypeVar("_Model", bound=APIModel)
_NO_DEVICE: Final = vars(Device.model_construct())  # Device() would build what checks devices while this is imported
_NOTHING: Final[Mapping[str, Any]] = {}


class DeviceShape:
    """What many devices have in common: all but their names and the values of their attributes.

    Compared by identity; of one reader, devices that have this in common have the same form.

    Attributes:
        types: of the attributes by their names: ``string``, ``int``, ``bool`` or ``version``.
        capacity: of each device.
    """

    __slots__ = ("capacity", "types")

    def __init__(self, types: Mapping[str, str], capacity: dict[str, DeviceCapacity]) -> None:
        self.types: Mapping[str, str] = types
        self.capacity: dict[str, DeviceCapacity] = capacity


class PlainDevices(Struct, frozen=True):
    """Devices that have a name, plain attributes and capacities of one amount, and nothing else.

    Attributes:
        documents: as JSON; the name is a text, where there is one.
        forms: of each.
        attribute: makes the model of a plain attribute from its field in JSON and its value.
    """

    documents: Sequence[Mapping[str, Any]]
    forms: tuple[DeviceShape, ...]
    attribute: Callable[[str, Any], DeviceAttribute]


class LazySlice:
    """A slice whose devices become models when they are looked at.

    Args:
        name: of the ResourceSlice.
        spec: its spec; where the devices are usual, without them.
        usual: the devices, where all of them are usual.

    Attributes:
        name: as given.
        spec: as given.
        usual: as given.
    """

    def __init__(self, name: str, spec: ResourceSliceSpec, usual: PlainDevices | None = None) -> None:
        self.name = name
        self.spec = spec
        self.usual = usual

    @classmethod
    def of(cls, slice_: ResourceSlice) -> LazySlice:
        """Make the lazy form of a slice that is a model already."""
        return cls(slice_.metadata.name, slice_.spec)

    @classmethod
    def of_pool(cls, driver: str, pool: str, devices: Iterable[Device]) -> LazySlice:
        """Devices that are models and in no slice yet."""
        return cls("", ResourceSliceSpec(driver=driver, pool=ResourcePool(name=pool), devices=tuple(devices)))

    def __len__(self) -> int:
        return len(self.spec.devices if self.usual is None else self.usual.forms)

    @property
    def names(self) -> list[str]:
        """The names of the devices."""
        if self.usual is None:
            return [device.name for device in self.spec.devices]
        return [document.get("name", "") for document in self.usual.documents]

    def name_of(self, position: int) -> str:
        """Return the name of the device at a position."""
        if self.usual is None:
            return self.spec.devices[position].name
        name: str = self.usual.documents[position].get("name", "")
        return name

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The devices as models."""
        return self.spec.devices if self.usual is None else tuple(map(self._usual_device, range(len(self))))

    def values(self, attribute: str) -> list[object]:
        """Return what usual devices have by an attribute's name, None for those without; its type is in their forms."""
        found: list[object] = []
        for document in self.usual.documents if self.usual is not None else ():
            value = document.get("attributes", _NOTHING).get(attribute)
            found += (None,) if value is None else value.values()
        return found

    def _usual_device(self, position: int) -> Device:
        assert self.usual is not None  # noqa: S101 - the caller looked
        document = self.usual.documents[position]
        values = _NO_DEVICE.copy()
        for field, value in document.items():
            if field == "capacity":
                values[field] = self.usual.forms[position].capacity
            else:
                values[field] = self._attributes(self.usual, value) if field == "attributes" else value
        return construct_unchecked(Device, values, set(document))

    def _attributes(self, usual: PlainDevices, document: Mapping[str, Mapping[str, Any]]) -> PlainAttributes:
        found = PlainAttributes()
        for name, value in document.items():
            ((field, content),) = value.items()
            found[name] = usual.attribute(field, content)
        return found


def construct_unchecked(model: type[_Model], values: dict[str, Any], given: set[str]) -> _Model:
    """Make a model of values that have been checked: ``model_construct``, without its loop over all fields.

    Args:
        model: its class.
        values: of all fields.
        given: the names of those that have been given.
    """
    one = model.__new__(model)
    object.__setattr__(one, "__dict__", values)
    object.__setattr__(one, "__pydantic_fields_set__", given)
    object.__setattr__(one, "__pydantic_extra__", {})
    object.__setattr__(one, "__pydantic_private__", None)
    return one


_MODEL_FIELDS: Final = {"string": "string", "int": "int_", "bool": "bool_", "version": "version"}
"""Fields of values that are not lists, in JSON and in the model."""
_FIELDS: Final = frozenset({"name", "attributes", "capacity"})
"""Of a usual device."""
_NO_ATTRIBUTE: Final = vars(DeviceAttribute())
_NO_FIELDS: Final[dict[str, Any]] = {}


class SliceReader:
    """Reads slices as pydantic reads them, in a third of the time; one reader for many slices.

    A usual device, which has a name, plain attributes and capacities of one amount, is checked here, and becomes a
    model when it is looked at. A slice that has any other device goes to pydantic, so that what is wrong is reported
    in its words.
    """

    def __init__(self) -> None:
        self._forms: dict[Hashable, DeviceShape] = {}
        self._attributes: dict[tuple[str, Any], DeviceAttribute] = {}

    def read(self, document: ObjectView) -> LazySlice:
        """Read a slice.

        Args:
            document: JSON of resource.k8s.io/v1.

        Raises:
            pydantic.ValidationError: it does not have the shape of the API.
        """
        spec = document.get("spec") if type(document) is dict else None
        devices = spec.get("devices") if type(spec) is dict else None
        if type(spec) is dict and type(devices) is list:
            forms = []
            for device in devices:
                form = self._form(device)
                if form is None:
                    break
                forms.append(form)
            else:
                # None of them is in the way of what is wrong with the rest of the slice.
                rest = ResourceSlice.model_validate({**document, "spec": {**spec, "devices": ()}})
                return LazySlice(rest.metadata.name, rest.spec, PlainDevices(devices, tuple(forms), self._attribute))
        return LazySlice.of(ResourceSlice.model_validate(document))

    def _form(self, document: Any) -> DeviceShape | None:
        """Return the form of a usual device; None for any other."""
        if type(document) is not dict:
            return None
        name = document.get("name", "")
        attributes = document.get("attributes", _NO_FIELDS)
        capacity = document.get("capacity", _NO_FIELDS)
        if type(name) is not str or not name.isascii() or type(attributes) is not dict or type(capacity) is not dict:
            return None
        key: list[Hashable] = [len(document), len(attributes), *document, *attributes]
        for value in attributes.values():
            field = _plain_field(value)
            if not field:
                return None
            key.append(field)
        for amount, value in capacity.items():
            text = value.get("value") if type(value) is dict and len(value) == 1 else None
            if type(text) is not str:
                return None
            key += (amount, text)
        form = tuple(key)
        return self._forms.get(form) or self._new_form(form, document)

    def _new_form(self, key: Hashable, document: dict[str, Any]) -> DeviceShape | None:
        """Store and return a form that is new; None where names or amounts are not usual."""
        attributes, capacity = document.get("attributes", _NO_FIELDS), document.get("capacity", _NO_FIELDS)
        names = [*attributes, *capacity]
        if not document.keys() <= _FIELDS or not all(type(name) is str and name.isascii() for name in names):
            return None
        types = {name: next(iter(value)) for name, value in attributes.items()}
        try:
            amounts = {name: DeviceCapacity.model_validate(value) for name, value in capacity.items()}
        except ValidationError:
            return None
        form = self._forms[key] = DeviceShape(types, amounts)
        return form

    def _attribute(self, field: str, content: Any) -> DeviceAttribute:
        """Return the model of a plain attribute; equal attributes are one object."""
        known = self._attributes.get((field, content))
        if known is None:
            name = _MODEL_FIELDS[field]
            known = self._attributes[field, content] = construct_unchecked(
                DeviceAttribute, {**_NO_ATTRIBUTE, name: content}, {name}
            )
        return known


def _plain_field(value: Any) -> str:
    """Return the field of a plain attribute, with which every expression can be evaluated; empty for any other."""
    if type(value) is not dict or len(value) != 1:
        return ""
    ((field, content),) = value.items()
    if field == "string":
        is_plain = type(content) is str and content.isascii()
    elif field == "int":
        is_plain = type(content) is int and INT64_MIN <= content <= INT64_MAX
    elif field == "version":
        is_plain = type(content) is str and is_version(content)
    else:
        is_plain = field == "bool" and type(content) is bool
    return field if is_plain else ""
