"""Devices that exclude each other by counters, and API servers that store no counters.

With the gate DRAPartitionableDevices off (the default before Kubernetes 1.36) the API server drops ``consumesCounters``
without a word. What is left are devices like any others, and a scheduler gives all of them away: the whole card to one
claim and its halves to two others.
"""

from __future__ import annotations

from msgspec.structs import replace

from dra_kit.errors import ConfigurationError
from dra_kit.kube.client import Client
from dra_kit.kube.resources import RESOURCE_SLICES
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.api_model import ObjectMeta
from dra_kit.slices.planning import DesiredSlices, SliceFeatures, SlicePlan, generate_name


def counted_slice(steps: SlicePlan) -> v1.ResourceSlice | None:
    """Return a slice among those to be written whose devices consume counters, if there is one."""
    written = (*steps.creates, *steps.updates)
    return next((item for item in written if any(device.consumes_counters for device in item.spec.devices)), None)


async def stores_counters(client: Client, item: v1.ResourceSlice) -> bool:
    """Return whether the API server would store what the devices of a slice consume.

    It is asked to create the slice, and to store nothing: of one that is there it would keep what a gate that is off by
    now has let in.
    """
    metadata = ObjectMeta(
        generate_name=generate_name(0, 1, item.spec.driver, item.spec.node_name or ""),
        owner_references=item.metadata.owner_references,
    )
    asked = v1.ResourceSlice(metadata=metadata, spec=item.spec)
    answer = v1.ResourceSlice.model_validate(await client.create(RESOURCE_SLICES, asked.to_json(), dry_run=True))
    return any(device.consumes_counters for device in answer.spec.devices)


def without_counted(desired: DesiredSlices) -> DesiredSlices:
    """Return what can be published there: the devices that consume no counters."""
    pools = [
        replace(pool, counter_sets=(), devices=tuple(item for item in pool.devices if not item.consumes_counters))
        for pool in desired.pools
    ]
    return replace(desired, pools=tuple(pools))


def not_counted(desired: DesiredSlices, features: SliceFeatures) -> ConfigurationError:
    """Return the text about the others."""
    pools = [pool.name for pool in desired.pools if any(device.consumes_counters for device in pool.devices)]
    count = sum(bool(device.consumes_counters) for pool in desired.pools for device in pool.devices)
    devices = "1 device" if count == 1 else f"{count} devices"
    return ConfigurationError(
        f"{devices} of pool {', '.join(pools)} not published: they draw on counters, which the API server (Kubernetes "
        f"{features}) does not store, and devices that exclude each other would be given away together; switch the "
        "feature gate DRAPartitionableDevices on in kube-apiserver and kube-scheduler (it is by default from 1.36)",
        code="counters-dropped",
    )
