"""The connection to the container runtime, when processes of the driver follow one another."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

import dra_kit as dra
from dra_kit.errors import StoreError
from dra_kit.kubelet.nri import CallError
from dra_kit.kubelet.nri import hooks as nri_hooks
from dra_kit.node import pod_hooks
from dra_kit.node.agent import NodeAgent
from dra_kit.node.decommission import run_decommission
from dra_kit.node.locks import NamedLocks
from tests.support.api import eventually
from tests.support.nri_runtime import ConnectedPlugin, Runtime
from tests.support.probes import ask
from tests.unit.node.drivers import Oven
from tests.unit.node.pod_hooks.runtime_node import (
    OfAllPods,
    Recorder,
    Stateful,
    container,
    creates,
    hooked,
    impatient,
    missing,
    pod,
    socket,
)
from tests.unit.node.role import DRIVER, Node

T = TypeVar("T")
ADDRESS = "127.0.0.1:0"
OF_TEMPLATE: dict[str, Any] = {
    "annotations": {"resource.kubernetes.io/pod-claim-name": "lunch"},
    "owner": {"apiVersion": "v1", "kind": "Pod", "name": "web", "controller": True},
}


class Counting(Runtime):
    """Counts how many plugins were connected at once."""

    most = 0

    async def _change(self, plugin: ConnectedPlugin, *, connected: bool) -> None:
        await super()._change(plugin, connected=connected)
        self.most = max(self.most, len(self.plugins))


def has_hooks(agent: NodeAgent) -> bool:
    return agent._pod_hooks is not None and bool(agent._pod_hooks.document()["connected"])


def readiness(agent: NodeAgent) -> str:
    with suppress(OSError):
        return ask(agent.probe_port, "/readyz")[1]
    return ""


@asynccontextmanager
async def begun(node: Node, made: dra.Driver[Any, Any]) -> AsyncIterator[NodeAgent]:
    """Run a second process until the end of the block."""
    agent = await node.agent(made, pod_uid="new", probe_address=ADDRESS)
    running = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        agent.stop()
        await running


async def test_killed_driver_repeats_hooks_from_what_prepare_stored(node: Node) -> None:
    hooks, web, killed = Recorder(), pod(), node.root / "killed"
    async with Runtime(socket(node)) as runtime:
        lunch = node.claim(devices=["pizza-2"], reserved_for=["web"])
        async with node.running(hooked(Recorder())):
            await node.prepare(lunch)
            shutil.copytree(node.root / "state", killed)  # what a kill -9 leaves
        async with node.running(hooked(hooks), state_dir=killed):
            await runtime.until(1)
            await runtime.pod_event("RunPodSandbox", web)
            _, unmounted = await creates(runtime, web, container(node, web, lunch))
    assert hooks.calls == ["synchronize", "pod_starts web", "container_starts web app pizza-2"]
    assert [[device.state for device in devices] for devices in hooks.devices] == [[{"cpus": "2"}]] * 2
    assert unmounted == []


async def test_new_process_connects_after_the_older_one_has_closed_its_connection(node: Node) -> None:
    first, second = Recorder(), Recorder()
    async with Counting(socket(node)) as runtime, node.running(hooked(first), pod_uid="old") as old:
        await runtime.until(1)
        async with begun(node, hooked(second)) as new:
            await eventually(lambda: has_hooks(new))
            await eventually(lambda: readiness(new) == "ok\n")
            assert not has_hooks(old)
            await node.prepare(node.claim(reserved_for=["web"]))
            await runtime.until(1)
            await runtime.pod_event("RunPodSandbox", pod())
            assert (first.calls, second.calls) == (["synchronize"], ["synchronize", "pod_starts web"])
        await eventually(lambda: has_hooks(old))
        await runtime.until(1)
        assert runtime.most == 1
        await runtime.pod_event("RunPodSandbox", pod(attempt=1))
        assert first.calls == ["synchronize", "synchronize", "pod_starts web"]


async def test_process_that_has_not_taken_over_does_not_connect(node: Node) -> None:
    go_on = threading.Event()

    class Blocked(Oven):
        def discover(self) -> Any:
            go_on.wait(60)
            yield from super().discover()

    first, second = Recorder(), Recorder()
    async with Counting(socket(node)) as runtime, node.running(hooked(first), pod_uid="old") as old:
        await runtime.until(1)
        made = dra.Driver(DRIVER, provider=Blocked(), preparer=Stateful(), pod_hooks=second)
        async with begun(node, made) as new:
            try:
                await eventually(lambda: "registration is deferred" in readiness(new))
                await eventually(lambda: has_hooks(old))
                assert second.calls == []
            finally:
                go_on.set()
            await eventually(lambda: has_hooks(new))
    assert second.calls == ["synchronize"]
    assert runtime.most == 1


async def asked(runtime: Runtime, request: Callable[[], Awaitable[T]]) -> T:
    """The answer to the runtime. A failed synchronization closes the connection, and then the kubelet asks again."""
    while True:
        await runtime.until(1)
        try:
            return await request()
        except CallError as error:
            if not any(text in str(error) for text in ("the connection was closed", "failed to handle")):
                raise
        await asyncio.sleep(0.01)


async def test_containers_do_not_start_while_synchronize_fails(node: Node) -> None:
    class Broken(Recorder):
        def synchronize(self, pods: Any) -> Any:
            raise OSError("cpuset cannot be read")

    hooks, web = Broken(), pod()
    async with Runtime(socket(node)) as runtime, node.running(hooked(hooks)):
        lunch = node.claim(reserved_for=["web"])
        await node.prepare(lunch)
        await runtime.until(1)
        with pytest.raises(CallError, match=r"Broken\.synchronize raised OSError: cpuset cannot be read"):
            await asked(runtime, lambda: creates(runtime, web, container(node, web, lunch)))
        assert hooks.calls == []


@pytest.mark.parametrize("shared", [True, False], ids=["shareable claim", "claim from a template"])
async def test_other_pods_start_while_synchronize_fails(node: Node, shared: bool) -> None:
    class Broken(Recorder):
        def synchronize(self, pods: Any) -> Any:
            raise OSError("cpuset cannot be read")

    hooks, web = Broken(), pod()
    elsewhere = pod("new-version-of-the-driver", namespace="drivers")
    async with Runtime(socket(node)) as runtime, node.running(hooked(hooks)):
        await node.prepare(node.claim(reserved_for=["web"], **{} if shared else OF_TEMPLATE))
        await runtime.until(1)
        await asked(runtime, lambda: runtime.pod_event("RunPodSandbox", elsewhere))
        _, unmounted = await asked(runtime, lambda: creates(runtime, elsewhere, container(node, elsewhere)))
        assert unmounted == []
        with pytest.raises(CallError, match="cpuset cannot be read"):
            await asked(runtime, lambda: runtime.pod_event("RunPodSandbox", web))
        if shared:  # it may be one that shares the claim
            with pytest.raises(CallError, match="cpuset cannot be read"):
                await asked(runtime, lambda: runtime.pod_event("RunPodSandbox", pod("neighbour")))
        else:
            await asked(runtime, lambda: runtime.pod_event("RunPodSandbox", pod("neighbour")))
        assert hooks.calls == []


async def test_no_pod_starts_while_synchronize_of_all_pods_fails(node: Node) -> None:
    class Broken(OfAllPods):
        def synchronize(self, pods: Any) -> Any:
            raise OSError("cpuset cannot be read")

    async with Runtime(socket(node)) as runtime, node.running(hooked(Broken())):
        await runtime.until(1)
        with pytest.raises(CallError, match="cpuset cannot be read"):
            await asked(runtime, lambda: runtime.pod_event("RunPodSandbox", pod()))


async def test_state_that_cannot_be_written_does_not_stop_the_process(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_hooks, "TRY_AGAIN", 0.01)
    blocking = node.root / "state/pod-hooks"
    blocking.parent.mkdir(parents=True)
    blocking.touch()
    async with (
        Runtime(socket(node)) as runtime,
        node.running(hooked(Recorder()), probe_address=ADDRESS) as agent,
    ):
        await eventually(lambda: f"pod-hooks is waiting: {blocking}/hooks-have-run cannot be" in readiness(agent))
        await node.prepare(node.claim(reserved_for=["web"]))
        blocking.unlink()
        await runtime.until(1)
        await eventually(lambda: readiness(agent) == "ok\n")


async def test_late_hook_of_the_last_connection_is_not_called_again_meanwhile(node: Node) -> None:
    go_on, entered = threading.Event(), threading.Event()

    class Slow(Recorder):
        def pod_starts(self, pod: dra.RuntimePod, devices: Any) -> Any:
            self._call("pod_starts", pod)
            entered.set()
            go_on.wait(60)

    hooks, web, path = Slow(), pod(pid=7), socket(node)
    async with node.running(hooked(hooks)):
        async with Runtime(path) as runtime:
            await runtime.until(1)
            await node.prepare(node.claim(reserved_for=["web"]))
            starting = asyncio.create_task(runtime.pod_event("RunPodSandbox", web))
            await eventually(entered.is_set)
        starting.cancel()
        async with Runtime(path, pods=(web,)) as runtime:
            await eventually(lambda: "synchronize web" in hooks.calls)
            await asyncio.sleep(0.1)  # in which it would be called
            go_on.set()
            await runtime.until(1)
            await runtime.pod_event("RunPodSandbox", web)
    assert hooks.calls == ["synchronize", "pod_starts web", "synchronize web"]


class Hanging(Recorder):
    """Its pod hook blocks for pods of some names until the end of the test."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names
        self.entered, self.go_on = threading.Event(), threading.Event()

    def pod_starts(self, pod: dra.RuntimePod, devices: Any) -> Any:
        self._call("pod_starts", pod)
        if pod.name in self.names:
            self.entered.set()
            self.go_on.wait(60)


async def test_new_process_takes_over_from_one_whose_hook_hangs(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nri_hooks, "ENDED_WITHIN", 0.05)
    first, second = Hanging("web"), Recorder()
    async with (
        Counting(socket(node)) as runtime,
        node.running(hooked(first), pod_uid="old") as old,
    ):
        await runtime.until(1)
        await node.prepare(node.claim(reserved_for=["web"]))
        await node.prepare(node.claim("dinner", devices=["pizza-1"], reserved_for=["other"]))
        with impatient(), pytest.raises(CallError):
            await runtime.pod_event("RunPodSandbox", pod())
        await eventually(first.entered.is_set)
        async with begun(node, hooked(second)) as new:
            try:
                await eventually(lambda: has_hooks(new))
                assert not has_hooks(old)
                await runtime.until(1)
                await runtime.pod_event("RunPodSandbox", pod("other"))
                with impatient(), pytest.raises(CallError, match="another process of the driver runs a hook of this"):
                    await runtime.pod_event("RunPodSandbox", pod(attempt=1))
                assert second.calls == ["synchronize", "pod_starts other"]
            finally:
                first.go_on.set()
            await eventually(lambda: second.calls[-1] == "pod_starts web")
    assert first.calls.count("pod_starts web") == 1
    assert runtime.most == 1


async def test_pod_whose_repair_hangs_does_not_keep_others_from_starting(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_hooks, "REPAIRED_WITHIN", 0.05)
    hooks, web, other = Hanging("web"), pod(pid=7), pod("other")
    async with Runtime(socket(node), pods=(web,)) as runtime:
        lunch = node.claim(reserved_for=["web"])
        async with node.running(dra.Driver(DRIVER, provider=Oven(), preparer=Stateful())):
            await node.prepare(lunch)
            await node.prepare(node.claim("dinner", devices=["pizza-1"], reserved_for=["other"]))
        async with node.running(hooked(hooks)):
            try:
                await runtime.until(1)
                await runtime.pod_event("RunPodSandbox", other)
                await eventually(hooks.entered.is_set)
                with impatient(), pytest.raises(CallError, match=r"not created: .* \(Hanging\.pod_starts has run for"):
                    await creates(runtime, web, container(node, web, lunch))
            finally:
                hooks.go_on.set()
            await runtime.until(1)
            await creates(runtime, web, container(node, web, lunch, name="again"))
    assert hooks.calls[:3] == ["synchronize web", "pod_starts web", "pod_starts other"]
    assert hooks.calls.count("pod_starts web") == 1


async def test_driver_whose_synchronize_hangs_connects_to_a_restarted_runtime(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nri_hooks, "ENDED_WITHIN", 0.05)
    go_on, entered = threading.Event(), threading.Event()

    class Blocked(Recorder):
        def synchronize(self, pods: Any) -> Any:
            super().synchronize(pods)
            entered.set()
            go_on.wait(60)
            return ()

    hooks, path = Blocked(), socket(node)
    async with AsyncExitStack() as stack, node.running(hooked(hooks)) as agent:
        try:
            with impatient():
                async with Runtime(path) as runtime:
                    await runtime.until(1)
                    await node.prepare(node.claim(reserved_for=["web"]))
                    await eventually(entered.is_set)
                runtime = await stack.enter_async_context(Runtime(path))
                await runtime.until(1)
                waits = r"has not begun after .* the plugin has not synchronized \(Blocked\.synchronize has run"
                with pytest.raises(CallError, match=waits):
                    await runtime.pod_event("RunPodSandbox", pod())
            assert hooks.calls == ["synchronize"]
            go_on.set()
            await eventually(lambda: has_hooks(agent))
            await runtime.pod_event("RunPodSandbox", pod(attempt=1))
        finally:
            go_on.set()
    assert hooks.calls == ["synchronize", "synchronize", "pod_starts web"]


async def test_failing_disk_is_logged_once_and_keeps_the_connection(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pod_hooks, "LOOK_EVERY", 0.01)
    looks = 0

    def fail(locks: NamedLocks, name: str) -> bool:
        nonlocal looks
        looks += 1
        raise StoreError("lock cannot be read")

    async with Runtime(socket(node)) as runtime, node.running(hooked(Recorder())) as agent:
        await runtime.until(1)
        monkeypatch.setattr(NamedLocks, "held_elsewhere", fail)
        await eventually(lambda: looks > 5)
        await eventually(lambda: has_hooks(agent))
    assert caplog.text.count("younger processes not looked for") == 1


async def test_claims_lose_their_guard_when_a_release_has_no_hooks_any_more(node: Node) -> None:
    async with Runtime(socket(node)):
        lunch = node.claim(reserved_for=["web"])
        async with node.running(hooked(Recorder())):
            await node.prepare(lunch)
            before = container(node, pod(), lunch)
            assert [Path(path).name for path in missing(before)] == ["driver-is-not-connected-to-the-container-runtime"]
        async with node.running(dra.Driver(DRIVER, provider=Oven(), preparer=Stateful())):
            await eventually(lambda: missing(container(node, pod(), lunch)) == [])
            after = container(node, pod(), lunch)
            assert len(after.mounts) == len(before.mounts) - 1
        async with node.running(hooked(Recorder())):  # an older release again
            await eventually(lambda: len(container(node, pod(), lunch).mounts) == len(before.mounts))


async def test_removed_driver_runs_hooks_until_its_claims_are_released_and_leaves_nothing(node: Node) -> None:
    hooks, web = Recorder(), pod()
    async with Runtime(socket(node)) as runtime:
        lunch = node.claim(reserved_for=["web"])
        async with node.running(hooked(Recorder())):
            await node.prepare(lunch)
        made = container(node, web, lunch)
        ending = asyncio.create_task(run_decommission(DRIVER, node.settings(), hooked(hooks)))
        await runtime.until(1)
        _, unmounted = await creates(runtime, web, made)
        assert unmounted == []
        await eventually(lambda: node.kubelet.plugins(DRIVER))
        await node.unprepare(lunch)
        assert await ending == 0
    assert hooks.calls == ["synchronize", "pod_starts web", "container_starts web app pizza-0"]
    assert not node.settings().state(DRIVER).exists()
