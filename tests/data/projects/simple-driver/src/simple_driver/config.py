"""What a claim or a DeviceClass may put under ``opaque.parameters``."""

from typing import Literal

import dra_kit as dra


class DeviceConfig(dra.OpaqueConfig, api_version="simple-driver.example.com/v1"):
    """The class name is the kind; every field with a default may be left out."""

    mode: Literal["standard", "fast"] = "standard"
