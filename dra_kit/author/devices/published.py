"""A device as an author describes it, from what is published of it: all that another process sees."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from typing_extensions import TypeVar

from dra_kit.author.devices.device import Device
from dra_kit.author.devices.vocabulary import AttributeValue, DeviceCapacity
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.values.semver import Version

DeviceT = TypeVar("DeviceT", bound=Device)


def from_published(cls: type[DeviceT], device: v1.Device) -> DeviceT:
    """Return the device in a class without fields of its own.

    Raises:
        ValueError: it has something that this release does not know.
    """
    data: dict[str, Any] = {
        name: value
        for name, value in device.model_dump(by_alias=False, exclude_none=True).items()
        if name in cls.model_fields
    }
    data["attributes"] = {name: _value(attribute) for name, attribute in device.attributes.items()}
    data["capacity"] = {
        name: DeviceCapacity.model_validate(capacity.model_dump(by_alias=False, exclude_none=True), strict=False)
        for name, capacity in device.capacity.items()
    }
    for taint in data.get("taints", ()):
        if "time_added" in taint:
            taint["time_added"] = datetime.fromisoformat(taint["time_added"])
    for consumption in data.get("consumes_counters", ()):
        consumption["counters"] = {name: counter["value"] for name, counter in consumption["counters"].items()}
    return cls.model_validate(data, strict=False)


def _value(attribute: v1.DeviceAttribute) -> AttributeValue:
    fields = attribute.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True)
    kind, value = next(iter(fields.items()))
    match kind:
        case "version":
            return Version(value)
        case "versions":
            return [Version(item) for item in value]
        case _:
            known: AttributeValue = value
            return known
