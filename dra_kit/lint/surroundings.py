"""What the files are checked against besides the API: devices, classes, and a driver's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from dra_kit.author.config import ConfigDecoder
from dra_kit.diagnosis.selector_mistakes.device_rules import Advertised
from dra_kit.kubernetes.release import FeatureGates
from dra_kit.kubernetes.resource import v1


class Surroundings(Struct, frozen=True):
    """All that is known beside the files.

    Attributes:
        gates: of the API server.
        advertised: the devices that are known; None when none are.
        classes: DeviceClasses that the cluster has, by name.
        complete: whether ``classes`` are all classes of the cluster.
        configs: what reads opaque configuration, by driver.
    """

    gates: FeatureGates = field(default_factory=FeatureGates.default)
    advertised: Advertised | None = None
    classes: Mapping[str, v1.DeviceClass] = field(default_factory=dict)
    complete: bool = False
    configs: Mapping[str, ConfigDecoder[Any]] = field(default_factory=dict)
