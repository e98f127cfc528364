"""What a claim or a DeviceClass may put under ``opaque.parameters``."""

import dra_kit as dra
from pydantic import Field


class DeviceConfig(dra.OpaqueConfig, api_version="network-driver.example.com/v1"):
    """The class name is the kind; every field with a default may be left out."""

    mtu: int = Field(1500, ge=576, le=9216)
