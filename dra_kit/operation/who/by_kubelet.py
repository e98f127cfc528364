"""Who has which device, by the kubelet's word."""

from __future__ import annotations

from dra_kit.operation.who.device_use import DeviceUse
from dra_kit.plugin.pod_resources import HeldDevice


def held_use(held: HeldDevice) -> DeviceUse:
    """Return what the kubelet says of a device, as a row."""
    return DeviceUse(
        driver=held.driver,
        pool=held.pool,
        device=held.device,
        share=held.share,
        namespace=held.namespace,
        claim=held.claim,
        pod=held.pod,
        container=held.container,
    )
