"""The configuration that a claim or DeviceClass can set in ``opaque.parameters``."""

import dra_kit as dra
from pydantic import Field


class DeviceConfig(dra.OpaqueConfig, api_version="network-driver.example.com/v1"):
    """The class name is the ``kind`` in manifests. Fields with a default are optional."""

    mtu: int = Field(1500, ge=576, le=9216)
