"""Devices of a made-up driver, as published on nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

import dra_kit as dra
from dra_kit.diagnosis.device_order import PublishedDevices
from dra_kit.diagnosis.workload import ClaimWorkload, RequestKind, default_workload, kinds_of
from dra_kit.kubernetes.release import DEFAULT, Release
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.api_model import ObjectMeta
from dra_kit.kubernetes.resource.matching import Node
from dra_kit.node.slices import desired_pool
from dra_kit.slices.planning import DesiredSlices, plan

DRIVER = "dra.pizza"
NODE = "node-1"


def slices(*pools: dra.Pool[dra.Device], node: str = NODE, driver: str = DRIVER) -> list[v1.ResourceSlice]:
    """Return the slices of the pools, as the publisher plans them."""
    desired = DesiredSlices(driver, None, tuple(desired_pool(pool, node) for pool in pools))
    return [
        v1.ResourceSlice(metadata=ObjectMeta(name=f"{each.metadata.generate_name}tmpl{number}"), spec=each.spec)
        for number, each in enumerate(plan(desired, [], version=DEFAULT).creates)
    ]


def published(*pools: dra.Pool[dra.Device], classes: Iterable[v1.DeviceClass] = ()) -> PublishedDevices:
    """Return the devices of pools on one node."""
    return PublishedDevices(slices(*pools), classes, DRIVER, [Node(NODE)], Release.of())


def plain(devices: Sequence[dra.Device], name: str | None = None) -> dra.Pool[dra.Device]:
    """Return a pool without counters."""
    return dra.Pool(name=name, devices=devices)


def cards(number: int, *, sizes: Sequence[int] = (4, 2, 1)) -> dra.Pool[dra.Device]:
    """Return cards of four slices each, with the parts of each size in this order."""
    sets = [dra.CounterSet(name=f"card-{card}", counters=dict.fromkeys(_SLICES, 1)) for card in range(number)]
    parts = [
        dra.Device(
            name=f"card-{card}-{size}-{start}",
            attributes={"size": size},
            capacity={"memory": f"{10 * size}Gi"},
            consumes_counters=[
                dra.DeviceCounterConsumption(
                    counter_set=f"card-{card}", counters=dict.fromkeys(_SLICES[start : start + size], 1)
                )
            ],
        )
        for card in range(number)
        for size in sizes
        for start in range(0, 4, size)
    ]
    return dra.Pool(counter_sets=sets, devices=parts)


_SLICES = [f"slice-{place}" for place in range(4)]


def kinds(devices: PublishedDevices, workload: ClaimWorkload | None = None) -> list[RequestKind]:
    """Return the kinds of claims of a workload, by default of that made from the devices."""
    return kinds_of(workload or default_workload(devices), devices)


_attributes = st.fixed_dictionaries(
    {},
    optional={
        "numa": st.integers(0, 2),
        "kind": st.sampled_from(["pan", 'th"in']),
        "warm": st.booleans(),
        "resource.kubernetes.io/numaNode": st.integers(0, 1),
    },
)
ovens = st.lists(
    st.builds(
        lambda found, size, shared: {
            "attributes": found,
            "capacity": {} if size is None else {"memory": f"{size}Gi"},
            "allow_multiple_allocations": shared or None,
        },
        _attributes,
        st.sampled_from([None, 1, 2, 4, 8]),
        st.just(value=False),
    ),
    min_size=2,
    max_size=7,
).map(lambda found: [dra.Device(name=f"oven-{place}", **fields) for place, fields in enumerate(found)])
"""Some devices with and without attributes and capacity."""
