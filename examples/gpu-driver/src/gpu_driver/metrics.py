"""Metrics of the node: which devices are prepared, by kind."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import dra_kit as dra
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gpu_driver.devices import names

KINDS = ("gpu", "mig", "vfio", "share", "monitor")


class PreparedDevices(Collector):
    """``nvidia_dra_prepared_devices``, a name and labels that dashboards for NVIDIA's driver know.

    A device that several claims share counts once for each; a part of one is of kind ``share``.
    """

    def __init__(self, context: dra.Context[Any]) -> None:
        self._context = context

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the number of prepared devices of each kind, counted now from what is written down."""
        found = Counter(
            names.kind(device) if share is None else "share"
            for claim in self._context.prepared().values()
            for _, device, share in claim.states
        )
        family = GaugeMetricFamily(
            "nvidia_dra_prepared_devices",
            "Devices that are prepared for claims on this node, by kind",
            labels=("node", "driver", "device_type"),
        )
        for kind in KINDS:
            family.add_metric((self._context.node.name, self._context.driver, kind), found[kind])
        yield family
