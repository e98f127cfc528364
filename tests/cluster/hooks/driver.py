"""Gives containers of a claim the first CPU, if the file ``open`` exists; hangs while others exist."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import dra_kit as dra


class Cpus(dra.DeviceProvider):
    """The first CPU, which every machine has, as two devices."""

    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [dra.Device(name="cpu-0"), dra.Device(name="cpu-0-again")]


class Reserve(dra.Preparer):
    """Decides; nothing is done before a container starts."""

    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared(state="0", metadata=dra.DeviceMetadata())


class Pin(dra.PodHooks):
    """Carries out what was decided, and tells the container the name of its network namespace."""

    async def pod_starts(self, pod: dra.RuntimePod, devices: Sequence[dra.HeldDevice]) -> list[dra.DeviceFacts]:
        if pod.name == "waits" and Path("waits").exists():
            await asyncio.Event().wait()
        name = pod.netns.name if pod.netns is not None else ""
        facts = dra.DeviceMetadata(network_data=dra.NetworkDeviceData(interface_name=name[:15]))
        return [dra.DeviceFacts(device=device, metadata=facts) for device in devices]

    def container_starts(
        self, pod: dra.RuntimePod, container: dra.RuntimeContainer, devices: Sequence[dra.HeldDevice]
    ) -> dra.ContainerAdjustment:
        if not Path("open").exists():
            raise dra.TransientError("the gate is closed")
        if pod.name == "blocks" and Path("blocks").exists():
            threading.Event().wait()
        return dra.ContainerAdjustment(cpus=",".join(str(device.state) for device in devices), env={"PINNED": "yes"})


driver = dra.Driver("hooks.example", provider=Cpus(), preparer=Reserve(), pod_hooks=Pin())
