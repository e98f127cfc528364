"""NRI plugins on a simulated node: what their hooks do to pods and containers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from typing_extensions import override

from dra_kit.kubelet.nri import NriClient, Plugin
from dra_kit.kubelet.nri import messages as pb
from dra_kit.kubelet.nri.ttrpc import Method, Mux
from dra_kit.sandbox.containers.runtime import ContainerReport
from dra_kit.sandbox.records import ContainerUpdated, HookFailed
from tests.unit.sandbox.cluster.kubelet.node import NAMESPACE, Node
from tests.unit.sandbox.cluster.kubelet.pods import SLEEPER, container, pod


def cpus(numbers: str) -> pb.LinuxResources:
    return pb.LinuxResources(cpu=pb.LinuxCPU(cpus=numbers))


class Pinning(Plugin):
    """Records calls; gives new containers what a test sets.

    Attributes:
        calls: name of the hook, and of the pod or container.
        seen: pods and containers, by hook.
        failures: the error that a hook raises, by its name.
    """

    def __init__(self, *cpu_numbers: str) -> None:
        self.adjust = pb.ContainerAdjustment()
        if cpu_numbers:
            self.adjust.linux.resources.cpu.cpus = cpu_numbers[0]
        self.updates: list[pb.ContainerUpdate] = []
        self.calls: list[tuple[str, str]] = []
        self.pods: dict[str, pb.PodSandbox] = {}
        self.containers: dict[str, pb.Container] = {}
        self.failures: dict[str, str] = {}

    async def note(self, hook: str, name: str) -> None:
        self.calls.append((hook, name))
        if hook in self.failures:
            raise RuntimeError(self.failures[hook])

    @override
    async def synchronize(
        self, pods: Sequence[pb.PodSandbox], containers: Sequence[pb.Container]
    ) -> Iterable[pb.ContainerUpdate]:
        names = [*(item.name for item in pods), *(item.name for item in containers)]
        self.calls.append(("synchronize", " ".join(names)))
        updates, self.updates = self.updates, []
        return [
            pb.ContainerUpdate(container_id=item.id, linux=update.linux) for update in updates for item in containers
        ]

    @override
    async def run_pod_sandbox(self, pod: pb.PodSandbox) -> None:
        self.pods["run"] = pod
        await self.note("run", pod.name)

    @override
    async def stop_pod_sandbox(self, pod: pb.PodSandbox) -> None:
        await self.note("stop", pod.name)

    @override
    async def remove_pod_sandbox(self, pod: pb.PodSandbox) -> None:
        await self.note("remove", pod.name)

    @override
    async def create_container(self, pod: pb.PodSandbox, container: pb.Container) -> pb.CreateContainerResponse:
        self.pods["create"], self.containers["create"] = pod, container
        await self.note("create", container.name)
        return pb.CreateContainerResponse(adjust=self.adjust)

    @override
    async def stop_container(self, pod: pb.PodSandbox, container: pb.Container) -> Iterable[pb.ContainerUpdate]:
        await self.note("stop container", container.name)
        return ()

    @override
    async def remove_container(self, pod: pb.PodSandbox, container: pb.Container) -> None:
        await self.note("remove container", container.name)


@asynccontextmanager
async def connected(kitchen: Node, plugin: Plugin, name: str = "pins", index: str = "10") -> AsyncIterator[NriClient]:
    """A plugin that is registered and synchronized."""
    server = kitchen.runtime.nri
    assert server is not None
    client = NriClient(plugin, name=name, index=index, socket=server.socket)
    task = asyncio.create_task(client.run())
    try:
        await kitchen.is_so(lambda: f"{index}-{name}" in server.plugins)
        yield client
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def report_of(kitchen: Node, name: str = "guest") -> ContainerReport:
    report = kitchen.runtime.report(NAMESPACE, name, "eater")
    assert report is not None
    return report


async def test_hooks_are_called_from_the_sandbox_to_its_removal(kitchen: Node) -> None:
    plugin = Pinning()
    async with connected(kitchen, plugin):
        await kitchen.run()
        await kitchen.leave()
        await kitchen.is_so(lambda: ("remove", "guest") in plugin.calls)
    assert plugin.calls == [
        ("synchronize", ""),
        ("run", "guest"),
        ("create", "eater"),
        ("stop container", "eater"),
        ("stop", "guest"),
        ("remove container", "eater"),
        ("remove", "guest"),
    ]
    # the claim is released after the sandbox has stopped
    assert kitchen.driver.calls == [("prepare", "lunch"), ("unprepare", "lunch")]


async def test_hooks_see_pod_and_container_as_the_runtime_does(kitchen: Node) -> None:
    plugin = Pinning()
    await kitchen.order("lunch")
    guest = pod(container("eater", "sleep", "3600", env=[{"name": "FORK", "value": "1"}]))
    guest["metadata"] |= {"labels": {"table": "4"}, "annotations": {"bill": "open"}}
    async with connected(kitchen, plugin):
        made = await kitchen.start(guest, "lunch")
        await kitchen.phase("Running")
    sandbox, eater = plugin.pods["run"], plugin.containers["create"]
    uid = made["metadata"]["uid"]
    assert (sandbox.name, sandbox.namespace, sandbox.uid) == ("guest", NAMESPACE, uid)
    assert sandbox.labels["table"] == "4"
    assert sandbox.annotations["bill"] == "open"
    assert sandbox.linux.cgroup_parent == f"kubepods-besteffort-pod{uid.replace('-', '_')}.slice"
    assert [item.type for item in sandbox.linux.namespaces] == ["network"]
    assert Path(sandbox.linux.namespaces[0].path).is_file()
    assert eater.pod_sandbox_id == sandbox.id == plugin.pods["create"].id
    assert {"FORK=1", "PIZZA_LUNCH=funghi"} <= set(eater.env)
    (device,) = eater.cdi_devices
    assert device.name in report_of(kitchen).config.cdi_devices
    assert "/mnt/oven" in [mount.destination for mount in eater.mounts]


async def test_a_pod_in_the_network_of_its_node_has_no_network_namespace(kitchen: Node) -> None:
    plugin = Pinning()
    async with connected(kitchen, plugin):
        await kitchen.run(pod(SLEEPER, hostNetwork=True))
    assert list(plugin.pods["run"].linux.namespaces) == []


async def test_the_container_gets_variables_of_a_hook(kitchen: Node) -> None:
    plugin = Pinning()
    plugin.adjust.env.add(key="PIZZA_LUNCH", value="diavola")
    async with connected(kitchen, plugin):
        await kitchen.run()
        await kitchen.is_so(lambda: "PIZZA_LUNCH=diavola\n" in kitchen.output())
    assert report_of(kitchen).environment["PIZZA_LUNCH"] == "diavola"


async def test_what_cannot_be_applied_is_shown(kitchen: Node) -> None:
    plugin = Pinning("0-1,4")
    plugin.adjust.mounts.add(destination="/plate", source="/plates/1")
    plugin.adjust.mounts.add(destination="/mnt/oven", source="/oven/2")
    plugin.adjust.linux.devices.add(path="/dev/fork", type="c", major=195, minor=7)
    plugin.adjust.linux.resources.cpu.mems = "0"
    plugin.adjust.linux.resources.memory.limit.value = 1 << 20
    plugin.adjust.linux.resources.hugepage_limits.add(page_size="2MB", limit=4 << 20)
    async with connected(kitchen, plugin):
        await kitchen.run()
    report = report_of(kitchen)
    assert report.mounts == {"/mnt/oven": "/oven/2", "/plate": "/plates/1"}
    assert report.device_nodes == {"/dev/fork": "c 195:7"}
    resources = report.status.resources
    assert (resources.cpus, resources.memory_nodes) == ("0-1,4", "0")
    assert (resources.memory_limit, resources.hugepages) == (1 << 20, {"2MB": 4 << 20})


async def test_a_rejected_sandbox_is_tried_again(kitchen: Node) -> None:
    plugin = Pinning()
    plugin.failures["run"] = "no plate"
    await kitchen.order("lunch")
    async with connected(kitchen, plugin):
        await kitchen.start(pod(SLEEPER), "lunch")
        notes = [note for reason, note in await kitchen.events("FailedCreatePodSandBox") if "SandBox" in reason]
        first = plugin.pods["run"].id
        waiting = await kitchen.pod()
        plugin.failures.clear()
        await kitchen.phase("Running")
    failures = [item for item in kitchen.records if isinstance(item, HookFailed)]
    assert [(item.container, "no plate" in item.message) for item in failures[:1]] == [("", True)]
    (note,) = set(notes)
    assert note.startswith(
        "Failed to create pod sandbox: rpc error: code = Unknown desc = NRI RunPodSandbox failed: "
        "rpc error: code = Unknown desc = pod kitchen/guest not started: NRI plugin 10-pins: no plate"
    )
    # what a failed hook has begun can be undone
    assert plugin.calls[1:4] == [("run", "guest"), ("stop", "guest"), ("remove", "guest")]
    assert plugin.pods["run"].id != first
    conditions = {item["type"]: item["status"] for item in waiting["status"]["conditions"]}
    assert conditions["PodReadyToStartContainers"] == "False"
    assert kitchen.driver.calls == [("prepare", "lunch")]


async def test_a_sandbox_without_containers_is_removed_if_the_pod_vanishes_while_the_kubelet_is_down(
    kitchen: Node,
) -> None:
    plugin = Pinning()
    plugin.failures["create"] = "no chair"
    async with connected(kitchen, plugin):
        await kitchen.start(pod(SLEEPER))
        await kitchen.is_so(lambda: ("create", "eater") in plugin.calls)
        await kitchen.kubelet.stop()
        await kitchen.delete(grace=0)
        assert ("stop", "guest") not in plugin.calls
        await kitchen.kubelet.start()
        await kitchen.is_so(lambda: ("remove", "guest") in plugin.calls)
    assert plugin.calls.count(("stop", "guest")) == plugin.calls.count(("run", "guest")) == 1


async def test_a_rejected_container_is_tried_again_in_the_same_sandbox(kitchen: Node) -> None:
    plugin = Pinning()
    plugin.failures["create"] = "no chair"
    await kitchen.order("lunch")
    async with connected(kitchen, plugin):
        await kitchen.start(pod(SLEEPER), "lunch")
        text = "failed to create containerd container: failed to get NRI adjustment for container: "
        waiting = await kitchen.until(lambda item: text in str(item["status"].get("containerStatuses")))
        plugin.failures.clear()
        await kitchen.phase("Running")
        events = await kitchen.events("Failed", "Started")
    (status,) = waiting["status"]["containerStatuses"]
    assert status["state"]["waiting"]["reason"] == "CreateContainerError"
    assert "no chair" in status["state"]["waiting"]["message"]
    assert [reason for reason, _ in events if reason == "Created"] == ["Created"]
    assert [name for hook, name in plugin.calls if hook == "run"] == ["guest"]
    # what other plugins have begun for the first container can be undone
    assert [hook for hook, name in plugin.calls if name == "eater"][:4] == [
        "create", "stop container", "remove container", "create",
    ]  # fmt: skip


async def test_two_plugins_cannot_set_the_same_thing(kitchen: Node) -> None:
    await kitchen.order("lunch")
    async with connected(kitchen, Pinning("0")), connected(kitchen, Pinning("1"), "shares", "20"):
        await kitchen.start(pod(SLEEPER), "lunch")
        await kitchen.until(
            lambda item: 'plugins "20-shares" and "10-pins" both tried to set CPUSetCPUs' in str(item["status"])
        )


async def test_cpus_that_the_kernel_rejects_fail_the_container(kitchen: Node) -> None:
    await kitchen.order("lunch")
    async with connected(kitchen, Pinning("3-1")):
        await kitchen.start(pod(SLEEPER), "lunch")
        await kitchen.until(lambda item: "'3-1' is not a list of CPUs" in str(item["status"]))


async def test_a_plugin_that_does_not_answer_is_disconnected_and_the_pod_starts_without_it(kitchen: Node) -> None:
    server = kitchen.runtime.nri
    assert server is not None
    reader, writer = await asyncio.open_unix_connection(server.socket)
    mux = Mux(reader, writer)

    async def configure(_: object, __: float | None) -> pb.ConfigureResponse:
        return pb.ConfigureResponse(events=1 << (pb.CREATE_CONTAINER - 1))

    async def synchronize(_: object, __: float | None) -> pb.SynchronizeResponse:
        return pb.SynchronizeResponse()

    async def create(_: object, __: float | None) -> pb.CreateContainerResponse:
        await asyncio.Event().wait()
        raise AssertionError

    methods = {
        "Configure": Method(pb.ConfigureRequest, configure),
        "Synchronize": Method(pb.SynchronizeRequest, synchronize),
        "CreateContainer": Method(pb.ContainerRequest, create),
    }
    mux.open(1, {"nri.pkg.api.v1alpha1.Plugin": methods})
    runtime = mux.open(2)
    task = asyncio.create_task(mux.run())
    registration = pb.RegisterPluginRequest(plugin_name="mute", plugin_idx="00")
    await runtime.call("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin", registration, pb.Empty, timeout=60)
    await kitchen.is_so(lambda: server.plugins == ["00-mute"])
    await kitchen.run()
    assert server.plugins == []
    await task  # the runtime has closed the connection
    assert report_of(kitchen).status.running


async def test_a_plugin_that_connects_later_learns_what_exists_and_updates_it(kitchen: Node) -> None:
    await kitchen.run()
    plugin = Pinning()
    plugin.updates = [pb.ContainerUpdate(linux=pb.LinuxContainerUpdate(resources=cpus("2-3")))]
    async with connected(kitchen, plugin) as client:
        assert plugin.calls == [("synchronize", "guest eater")]
        assert report_of(kitchen).status.resources.cpus == "2-3"
        identity = report_of(kitchen).status.id.partition("://")[2]
        change = pb.LinuxContainerUpdate(resources=cpus("0"))
        wrong = pb.LinuxContainerUpdate(resources=cpus("x"))
        failed = await client.update_containers(
            [
                pb.ContainerUpdate(container_id=identity, linux=change),
                pb.ContainerUpdate(container_id=identity, linux=wrong),
                pb.ContainerUpdate(container_id="gone", linux=change),
            ]
        )
    assert report_of(kitchen).status.resources.cpus == "0"
    await kitchen.is_so(
        lambda: "0" in [item.resources.cpus for item in kitchen.records if isinstance(item, ContainerUpdated)]
    )
    assert [item.linux.resources.cpu.cpus for item in failed] == ["x"]  # containerd ignores unknown containers


async def test_hooks_outlive_a_restart_of_the_kubelet(kitchen: Node) -> None:
    plugin = Pinning()
    async with connected(kitchen, plugin):
        await kitchen.run()
        await kitchen.kubelet.restart()
        await kitchen.leave()
        await kitchen.is_so(lambda: ("remove", "guest") in plugin.calls)
    assert [hook for hook, _ in plugin.calls].count("run") == 1


async def test_container_that_is_rejected_while_the_kubelet_restarts_is_tried_again(kitchen: Node) -> None:
    gate = asyncio.Event()

    class Waiting(Pinning):
        @override
        async def create_container(self, pod: pb.PodSandbox, container: pb.Container) -> pb.CreateContainerResponse:
            if ("create", container.name) not in self.calls:
                self.calls.append(("create", container.name))
                await gate.wait()
                raise RuntimeError("no chair")
            return await super().create_container(pod, container)

    plugin = Waiting()
    async with connected(kitchen, plugin):
        await kitchen.start(pod(SLEEPER))
        await kitchen.is_so(lambda: ("create", "eater") in plugin.calls)
        await kitchen.kubelet.restart()
        gate.set()
        await kitchen.is_so(lambda: plugin.calls.count(("create", "eater")) == 2)
        await kitchen.phase("Running")


async def test_each_start_of_a_container_is_a_new_one(kitchen: Node) -> None:
    plugin = Pinning()
    async with connected(kitchen, plugin):
        await kitchen.start(pod(container("eater", "false"), restartPolicy="Always"))
        await kitchen.is_so(lambda: plugin.calls.count(("stop container", "eater")) == 2)
    assert plugin.calls[1:] == [("run", "guest"), *[("create", "eater"), ("stop container", "eater")] * 2]


async def test_a_container_does_not_start_if_a_file_of_the_node_that_it_mounts_is_missing(kitchen: Node) -> None:
    plugin, marker = Pinning(), kitchen.driver.cdi_dir / "marker"
    plugin.adjust.mounts.add(destination="/var/run/dra-kit/marker", source=str(marker))
    async with connected(kitchen, plugin):
        await kitchen.start(pod(SLEEPER, restartPolicy="Always"))
        failed = await kitchen.until(lambda item: "StartError" in str(item["status"]))
        marker.touch()
        await kitchen.phase("Running")
    message = str(failed["status"])
    assert f'error mounting "{marker}" to rootfs at "/var/run/dra-kit/marker"' in message
    assert "no such file or directory" in message


async def test_interfaces_are_those_that_a_driver_moves_into_the_namespace(kitchen: Node) -> None:
    class Moving(Pinning):
        @override
        async def run_pod_sandbox(self, pod: pb.PodSandbox) -> None:
            Path(pod.linux.namespaces[0].path).write_text("net1\nnet2\n")

        @override
        async def stop_pod_sandbox(self, pod: pb.PodSandbox) -> None:
            Path(pod.linux.namespaces[0].path).write_text("")
            await super().stop_pod_sandbox(pod)

    plugin = Moving()
    plugin.adjust.linux.net_devices["ens3"].name = "net3"
    async with connected(kitchen, plugin):
        await kitchen.start(pod(container("eater", "true")))
        await kitchen.phase("Succeeded")
    assert ("stop", "guest") in plugin.calls
    assert kitchen.runtime.interfaces(NAMESPACE, "guest") == ["net1", "net2", "net3"]
    assert kitchen.runtime.interfaces(NAMESPACE, "other") == []
