"""The configuration that a claim or DeviceClass can set in ``opaque.parameters``."""

from typing import Literal

import dra_kit as dra


class DeviceConfig(dra.OpaqueConfig, api_version="modes-driver.example.com/v1"):
    """The class name is the ``kind`` in manifests. Fields with a default are optional."""

    mode: Literal["standard", "fast"] = "standard"
