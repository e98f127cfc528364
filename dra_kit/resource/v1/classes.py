"""``DeviceClass``: a named choice of devices with configuration."""

from __future__ import annotations

from pydantic import Field

from dra_kit.resource.v1.base import APIModel, ObjectMeta
from dra_kit.resource.v1.claims import DeviceSelector, OpaqueDeviceConfiguration


class DeviceClassConfiguration(APIModel, frozen=True):
    """Configuration that every claim of the class gets."""

    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClassSpec(APIModel, frozen=True):
    """A device belongs to the class if all selectors match it."""

    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[DeviceClassConfiguration, ...] = ()
    extended_resource_name: str | None = None


class DeviceClass(APIModel, frozen=True):
    """What requests refer to by name."""

    api_version: str = "resource.k8s.io/v1"
    kind: str = "DeviceClass"
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: DeviceClassSpec = Field(default_factory=DeviceClassSpec)
