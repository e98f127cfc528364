"""A driver's pod hooks, over the socket of a container runtime."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.diagnosis.status import status_text, statuses
from dra_kit.errors import Unavailable
from dra_kit.kubelet.cdi.edits import build_claim_spec
from dra_kit.kubelet.nri import CallError
from dra_kit.kubelet.nri import messages as pb
from dra_kit.kubernetes.resource import v1
from dra_kit.node import pod_hooks
from dra_kit.node.agent import NodeAgent
from tests.support.api import eventually
from tests.support.nri_runtime import Runtime
from tests.support.probes import ask
from tests.unit.node.drivers import Waiter
from tests.unit.node.pod_hooks.runtime_node import (
    OfAllPods,
    Recorder,
    container,
    creates,
    hooked,
    impatient,
    missing,
    pod,
    raising,
    socket,
)
from tests.unit.node.role import DRIVER, Node


async def metrics_text(agent: NodeAgent) -> str:
    """Return the metrics, which are read in the loop of the agent."""
    return (await asyncio.to_thread(agent._metrics.text)).decode()


@asynccontextmanager
async def connected(
    node: Node, hooks: dra.PodHooks[Any], runtime: Runtime, preparer: dra.Preparer[Any] | None = None, **settings: Any
) -> AsyncIterator[NodeAgent]:
    """Run the driver until the end of the block; it is connected to the runtime."""
    async with node.running(hooked(hooks, preparer), **settings) as agent:
        await runtime.until(1)
        yield agent


async def test_hooks_get_the_devices_that_the_pod_holds(node: Node) -> None:
    hooks, web = Recorder(), pod()
    async with Runtime(socket(node)) as runtime, connected(node, hooks, runtime):
        lunch = node.claim(devices=["pizza-1"], reserved_for=["web"])
        await node.prepare(lunch)
        await runtime.pod_event("RunPodSandbox", web)
        await creates(runtime, web, container(node, web, lunch))
        await runtime.pod_event("StopPodSandbox", web)
    assert hooks.calls == [
        "synchronize", "pod_starts web", "container_starts web app pizza-1", "pod_stops web pizza-1",
    ]  # fmt: skip
    [device], [same] = hooks.devices
    assert device == same
    assert (device.name, device.pool, device.claim, device.request) == ("pizza-1", "node-1", lunch, "pizza")
    assert (device.state, [item.uid for item in device.consumers]) == ({"cpus": "1"}, ["web"])
    assert device.advertised is not None
    assert device.advertised.name == "pizza-1"
    started = hooks.pods[0]
    assert (started.netns, started.cgroup_parent) == (Path("/var/run/netns/web"), "/kubepods/pod1")
    assert str(started) == "default/web"


async def test_pods_without_devices_are_left_alone(node: Node) -> None:
    hooks, web, other = Recorder(), pod(), pod("other")
    async with Runtime(socket(node)) as runtime, connected(node, hooks, runtime):
        await node.prepare(node.claim(reserved_for=["web"]))
        await runtime.pod_event("RunPodSandbox", other)
        answers, _ = await creates(runtime, other, container(node, other))
        await runtime.pod_event("StopPodSandbox", other)
        await runtime.pod_event("RunPodSandbox", web)
        await creates(runtime, web, container(node, web, name="init"))
    assert hooks.calls == ["synchronize", "pod_starts web"]
    assert answers == [pb.CreateContainerResponse()]


async def test_scope_all_gets_every_pod_and_container(node: Node) -> None:
    hooks, other = OfAllPods(), pod("other")
    hooks.adjustment = dra.ContainerAdjustment(cpus="2-3")
    async with Runtime(socket(node)) as runtime, connected(node, hooks, runtime):
        await runtime.pod_event("RunPodSandbox", other)
        [answer], _ = await creates(runtime, other, container(node, other))
        await runtime.pod_event("StopPodSandbox", other)
    assert hooks.calls == ["synchronize", "pod_starts other", "container_starts other app", "pod_stops other"]
    assert answer.adjust.linux.resources.cpu.cpus == "2-3"


async def test_adjustment_reaches_the_runtime_complete(node: Node) -> None:
    hooks, web = Recorder(), pod()
    hooks.adjustment = dra.ContainerAdjustment(
        cpus="0-3,8",
        memory_nodes="1",
        memory_limit=4096,
        hugepages={"2MB": 8192},
        rdt_class="gold",
        env={"CPUS": "0-3"},
        mounts=[dra.Mount(host_path="/etc/hosts", container_path="/hosts", options=["ro"])],
        device_nodes=[
            dra.DeviceNode(path="/dev/oven", type="c", major=7, minor=1, uid=3, gid=4, file_mode=0o600),
            dra.DeviceNode(path="/dev/in", host_path="/dev/null"),
        ],
        updates=[dra.ContainerUpdate(container="c9", cpus="4-7")],
    )
    async with Runtime(socket(node)) as runtime, connected(node, hooks, runtime):
        lunch = node.claim(reserved_for=["web"])
        await node.prepare(lunch)
        [answer], _ = await creates(runtime, web, container(node, web, lunch))
    resources, [oven, null] = answer.adjust.linux.resources, answer.adjust.linux.devices
    assert (resources.cpu.cpus, resources.cpu.mems, resources.memory.limit.value) == ("0-3,8", "1", 4096)
    assert [(item.page_size, item.limit) for item in resources.hugepage_limits] == [("2MB", 8192)]
    assert resources.rdt_class.value == "gold"
    assert [(item.key, item.value) for item in answer.adjust.env] == [("CPUS", "0-3")]
    hosts = answer.adjust.mounts[0]
    assert (hosts.source, hosts.destination, hosts.type, list(hosts.options)) == (
        "/etc/hosts", "/hosts", "bind", ["rbind", "ro"],
    )  # fmt: skip
    assert (oven.path, oven.type, oven.major, oven.minor, oven.file_mode.value, oven.uid.value, oven.gid.value) == (
        "/dev/oven", "c", 7, 1, 0o600, 3, 4,
    )  # fmt: skip
    assert (null.path, null.type, null.major, null.minor) == ("/dev/in", "c", 1, 3)
    [update] = answer.update
    assert (update.container_id, update.linux.resources.cpu.cpus) == ("c9", "4-7")


async def test_resources_that_are_not_set_stay_unset(node: Node) -> None:
    hooks, web = Recorder(), pod()
    hooks.adjustment = dra.ContainerAdjustment(env={"A": "1"})
    async with Runtime(socket(node)) as runtime, connected(node, hooks, runtime):
        lunch = node.claim(reserved_for=["web"])
        await node.prepare(lunch)
        [answer], _ = await creates(runtime, web, container(node, web, lunch))
    assert not answer.adjust.HasField("linux")


# -- which devices


@pytest.mark.parametrize("cdi", [True, False], ids=["CDI devices are reported", "older runtime"])
async def test_container_gets_only_the_devices_of_its_requests(node: Node, cdi: bool) -> None:
    hooks, web = Recorder(), pod()
    async with Runtime(socket(node)) as runtime, connected(node, hooks, runtime):
        lunch = node.claim(devices=["pizza-0", "pizza-1"], reserved_for=["web"])
        await node.prepare(lunch)
        await creates(runtime, web, container(node, web, lunch, devices=[1], cdi=cdi))
    assert hooks.calls[-1] == "container_starts web app pizza-1"


async def test_variables_of_other_claims_are_ignored(node: Node) -> None:
    hooks, web = Recorder(), pod()
    async with Runtime(socket(node)) as runtime, connected(node, hooks, runtime):
        lunch = node.claim(devices=["pizza-0"], reserved_for=["web"])
        foreign = node.claim("foreign", devices=["pizza-1"], reserved_for=["other"])
        await node.prepare(lunch)
        await node.prepare(foreign)
        forged = dict(item.partition("=")[::2] for item in node.env(foreign))
        assert forged
        await creates(runtime, web, container(node, web, lunch, env=forged, cdi=False))
        evil = pod("evil")
        await creates(runtime, evil, container(node, evil, env=forged, cdi=False))
    assert hooks.calls[1:] == ["pod_starts web", "container_starts web app pizza-0"]


async def test_variables_of_another_driver_in_the_same_claim_are_ignored(node: Node) -> None:
    hooks, web = Recorder(), pod()
    async with Runtime(socket(node)) as runtime, connected(node, hooks, runtime):
        lunch = node.claim(devices=["pizza-0", "pizza-1"], reserved_for=["web"])
        await node.prepare(lunch)
        result = v1.DeviceRequestAllocationResult(request="nic", driver="nic.example.com", pool="p", device="nic-0")
        guard = dra.Mount(host_path="/none", container_path="/none")
        spec, _ = build_claim_spec(result.driver, lunch.uid, [(result, dra.Prepared())], [None], guard)
        assert spec is not None
        others = dict(item.partition("=")[::2] for item in spec.devices[0].container_edits.env)
        assert others
        await creates(runtime, web, container(node, web, lunch, devices=[1], env=others, cdi=False))
    assert hooks.calls[-1] == "container_starts web app pizza-1"


async def test_variables_do_not_count_when_the_runtime_reports_cdi_devices(node: Node) -> None:
    hooks, web = Recorder(), pod()
    async with Runtime(socket(node)) as runtime, connected(node, hooks, runtime):
        lunch = node.claim(devices=["pizza-0", "pizza-1"], reserved_for=["web"])
        await node.prepare(lunch)
        forged = dict(item.partition("=")[::2] for item in node.env(lunch))
        await creates(runtime, web, container(node, web, lunch, devices=[0], env=forged))
    assert hooks.calls[-1] == "container_starts web app pizza-0"


@pytest.mark.parametrize("cdi", [True, False], ids=["CDI devices are reported", "older runtime"])
async def test_pod_that_shares_a_claim_later_gets_its_hooks(node: Node, cdi: bool) -> None:
    hooks, web, second = Recorder(), pod(), pod("second")
    async with Runtime(socket(node)) as runtime, connected(node, hooks, runtime):
        await node.prepare(node.claim(reserved_for=["web"]))
        await runtime.pod_event("RunPodSandbox", web)
        lunch = node.claim(reserved_for=["web", "second"])  # the kubelet does not prepare it again
        await runtime.pod_event("RunPodSandbox", second)
        _, unmounted = await creates(runtime, second, container(node, second, lunch, cdi=cdi))
    assert hooks.calls[2:] == ["pod_starts second", "container_starts second app pizza-0"]
    assert unmounted == []


@pytest.mark.parametrize("cdi", [True, False], ids=["CDI devices are reported", "older runtime"])
async def test_pod_that_shares_a_claim_is_known_from_its_container_without_an_api_server(node: Node, cdi: bool) -> None:
    hooks, web, other = Recorder(), pod("second"), pod("other")
    async with Runtime(socket(node)) as runtime, connected(node, hooks, runtime):
        lunch = node.claim(reserved_for=["web"])
        await node.prepare(lunch)
        node.claim(reserved_for=["web", "second"])
        made = container(node, web, lunch, cdi=cdi)
        with node.api.failing(503, "GET", below="/apis/resource.k8s.io/v1/namespaces"):
            await runtime.pod_event("RunPodSandbox", other)
            await creates(runtime, other, container(node, other))
            await runtime.pod_event("RunPodSandbox", web)
            _, unmounted = await creates(runtime, web, made)
    assert hooks.calls[1:] == ["pod_starts second", "container_starts second app pizza-0"]
    assert unmounted == []


@pytest.mark.parametrize("cdi", [True, False], ids=["CDI devices are reported", "older runtime"])
async def test_pod_of_a_group_that_holds_a_claim_gets_its_hooks(node: Node, cdi: bool) -> None:
    hooks, web = Recorder(), pod()
    async with Runtime(socket(node)) as runtime, connected(node, hooks, runtime):
        lunch = node.claim()
        claim = node.api.objects("resourceclaims")[0]
        group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "party", "uid": "party"}
        node.api.put("resourceclaims", claim | {"status": claim["status"] | {"reservedFor": [group]}})
        await node.prepare(lunch)
        await runtime.pod_event("RunPodSandbox", web)
        _, unmounted = await creates(runtime, web, container(node, web, lunch, cdi=cdi))
    assert hooks.calls[1:] == ["pod_starts web", "container_starts web app pizza-0"]
    assert unmounted == []


async def test_container_of_a_claim_that_is_not_its_pods_is_refused_with_a_reason(node: Node) -> None:
    hooks, other = Recorder(), pod("other", namespace="elsewhere")
    async with Runtime(socket(node)) as runtime, connected(node, hooks, runtime):
        lunch = node.claim(reserved_for=["web"])
        await node.prepare(lunch)
        with pytest.raises(CallError, match="claim uid-lunch of pod elsewhere/other is not prepared for this pod on"):
            await creates(runtime, other, container(node, other, lunch, cdi=False))


async def test_devices_of_the_boot_before_are_not_held(node: Node) -> None:
    hooks, web = Recorder(), pod()
    async with Runtime(socket(node)) as runtime:
        async with connected(node, hooks, runtime):
            await node.prepare(node.claim(reserved_for=["web"]))
        node.boot_id.write_text("boot-2\n")
        async with connected(node, hooks, runtime):
            await runtime.pod_event("RunPodSandbox", web)
    assert hooks.calls == ["synchronize", "synchronize"]


# -- a hook fails closed


async def test_error_of_a_hook_fails_the_pod_and_the_container(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    hooks, web = Recorder(), pod()
    async with Runtime(socket(node)) as runtime, connected(node, hooks, runtime) as agent:
        lunch = node.claim(reserved_for=["web"])
        await node.prepare(lunch)
        with (
            raising(hooks, "pod_starts", OSError(5, "no link", "/sys/class/net/secret")),
            pytest.raises(CallError) as failed,
        ):
            await runtime.pod_event("RunPodSandbox", web)
        with (
            raising(hooks, "pod_starts", dra.TransientError("the oven is cold; wait")),
            pytest.raises(CallError, match=r"container default/web/app not created: .*the oven is cold; wait"),
        ):
            await creates(runtime, web, container(node, web, lunch))
        with raising(hooks, "container_starts", ValueError("no dough")), pytest.raises(CallError, match="no dough"):
            await creates(runtime, web, container(node, web, lunch))
        await creates(runtime, web, container(node, web, lunch))
        metrics = await metrics_text(agent)
    text = str(failed.value)
    assert "pod default/web not started: " in text
    assert "Recorder.pod_starts raised OSError" in text
    assert "/sys/class" not in text
    assert "/sys/class/net/secret" in caplog.text
    assert hooks.calls[-1] == "container_starts web app pizza-0"
    assert f'dra_driver_pod_hooks_total{{driver="{DRIVER}",hook="pod_starts",result="failed"}} 2.0' in metrics
    assert f'dra_driver_pod_hooks_total{{driver="{DRIVER}",hook="container_starts",result="ok"}} 1.0' in metrics
    assert f'dra_driver_runtime_connected{{driver="{DRIVER}"}} 1.0' in metrics
    assert f'dra_driver_runtime_reconnects_total{{driver="{DRIVER}"}} 0.0' in metrics
    assert f'dra_driver_pod_hooks_skipped_total{{driver="{DRIVER}"}} 0.0' in metrics


@pytest.mark.parametrize(
    ("hook", "returned", "problem"),
    [
        (
            "pod_starts",
            [dra.ContainerUpdate(container="c")],
            r"pod_starts returned a ContainerUpdate; return dra_kit\.D",
        ),
        ("pod_starts", 7, r"Wrong\.pod_starts returned a int; return dra_kit\.DeviceFacts\(device=…, …\)"),
        (
            "container_starts",
            {"cpus": "1"},
            r"container_starts returned a dict; return dra_kit\.ContainerAdjustment\(…",
        ),
    ],
)
async def test_result_of_the_wrong_type_fails_the_container(
    node: Node, hook: str, returned: object, problem: str
) -> None:
    class Wrong(dra.PodHooks):
        pass

    setattr(Wrong, hook, lambda *_: returned)
    web = pod()
    async with Runtime(socket(node)) as runtime, connected(node, Wrong(), runtime):
        lunch = node.claim(reserved_for=["web"])
        await node.prepare(lunch)
        with pytest.raises(CallError, match=problem):
            await creates(runtime, web, container(node, web, lunch))


async def test_late_hook_fails_the_pod_in_time_and_is_repeated(node: Node) -> None:
    go_on, entered = threading.Event(), threading.Event()

    class Slow(Recorder):
        def container_starts(self, *arguments: Any) -> None:
            entered.set()
            go_on.wait(60)
            super().container_starts(*arguments)

    hooks, web = Slow(), pod()
    async with (
        Runtime(socket(node)) as runtime,
        connected(node, hooks, runtime) as agent,
    ):
        lunch = node.claim(reserved_for=["web"])
        await node.prepare(lunch)
        with impatient(), pytest.raises(CallError, match=r"has not (begun|finished) after 0\.3 s"):
            await creates(runtime, web, container(node, web, lunch))
        await eventually(entered.is_set)
        late = 'hook="container_starts",result="late"} 1.0'
        async with asyncio.timeout(60):
            while late not in await metrics_text(agent):  # noqa: ASYNC110 - reading it tells no one
                await asyncio.sleep(0.01)
        go_on.set()
        await eventually(lambda: hooks.calls[-1] == "container_starts web app pizza-0")
        await creates(runtime, web, container(node, web, lunch, name="again"))
        assert hooks.calls[-1] == "container_starts web again pizza-0"
        assert late in await metrics_text(agent)


def blocks(hooks: Waiting) -> None:
    hooks.entered.set()
    hooks.go_on.wait(60)


class Waiting(Recorder):
    """Its hooks wait at a known place: in a thread, in the event loop, and in a generator."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go_on = threading.Event(), threading.Event()

    def container_starts(self, *_: Any) -> None:
        blocks(self)


class Suspended(Waiting):
    async def container_starts(self, *_: Any) -> None:  # type: ignore[override]
        await self._waits()

    async def _waits(self) -> None:
        self.entered.set()
        while not self.go_on.is_set():  # noqa: ASYNC110 - the event of a thread
            await asyncio.sleep(0.01)


class Yielding(Waiting):
    def pod_starts(self, pod: dra.RuntimePod, devices: Any) -> Any:
        yield from ()
        blocks(self)


@pytest.mark.parametrize(
    ("hooks", "hook", "place"),
    [
        (Waiting, "container_starts", blocks),
        (Suspended, "container_starts", Suspended._waits),
        (Yielding, "pod_starts", blocks),
    ],
)
async def test_error_of_a_late_hook_names_the_method_its_duration_and_the_place_where_it_hangs(
    node: Node, hooks: type[Waiting], hook: str, place: FunctionType
) -> None:
    made, web = hooks(), pod()
    async with Runtime(socket(node)) as runtime, connected(node, made, runtime):
        lunch = node.claim(reserved_for=["web"])
        await node.prepare(lunch)
        with impatient():
            try:
                with pytest.raises(CallError):
                    await creates(runtime, web, container(node, web, lunch))
                await eventually(made.entered.is_set)
                with pytest.raises(CallError, match=rf"after 0\.3 s \({hooks.__name__}\.{hook} has run for") as late:
                    await creates(runtime, web, container(node, web, lunch))
            finally:
                made.go_on.set()
    found = re.search(rf"has run for [\d.]+ s, now at {re.escape(__file__)}:(\d+)\); it continues", str(late.value))
    assert found
    lines, first = inspect.getsourcelines(place)
    assert first < int(found[1]) < first + len(lines)


# -- facts


class Addressed(Recorder):
    """Knows the address of a device when its pod starts."""

    async def pod_starts(
        self, pod: dra.RuntimePod, devices: Sequence[dra.HeldDevice[dra.Device]]
    ) -> Sequence[dra.DeviceFacts]:
        network = dra.NetworkDeviceData(interface_name="net1", ips=["10.0.0.7/24"])
        return [
            dra.DeviceFacts(
                device=device,
                status=dra.DeviceStatus(network_data=network),
                metadata=dra.DeviceMetadata(network_data=network),
            )
            for device in devices
        ]


async def test_facts_are_on_disk_before_the_runtime_continues(node: Node) -> None:
    web = pod()
    async with Runtime(socket(node)) as runtime, connected(node, Addressed(), runtime):
        lunch = node.claim(reserved_for=["web"])
        await node.prepare(lunch)
        mounts = [mount.source for mount in container(node, web, lunch).mounts if "metadata" in mount.source]
        await runtime.pod_event("RunPodSandbox", web)
        [path] = mounts
        [device] = json.loads(Path(path).read_text())["requests"][0]["devices"]
        assert device["networkData"] == {"interfaceName": "net1", "ips": ["10.0.0.7/24"]}
        [record] = node.state()["claims"]
        assert record["devices"][0]["status"]["networkData"]["ips"] == ["10.0.0.7/24"]
        await eventually(
            lambda: (
                [
                    item["networkData"]["interfaceName"]
                    for claim in node.api.objects("resourceclaims")
                    for item in claim["status"].get("devices", ())
                ]
                == ["net1"]
            )
        )
        generation = record["metadata_generation"]
        await runtime.pod_event("RunPodSandbox", pod(attempt=1))
        assert node.state()["claims"][0]["metadata_generation"] == generation


async def test_metadata_without_a_file_is_the_authors_error(node: Node) -> None:
    web = pod()
    async with Runtime(socket(node)) as runtime, connected(node, Addressed(), runtime, Waiter()):
        await node.prepare(node.claim(reserved_for=["web"]))
        with pytest.raises(
            CallError, match="pod_starts returned metadata of device node-1/pizza-0, but prepare returned"
        ):
            await runtime.pod_event("RunPodSandbox", web)


async def test_facts_about_a_device_of_another_pod_are_refused(node: Node) -> None:
    class Confused(Recorder):
        async def pod_starts(self, pod: dra.RuntimePod, devices: Sequence[dra.HeldDevice]) -> Sequence[dra.DeviceFacts]:
            self.devices.append(devices)
            return [dra.DeviceFacts(device=self.devices[0][0], status=dra.DeviceStatus())]

    async with Runtime(socket(node)) as runtime, connected(node, Confused(), runtime):
        await node.prepare(node.claim(reserved_for=["web"]))
        await node.prepare(node.claim("dinner", devices=["pizza-1"], reserved_for=["other"]))
        await runtime.pod_event("RunPodSandbox", pod())
        with pytest.raises(CallError, match="facts about device node-1/pizza-0, which pod default/other does not hold"):
            await runtime.pod_event("RunPodSandbox", pod("other"))


# -- the guard


async def test_container_starts_only_after_its_hook(node: Node) -> None:
    hooks, web = Recorder(), pod()
    async with Runtime(socket(node)) as runtime:
        async with connected(node, hooks, runtime):
            lunch = node.claim(reserved_for=["web"])
            await node.prepare(lunch)
            made = container(node, web, lunch)
            answers, unmounted = await creates(runtime, web, made)
            assert unmounted == []
            assert missing(made) == [
                str(node.root / "state/pod-hooks/driver-is-not-connected-to-the-container-runtime")
            ]
        await runtime.until(0)
        assert await creates(runtime, web, made) == ([], missing(made))
        assert missing(made, answers) == []  # it was created before the driver stopped


async def test_driver_without_hooks_has_no_guard(node: Node) -> None:
    lunch = node.claim()
    async with node.running(dra.Driver(DRIVER, provider=hooked(Recorder()).provider, preparer=Waiter())):
        await node.prepare(lunch)
        assert missing(container(node, pod(), lunch)) == []


# -- pods that started without the driver


async def test_pod_started_without_the_driver_is_repaired_at_the_connection(node: Node) -> None:
    hooks, web = Recorder(), pod()
    async with Runtime(socket(node)) as runtime:
        async with connected(node, hooks, runtime):
            await node.prepare(node.claim(reserved_for=["web"]))
        await runtime.until(0)
        runtime.pods.append(web)
        runtime.containers.append(container(node, web, name="sidecar", state=pb.CONTAINER_RUNNING))
        hooks.calls.clear()
        async with connected(node, hooks, runtime):
            assert hooks.calls == ["synchronize web", "pod_starts web"]
        [sidecar] = hooks.pods[0].containers
        assert (sidecar.name, sidecar.state) == ("sidecar", "running")
        async with connected(node, hooks, runtime):
            assert hooks.calls[2:] == ["synchronize web"]


async def test_pod_that_cannot_be_repaired_yet_is_repaired_before_its_next_container(node: Node) -> None:
    hooks, web = Recorder(), pod(pid=7)
    async with Runtime(socket(node), pods=(web,)) as runtime:
        lunch = node.claim(reserved_for=["web"])
        async with connected(node, hooks, runtime):
            await node.prepare(lunch)
        with raising(hooks, "pod_starts", ValueError("no link")):
            async with connected(node, hooks, runtime):
                assert hooks.calls[-2:] == ["synchronize web", "pod_starts web"]
        hooks.calls.clear()
        with raising(hooks, "synchronize", ValueError("never raised here")):
            async with connected(node, hooks, runtime):
                await creates(runtime, web, container(node, web, lunch))
    assert hooks.calls == ["synchronize web", "pod_starts web", "container_starts web app pizza-0"]


async def test_sandbox_that_has_stopped_is_not_repaired(node: Node) -> None:
    hooks, web = Recorder(), pod()
    async with Runtime(socket(node), pods=(web,)) as runtime:
        async with connected(node, hooks, runtime):
            await node.prepare(node.claim(reserved_for=["web"]))
        async with connected(node, hooks, runtime):
            pass
    assert "pod_starts web" not in hooks.calls


async def test_hook_is_not_repeated_for_a_sandbox_after_a_restart(node: Node) -> None:
    hooks, web = Recorder(), pod(pid=7)
    async with Runtime(socket(node)) as runtime:
        lunch = node.claim(reserved_for=["web"])
        async with connected(node, hooks, runtime):
            await node.prepare(lunch)
            await runtime.pod_event("RunPodSandbox", web)
        runtime.pods.append(web)
        async with connected(node, hooks, runtime):
            await creates(runtime, web, container(node, web, lunch))
            await runtime.pod_event("RunPodSandbox", pod(attempt=1))
    assert hooks.calls == [
        "synchronize", "pod_starts web", "synchronize web", "container_starts web app pizza-0", "pod_starts web",
    ]  # fmt: skip


async def test_corrupt_entry_of_a_started_pod_repeats_the_hook(node: Node) -> None:
    hooks, web = Recorder(), pod(pid=7)
    started = node.root / "state/pod-hooks/started"
    async with Runtime(socket(node)) as runtime:
        async with connected(node, hooks, runtime):
            await node.prepare(node.claim(reserved_for=["web"]))
            await runtime.pod_event("RunPodSandbox", web)
        [entry] = started.iterdir()
        entry.write_text("{")
        runtime.pods.append(web)
        async with connected(node, hooks, runtime):
            assert hooks.calls == ["synchronize", "pod_starts web", "synchronize web", "pod_starts web"]
            await runtime.pod_event("StopPodSandbox", web)
            assert list(started.iterdir()) == []


async def test_pods_that_ended_without_the_driver_are_forgotten(node: Node) -> None:
    async with Runtime(socket(node)) as runtime:
        async with connected(node, Recorder(), runtime):
            await node.prepare(node.claim(reserved_for=["web"]))
            await runtime.pod_event("RunPodSandbox", pod())
        async with connected(node, Recorder(), runtime):
            assert list((node.root / "state/pod-hooks/started").iterdir()) == []


async def test_sandbox_that_is_removed_without_a_stop_is_forgotten(node: Node) -> None:
    web = pod()
    async with Runtime(socket(node)) as runtime, connected(node, Recorder(), runtime):
        await node.prepare(node.claim(reserved_for=["web"]))
        await runtime.pod_event("RunPodSandbox", web)
        await runtime.pod_event("RemovePodSandbox", web)  # the runtime failed after the hook
        assert list((node.root / "state/pod-hooks/started").iterdir()) == []


async def test_synchronization_does_not_read_a_shared_claim_for_each_pod(node: Node) -> None:
    pods = tuple(pod(f"pod-{number}", pid=7) for number in range(30))
    hooks = Recorder()
    async with Runtime(socket(node), pods=pods) as runtime:
        async with connected(node, hooks, runtime):
            await node.prepare(node.claim(reserved_for=["web"]))
        lunch = node.claim(reserved_for=["web", "pod-3"])
        before = node.gets(lunch)
        async with connected(node, hooks, runtime):
            assert node.gets(lunch) - before < 10
    assert hooks.calls == ["synchronize", "synchronize pod-3", "pod_starts pod-3"]


async def test_pods_that_start_during_an_outage_of_the_api_server_wait_for_it_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_hooks, "READ_AGAIN", 3600)
    async with Runtime(socket(node)) as runtime, connected(node, Recorder(), runtime):
        claims = [node.claim(f"claim-{number}", devices=[f"pizza-{number}"], reserved_for=["web"]) for number in (0, 1)]
        await node.prepare(*claims)
        with node.api.failing(503, "GET", below="/apis/resource.k8s.io/v1/namespaces"):
            await runtime.pod_event("RunPodSandbox", pod("first"))
            before = [node.gets(claim) for claim in claims]
            for number in range(10):
                await runtime.pod_event("RunPodSandbox", pod(f"pod-{number}"))
            assert [node.gets(claim) for claim in claims] == before


async def test_error_of_a_lazy_result_is_the_authors(node: Node) -> None:
    class Lazy(dra.PodHooks):
        def pod_starts(self, pod: dra.RuntimePod, devices: Sequence[dra.HeldDevice]) -> Any:
            return map(int, ["eth0"])

    async with Runtime(socket(node)) as runtime, connected(node, Lazy(), runtime):
        await node.prepare(node.claim(reserved_for=["web"]))
        with pytest.raises(CallError, match=r"Lazy\.pod_starts raised ValueError: invalid literal"):
            await runtime.pod_event("RunPodSandbox", pod())


async def test_device_node_that_the_driver_cannot_see_is_reported(node: Node) -> None:
    hooks, web = Recorder(), pod()
    hooks.adjustment = dra.ContainerAdjustment(device_nodes=[dra.DeviceNode(path="/dev/none")])
    async with Runtime(socket(node)) as runtime, connected(node, hooks, runtime):
        lunch = node.claim(reserved_for=["web"])
        await node.prepare(lunch)
        with pytest.raises(CallError, match="/dev/none cannot be read: No such file or directory; mount the node's"):
            await creates(runtime, web, container(node, web, lunch))


async def test_synchronize_updates_containers(node: Node) -> None:
    hooks, web = Recorder(), pod()
    hooks.updates = [dra.ContainerUpdate(container="c1", cpus="0-1")]
    async with Runtime(socket(node), pods=(web,)) as runtime, connected(node, hooks, runtime):
        await eventually(lambda: [item.container_id for item in runtime.updates] == ["c1"])


# -- updates at any time


async def test_containers_can_be_updated_at_any_time(node: Node) -> None:
    hooks = Recorder()
    wanted = [dra.ContainerUpdate(container="c1", cpus="0"), dra.ContainerUpdate(container="gone", cpus="1")]
    async with Runtime(socket(node), containers=(pb.Container(id="c1"),)) as runtime:
        async with connected(node, hooks, runtime):
            await eventually(lambda: hooks.runtime.connected)
            assert await hooks.runtime.update(wanted) == (wanted[1],)
            assert await asyncio.to_thread(lambda: hooks.runtime.update(wanted[:1]).result()) == ()
        assert not hooks.runtime.connected
        with pytest.raises(
            Unavailable, match="the driver is not connected to the container runtime; return the updates"
        ):
            await hooks.runtime.update(wanted)


async def test_update_in_a_hook_is_sent_after_its_answer(node: Node) -> None:
    results = []

    class Sharing(Recorder):
        def container_starts(self, *arguments: Any) -> None:
            results.append(self.runtime.update([dra.ContainerUpdate(container="c1", cpus="0")]).result())

    web = pod()
    async with (
        Runtime(socket(node), containers=(pb.Container(id="c1"),)) as runtime,
        connected(node, Sharing(), runtime),
    ):
        lunch = node.claim(reserved_for=["web"])
        await node.prepare(lunch)
        await creates(runtime, web, container(node, web, lunch))
        await eventually(lambda: [item.container_id for item in runtime.updates] == ["c1"])
    assert results == [()]


# -- readiness and status


async def test_driver_is_not_ready_while_no_runtime_is_connected(node: Node) -> None:
    hooks, path = Recorder(), socket(node)

    def ready() -> str:
        return ask(agent.probe_port, "/readyz")[1]

    async with node.running(hooked(hooks), probe_address="127.0.0.1:0") as agent:
        await eventually(lambda: f"pod-hooks is waiting: not connected to {path}: " in ready())
        document = agent._pod_hooks.document() if agent._pod_hooks else {}
        assert (document["connected"], document["runtime"]) == (False, "")
        async with Runtime(path) as runtime:
            await runtime.until(1)
            await eventually(lambda: ready() == "ok\n")
            document = agent._pod_hooks.document() if agent._pod_hooks else {}
            assert (document["connected"], document["runtime"]) == (True, "containerd 2.4.2")
            [status], _ = await statuses(node.root, DRIVER)
            assert f"Container runtime\n  connected: containerd 2.4.2 at {path}\n" in status_text(status)
        await eventually(lambda: "pod-hooks is waiting: " in ready())
