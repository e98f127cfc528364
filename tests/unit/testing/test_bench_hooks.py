"""Pod hooks in unit tests of a driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.errors import ConfigurationError, InvalidPrepared, TransientError
from dra_kit.testing import unit


class Slots(dra.DeviceProvider):
    def discover(self) -> Iterable[Sequence[dra.Device]]:
        yield []


class Stores(dra.Preparer):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared(state=device.name.removeprefix("cpu-"), metadata=dra.DeviceMetadata())


class Pins(dra.PodHooks):
    def startup(self, context: dra.Context) -> None:
        self.network = ""

    def synchronize(self, pods: Sequence[dra.RuntimePod]) -> list[dra.ContainerUpdate]:
        cpus = ",".join(str(device.state) for pod in pods for device in pod.devices)
        return [dra.ContainerUpdate(container=item.id, cpus=cpus) for pod in pods for item in pod.containers]

    def pod_starts(self, pod: dra.RuntimePod, devices: Sequence[dra.HeldDevice]) -> Iterable[dra.DeviceFacts]:
        if pod.name == "broken":
            raise OSError("no network")
        for device in devices:
            yield dra.DeviceFacts(device=device, metadata=dra.DeviceMetadata(attributes={"pod": str(pod.netns)}))

    async def container_starts(
        self, pod: dra.RuntimePod, container: dra.RuntimeContainer, devices: Sequence[dra.HeldDevice]
    ) -> dra.ContainerAdjustment:
        await self.runtime.update([dra.ContainerUpdate(container="other", cpus="7")])
        return dra.ContainerAdjustment(cpus=",".join(str(device.state) for device in devices))

    def pod_stops(self, pod: dra.RuntimePod, devices: Sequence[dra.HeldDevice]) -> None:
        self.network = f"closed {pod.name}"


def pinning(preparer: dra.Preparer | None = None) -> dra.Driver:
    return dra.Driver("dra.cpu", provider=Slots(), preparer=preparer or Stores(), pod_hooks=Pins())


CPUS = [dra.Device(name="cpu-2"), dra.Device(name="cpu-3")]


async def test_hooks_get_devices_of_prepared_claims() -> None:
    driver = pinning()
    async with unit(driver) as bench:
        await bench.prepare("fast", CPUS)
        await bench.prepare("slow", [dra.Device(name="cpu-4")])
        [first, second, third] = await bench.pod_starts()
        assert [str(item.device.state) for item in (first, second, third)] == ["2", "3", "4"]
        assert [item.device.advertised for item in (first, third)] == [CPUS[0], dra.Device(name="cpu-4")]
        everything = await bench.container_starts()
        assert everything is not None
        assert everything.cpus == "2,3,4"
        fast = bench.pod("web", claims=["fast"])
        one = await bench.container_starts("app", pod=fast, devices=["cpu-3"])
        assert one == dra.ContainerAdjustment(cpus="3")
        assert bench.container_updates == [dra.ContainerUpdate(container="other", cpus="7")] * 2
        await bench.pod_stops(fast)
    assert isinstance(driver.pod_hooks, Pins)


async def test_hooks_can_report_the_status_of_a_share() -> None:
    shared = dra.Device(name="cpu-2", allow_multiple_allocations=True)
    async with unit(pinning()) as bench:
        await bench.prepare("fast", [shared])
        await bench.prepare("slow", [shared])
        first, second = await bench.pod_starts()
    assert first.device.share_id != second.device.share_id


def test_hooks_are_called_in_a_plain_function() -> None:
    with unit(pinning()) as bench:
        bench.prepare("fast", CPUS)
        app = dra.RuntimeContainer(id="c1", name="app", state="running")
        assert bench.synchronize(bench.pod(containers=[app])) == [dra.ContainerUpdate(container="c1", cpus="2,3")]
        assert len(bench.pod_starts("web")) == 2
        adjustment = bench.container_starts(devices=["cpu-2"])
        assert adjustment is not None
        assert adjustment.cpus == "2"
        bench.pod_stops()
        bench.unprepare("fast")
        assert bench.pod().devices == ()


async def test_errors_are_those_of_a_node() -> None:
    class Bare(dra.Preparer):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            return dra.Prepared(state="2")

    async with unit(pinning(Bare())) as bench:
        await bench.prepare("fast", CPUS)
        with pytest.raises(TransientError, match=r"Pins\.pod_starts raised OSError: no network at .*test_bench_hooks"):
            await bench.pod_starts("broken")
        with pytest.raises(InvalidPrepared, match="pod_starts returned metadata of device node-1/cpu-2, but prepare"):
            await bench.pod_starts()
        ended = bench.pod("web")
        await bench.unprepare("fast")
        with pytest.raises(TransientError, match="claim default/fast was released"):
            await bench.pod_starts(ended)


async def test_update_of_the_wrong_type_is_rejected_as_on_a_node() -> None:
    class Careless(dra.PodHooks):
        def container_starts(self, pod: dra.RuntimePod, container: dra.RuntimeContainer, devices: Any) -> None:
            self.runtime.update([dra.ContainerAdjustment(cpus="7")])  # type: ignore[list-item]

    driver = dra.Driver("dra.cpu", provider=Slots(), preparer=Stores(), pod_hooks=Careless())
    async with unit(driver) as bench:
        await bench.prepare("fast", CPUS)
        with pytest.raises(InvalidPrepared, match=r"runtime\.update got a ContainerAdjustment; give it dra_kit\.Cont"):
            await bench.container_starts()


async def test_driver_without_hooks_has_none_to_call() -> None:
    async with unit(Stores()) as bench:
        with pytest.raises(ConfigurationError, match=r"has no pod hooks to call; give unit\(…\) a driver with"):
            await bench.pod_starts()


async def test_code_of_the_driver_sees_prepared_claims() -> None:
    class Counts(Pins):
        def pod_stops(self, pod: dra.RuntimePod, devices: Sequence[dra.HeldDevice]) -> None:
            self.seen = [
                (claim.name, list(claim.states.values()), [item.name for item in claim.consumers])
                for claim in self.context.prepared().values()
            ]

    hooks = Counts()
    driver = dra.Driver("cpu.example", provider=Slots(), preparer=Stores(), pod_hooks=hooks)
    async with unit(driver) as bench:
        await bench.prepare("b", [dra.Device(name="cpu-1")], reserved_for="web")
        await bench.prepare("a", [dra.Device(name="cpu-2")])
        await bench.pod_stops()
        assert hooks.seen == [("a", ["2"], []), ("b", ["1"], ["web"])]
        await bench.unprepare("b")
        await bench.pod_stops()
        assert hooks.seen == [("a", ["2"], [])]
