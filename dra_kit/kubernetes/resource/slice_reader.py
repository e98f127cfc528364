"""Slices whose devices become models when they are looked at: a cluster has many, and most are of a few forms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar

from msgspec import Struct

from dra_kit.resource.plain_attributes import PlainAttributes
from dra_kit.resource.v1 import (
    APIModel,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)

_Model = TypeVar("_Model", bound=APIModel)

_NO_DEVICE: Final = vars(Device.model_construct())  # Device() would build what checks devices while this is imported
_NOTHING: Final[Mapping[str, Any]] = {}


class Form:
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


class UsualDevices(Struct, frozen=True):
    """Devices that have a name, plain attributes and capacities of one amount, and nothing else.

    Attributes:
        documents: as JSON; the name is a text, where there is one.
        forms: of each.
        attribute: makes the model of a plain attribute from its field in JSON and its value.
    """

    documents: Sequence[Mapping[str, Any]]
    forms: tuple[Form, ...]
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

    def __init__(self, name: str, spec: ResourceSliceSpec, usual: UsualDevices | None = None) -> None:
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
        return made(Device, values, set(document))

    def _attributes(self, usual: UsualDevices, document: Mapping[str, Mapping[str, Any]]) -> PlainAttributes:
        found = PlainAttributes()
        for name, value in document.items():
            ((field, content),) = value.items()
            found[name] = usual.attribute(field, content)
        return found


def made(model: type[_Model], values: dict[str, Any], given: set[str]) -> _Model:
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
