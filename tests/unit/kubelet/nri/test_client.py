"""A plugin and a container runtime, over the socket that they share."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from dra_kit.kubelet.nri import (
    CallError,
    ClientState,
    ConnectionLost,
    NriClient,
    Plugin,
    RuntimeParameters,
    client,
    hooks,
)
from dra_kit.kubelet.nri import messages as pb
from dra_kit.kubelet.nri.client import EMPTY_PARTS_MAX, PLUGIN_SERVICE
from dra_kit.kubelet.nri.hooks import answer_within
from dra_kit.kubelet.nri.ttrpc import UNIMPLEMENTED, UNKNOWN
from tests.support.nri_runtime import Runtime
from tests.unit.kubelet.nri.recorder import Recorder, Running, eventually, running, update

OLD, NEW = (0, 8, 0), (0, 12, 5)
HANGS = r"the hook of NRI plugin 00-cpu\.example\.com has not finished after"
POD = pb.PodSandbox(id="s1", uid="u1", namespace="default", name="web")
RETRIED = pb.PodSandbox(id="s2", uid="u1", namespace="default", name="web")
OTHER = pb.PodSandbox(id="s3", uid="u3", namespace="default", name="db")
APP = pb.Container(id="c1", pod_sandbox_id="s1", name="app")
EVENTS = [
    ("RunPodSandbox", "s1"),
    ("CreateContainer", "c1"),
    ("StopContainer", "c1"),
    ("RemoveContainer", "c1"),
    ("StopPodSandbox", "s1"),
    ("RemovePodSandbox", "s1"),
]


class PodsOnly(Plugin):
    def __init__(self) -> None:
        self.calls: list[str] = []

    @override
    async def run_pod_sandbox(self, pod: pb.PodSandbox) -> None:
        self.calls.append(pod.id)


@pytest.fixture
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="n") as directory:
        yield Path(directory) / "nri.sock"


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RETRY_FIRST", 0.01)
    monkeypatch.setattr(client, "RETRY_MAX", 0.02)


class Deadline:
    """When requests are answered: at once, or long after everything has ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def at_once(self) -> None:
        self._patch.setattr(hooks, "ANSWERED_WITHIN", 1e-6)

    def far(self) -> None:
        self._patch.setattr(hooks, "ANSWERED_WITHIN", 0.9)


@pytest.fixture
def deadline(monkeypatch: pytest.MonkeyPatch) -> Deadline:
    return Deadline(monkeypatch)


@asynccontextmanager
async def connected(plugin: Plugin, socket: Path, **options: Any) -> AsyncIterator[tuple[Runtime, Running]]:
    async with Runtime(socket, **options) as runtime, running(plugin, socket) as run:
        await runtime.until(plugins=1)
        yield runtime, run


async def live_through(runtime: Runtime) -> None:
    await runtime.pod_event("RunPodSandbox", POD)
    for method in ("CreateContainer", "StopContainer", "RemoveContainer"):
        await runtime.container_event(method, POD, APP)
    for method in ("StopPodSandbox", "RemovePodSandbox"):
        await runtime.pod_event(method, POD)


@pytest.mark.parametrize("nri", [OLD, (0, 11, 0), (0, 12, 0), NEW], ids=str)
async def test_each_version_calls_each_hook(socket: Path, nri: tuple[int, int, int]) -> None:
    plugin = Recorder()
    async with connected(plugin, socket, nri=nri) as (runtime, _):
        await live_through(runtime)

    assert plugin.calls == EVENTS


async def test_answers_of_hooks_reach_the_runtime(socket: Path) -> None:
    async with connected(Recorder(), socket) as (runtime, _):
        (created,) = await runtime.container_event("CreateContainer", POD, APP)
        (stopped,) = await runtime.container_event("StopContainer", POD, APP)

    assert created.adjust.linux.resources.cpu.cpus == "2-3"
    assert list(stopped.update) == [update("c2", "0-3")]


@pytest.mark.parametrize("nri", [OLD, NEW], ids=str)
async def test_only_overridden_hooks_are_subscribed_to(socket: Path, nri: tuple[int, int, int]) -> None:
    plugin = PodsOnly()
    async with connected(plugin, socket, nri=nri) as (runtime, _):
        await live_through(runtime)

        assert (runtime.plugins[0].events, plugin.calls) == (1, ["s1"])


async def test_plugin_learns_the_runtime(socket: Path) -> None:
    plugin = Recorder()
    async with connected(plugin, socket, request_timeout=7.5) as (_, run):
        assert plugin.runtime == RuntimeParameters("containerd", "v2.4.2", "v0.12.5", "", 7.5)
        assert run.client.state == ClientState(connected=True, reason="connected", runtime=plugin.runtime)


async def test_failure_policy_is_to_fail_and_keep(socket: Path) -> None:
    async with connected(Recorder(), socket) as (runtime, _):
        assert runtime.plugins[0].policy == pb.FailurePolicy(fail_request=True, keep_connected=True)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"name": "cpu/x"}, "name 'cpu/x' invalid"),
        ({"name": ""}, "name '' invalid"),
        ({"name": "x", "index": "1"}, "index '1' of NRI plugin x invalid"),
    ],
)
def test_invalid_registration_is_refused_early(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        NriClient(PodsOnly(), **options)


def test_plugin_without_hooks_is_refused() -> None:
    with pytest.raises(ValueError, match="overrides no hook"):
        NriClient(Plugin(), name="x")


# Deadlines and errors


@given(st.floats(0.01, 1000), st.none() | st.floats(0.01, 1000))
def test_answer_comes_before_each_timeout(configured: float, remaining: float | None) -> None:
    seconds = answer_within(configured, remaining)

    assert seconds == pytest.approx(0.9 * min(configured, remaining or configured))


@pytest.mark.parametrize("nri", [OLD, NEW], ids=str)
async def test_hook_of_a_pod_that_hangs_fails_the_request(
    socket: Path, deadline: Deadline, nri: tuple[int, int, int]
) -> None:
    plugin = Recorder()
    async with connected(plugin, socket, nri=nri) as (runtime, run):
        plugin.gate.clear()
        deadline.at_once()
        with pytest.raises(CallError, match=f"pod default/web not started: {HANGS}"):
            await runtime.pod_event("RunPodSandbox", POD)

        assert (len(runtime.plugins), run.client.counters.late) == (1, 1)


@pytest.mark.parametrize("nri", [OLD, NEW], ids=str)
async def test_hook_of_a_container_that_hangs_fails_the_request(
    socket: Path, deadline: Deadline, nri: tuple[int, int, int]
) -> None:
    plugin = Recorder()
    async with connected(plugin, socket, nri=nri) as (runtime, run):
        plugin.gate.clear()
        deadline.at_once()
        with pytest.raises(CallError, match=f"container default/web/app not created: {HANGS}"):
            await runtime.container_event("CreateContainer", POD, APP)

        assert (len(runtime.plugins), run.client.counters.late) == (1, 1)


async def test_request_with_less_time_is_answered_earlier(socket: Path) -> None:
    plugin = Recorder()
    async with connected(plugin, socket, request_timeout=3600) as (runtime, run):
        plugin.gate.clear()
        call = runtime.plugins[0].connection.call

        with pytest.raises((CallError, TimeoutError)):
            await call(PLUGIN_SERVICE, "RunPodSandbox", pb.PodSandboxRequest(pod=POD), pb.Empty, timeout=0.01)
        await eventually(lambda: run.client.counters.late)


async def test_retry_of_the_same_request_gets_the_late_result(socket: Path, deadline: Deadline) -> None:
    plugin = Recorder()
    async with connected(plugin, socket) as (runtime, _):
        plugin.gate.clear()
        deadline.at_once()
        for _ in range(2):
            with pytest.raises(CallError, match="has not finished"):
                await runtime.container_event("CreateContainer", POD, APP)
        deadline.far()
        plugin.gate.set()
        (created,) = await runtime.container_event("CreateContainer", POD, APP)

    assert created.adjust.linux.resources.cpu.cpus == "2-3"
    assert plugin.calls == [("CreateContainer", "c1")]


async def test_hook_that_failed_in_the_background_runs_again(socket: Path, deadline: Deadline) -> None:
    plugin = Recorder()
    async with connected(plugin, socket) as (runtime, run):
        plugin.gate.clear()
        deadline.at_once()
        plugin.error = RuntimeError("no CPUs left")
        with pytest.raises(CallError, match="has not finished"):
            await runtime.pod_event("RunPodSandbox", POD)
        deadline.far()
        plugin.gate.set()
        await eventually(lambda: run.client.counters.failed)
        plugin.error = None
        await runtime.pod_event("RunPodSandbox", POD)

    assert plugin.calls == [("RunPodSandbox", "s1")] * 2


async def test_next_sandbox_of_a_pod_waits_for_the_hook_of_the_last_one(socket: Path, deadline: Deadline) -> None:
    plugin = Recorder()
    async with connected(plugin, socket) as (runtime, _):
        plugin.gate.clear()
        deadline.at_once()
        for pod in (POD, RETRIED):
            with pytest.raises(CallError, match="has not finished"):
                await runtime.pod_event("RunPodSandbox", pod)
        await eventually(lambda: plugin.calls)
        assert plugin.calls == [("RunPodSandbox", "s1")]
        deadline.far()
        plugin.gate.set()
        await runtime.pod_event("RunPodSandbox", RETRIED)

    assert plugin.calls == [("RunPodSandbox", "s1"), ("RunPodSandbox", "s2")]


async def test_retries_do_not_pile_up_behind_a_hook_that_hangs(socket: Path, deadline: Deadline) -> None:
    plugin = Recorder()
    async with connected(plugin, socket) as (runtime, run):
        plugin.gate.clear()
        deadline.at_once()
        with pytest.raises(CallError, match=HANGS):
            await runtime.pod_event("RunPodSandbox", POD)
        for number in range(5):
            retried = pb.PodSandbox(id=f"retry-{number}", uid=POD.uid, namespace="default", name="web")
            with pytest.raises(CallError, match=r"has not begun after .*: an earlier hook of this pod has not"):
                await runtime.pod_event("RunPodSandbox", retried)
        await eventually(lambda: len(run.client._hooks._tasks) == 1)
        deadline.far()
        plugin.gate.set()
        await runtime.pod_event("RunPodSandbox", RETRIED)

    assert plugin.calls == [("RunPodSandbox", "s1"), ("RunPodSandbox", "s2")]


async def test_hook_of_a_pod_that_stops_runs_after_one_that_hangs(socket: Path, deadline: Deadline) -> None:
    plugin = Recorder()
    async with connected(plugin, socket) as (runtime, _):
        plugin.gate.clear()
        deadline.at_once()
        for method in ("RunPodSandbox", "StopPodSandbox"):
            with pytest.raises(CallError):
                await runtime.pod_event(method, POD)
        plugin.gate.set()
        await eventually(lambda: len(plugin.calls) == 2)

    assert plugin.calls == [("RunPodSandbox", "s1"), ("StopPodSandbox", "s1")]


async def test_hook_that_hangs_does_not_stop_other_pods(socket: Path, deadline: Deadline) -> None:
    plugin = Recorder()
    async with connected(plugin, socket) as (runtime, _):
        plugin.gate.clear()
        deadline.at_once()
        with pytest.raises(CallError, match="has not finished"):
            await runtime.pod_event("RunPodSandbox", POD)
        plugin.gate = asyncio.Event()
        deadline.far()
        plugin.gate.set()
        await runtime.pod_event("RunPodSandbox", OTHER)


@pytest.mark.parametrize("nri", [OLD, NEW], ids=str)
@pytest.mark.parametrize("error", [RuntimeError("no CPUs left"), CallError(UNIMPLEMENTED, "no CPUs left")], ids=repr)
async def test_hook_that_raises_fails_the_request(socket: Path, nri: tuple[int, int, int], error: Exception) -> None:
    plugin = Recorder()
    async with connected(plugin, socket, nri=nri) as (runtime, run):
        plugin.error = error
        with pytest.raises(CallError) as caught:
            await runtime.pod_event("RunPodSandbox", POD)

        assert caught.value.code == UNKNOWN
        assert caught.value.message == (
            "pod default/web not started: NRI plugin 00-cpu.example.com: no CPUs left; the kubelet tries again"
        )
        assert (plugin.calls, len(runtime.plugins)) == ([("RunPodSandbox", "s1")], 1)
        assert run.client.counters.failed == 1


async def test_stopping_fails_the_requests_that_are_open(socket: Path) -> None:
    plugin = Recorder()
    async with connected(plugin, socket) as (runtime, run):
        plugin.gate.clear()
        request = asyncio.create_task(runtime.pod_event("RunPodSandbox", POD))
        await eventually(lambda: plugin.calls)
        await run.stop()

        with pytest.raises(CallError, match="not served: the connection was closed"):
            await request
        assert run.client.state == ClientState(connected=False, reason="stopped")


# Synchronization


@pytest.mark.parametrize("parts", [1, 2, 5])
async def test_parts_of_a_synchronization_are_joined(socket: Path, parts: int) -> None:
    plugin = Recorder()
    plugin.updates = [update("c1", "1")]
    async with connected(plugin, socket, parts=parts, pods=(POD, OTHER), containers=(APP,)) as (runtime, _):
        ((pods, containers),) = plugin.synchronizations

        assert (sorted(pod.id for pod in pods), [item.id for item in containers]) == (["s1", "s3"], ["c1"])
        assert runtime.updates == plugin.updates


async def test_many_empty_parts_pass(socket: Path) -> None:
    plugin = Recorder()
    async with connected(plugin, socket, parts=EMPTY_PARTS_MAX):
        assert plugin.synchronizations == [([], [])]


async def test_flood_of_empty_parts_is_ended(socket: Path) -> None:
    plugin = Recorder()
    async with (
        Runtime(socket, parts=100_000, patience=60, containers=(APP,)) as runtime,
        running(plugin, socket) as run,
    ):
        state = await run.until("empty parts without end")

        assert not state.connected
        assert "after 0 pods and 1 containers" in state.reason
        await eventually(lambda: runtime.log)
    assert plugin.synchronizations == []


async def test_synchronization_that_hangs_keeps_the_plugin_and_stops_pods(socket: Path, deadline: Deadline) -> None:
    plugin = Recorder()
    plugin.synchronize_gate.clear()
    plugin.on_configure = deadline.at_once
    plugin.updates = [update("c1", "1")]
    async with connected(plugin, socket, containers=(APP,)) as (runtime, run):
        assert not run.client.connected
        with pytest.raises(CallError, match=r"pod default/web not started.* has not begun .*: the plugin has not sync"):
            await runtime.pod_event("RunPodSandbox", POD)
        deadline.far()
        plugin.synchronize_gate.set()
        await run.until_connected()
        await runtime.pod_event("RunPodSandbox", POD)
        await eventually(lambda: runtime.updates)

        assert (runtime.updates, plugin.calls) == (plugin.updates, [("RunPodSandbox", "s1")])


async def test_failed_update_of_a_late_synchronization_is_logged(
    socket: Path, deadline: Deadline, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = Recorder()
    plugin.synchronize_gate.clear()
    plugin.on_configure = deadline.at_once
    plugin.updates = [update("c9", "1")]
    async with connected(plugin, socket):
        deadline.far()
        plugin.synchronize_gate.set()

        await eventually(lambda: "container c9 not updated: the runtime could not apply the update" in caplog.text)


async def test_synchronization_that_outlives_its_connection_does_not_count(
    socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RETRY_FIRST", 3600)
    plugin = Recorder()
    plugin.synchronize_gate.clear()
    async with AsyncExitStack() as stack:
        async with Runtime(socket):
            run = await stack.enter_async_context(running(plugin, socket))
            await eventually(lambda: plugin.synchronizations)
        await run.until("disconnected")
        plugin.synchronize_gate.set()
        for _ in range(20):
            await asyncio.sleep(0)

        assert "disconnected" in run.client.state.reason


async def test_slow_configuration_is_reported(socket: Path, deadline: Deadline) -> None:
    class Slow(PodsOnly):
        @override
        async def configure(self, runtime: RuntimeParameters) -> None:
            await asyncio.Event().wait()

    deadline.at_once()
    async with Runtime(socket), running(Slow(), socket) as run:
        await run.until("not configured for runtime containerd: configure has not finished after")


async def test_failed_synchronization_stops_pods_until_it_succeeds(
    socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RETRY_FIRST", 3600)
    plugin = Recorder()
    plugin.synchronize_error = RuntimeError("the state file is locked")
    async with connected(plugin, socket) as (runtime, run):
        assert run.client.state.reason == "not synchronized: the state file is locked"
        with pytest.raises(CallError, match=r"pod default/web not started: .* the state file is locked"):
            await runtime.pod_event("RunPodSandbox", POD)
        await runtime.pod_event("StopPodSandbox", POD)

    assert plugin.calls == [("StopPodSandbox", "s1")]


async def test_failed_synchronization_is_repeated(socket: Path) -> None:
    plugin = Recorder()
    plugin.synchronize_error = RuntimeError("the state file is locked")
    async with Runtime(socket) as runtime, running(plugin, socket) as run:
        await run.until("the state file is locked")
        plugin.synchronize_error = None
        await run.until_connected()
        await runtime.until(plugins=1)
        await runtime.pod_event("RunPodSandbox", POD)


# Connections


async def test_client_waits_for_a_runtime(socket: Path) -> None:
    async with running(Recorder(), socket) as run:
        state = await run.until(f"not connected to {socket}: No such file or directory; check")
        assert not state.connected
        async with Runtime(socket) as runtime:
            await runtime.until(plugins=1)
            assert run.client.connected


async def test_client_connects_again_after_restarts_of_the_runtime(socket: Path) -> None:
    plugin = Recorder()
    async with running(plugin, socket) as run:
        for _ in range(3):
            async with Runtime(socket) as runtime:
                await runtime.until(plugins=1)
                await live_through(runtime)
            await run.until("disconnected")
    assert plugin.calls == EVENTS * 3
    assert run.client.counters.reconnects >= 2


async def test_plugin_that_answers_too_late_is_dropped_and_connects_again(socket: Path) -> None:
    """The runtime's patience is far less than it says, as if the client did not get the CPU."""
    plugin = Recorder()
    async with connected(plugin, socket, nri=OLD, request_timeout=3600, patience=3600) as (runtime, _):
        plugin.gate.clear()
        runtime._patience = 0.01
        dropped = runtime.plugins[0]
        await runtime.pod_event("RunPodSandbox", POD)
        runtime._patience = 3600
        plugin.gate.set()
        async with runtime.changed:
            await runtime.changed.wait_for(lambda: bool(runtime.plugins) and runtime.plugins[0] is not dropped)

        assert len(plugin.synchronizations) == 2


async def test_what_started_without_the_plugin_is_counted(socket: Path) -> None:
    async with running(Recorder(), socket) as run:
        async with Runtime(socket, pods=(POD,)) as runtime:
            await runtime.until(plugins=1)
            await runtime.container_event("CreateContainer", POD, APP)
        await run.until("disconnected")
        async with Runtime(socket, pods=(POD, OTHER), containers=(APP,)) as runtime:
            await runtime.until(plugins=1)

            assert run.client.counters.skipped == 1


async def test_pods_that_live_long_are_not_counted_after_many_starts(
    socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "_SEEN_MAX", 2)
    async with running(Recorder(), socket) as run:
        async with Runtime(socket, pods=(POD,)) as runtime:
            await runtime.until(plugins=1)
            for number in range(5):
                short = pb.PodSandbox(id=f"short-{number}", uid=f"short-{number}")
                await runtime.pod_event("RunPodSandbox", short)
                await runtime.pod_event("RemovePodSandbox", short)
        await run.until("disconnected")
        async with Runtime(socket, pods=(POD, OTHER)) as runtime:
            await runtime.until(plugins=1)
            assert run.client.counters.skipped == 1
            for pod in (RETRIED, APP):
                await runtime.pod_event("RunPodSandbox", pb.PodSandbox(id=pod.id, uid=pod.id))
        await run.until("disconnected")
        async with Runtime(socket, pods=(POD, OTHER, RETRIED)) as runtime:
            await runtime.until(plugins=1)

            assert run.client.counters.skipped == 1


async def test_two_plugins_that_set_the_same_field_fail_the_container(socket: Path) -> None:
    """Two processes of one driver must not be connected at the same time."""
    async with connected(Recorder(), socket) as (runtime, first), running(Recorder(), socket):
        await runtime.until(plugins=2)
        with pytest.raises(CallError, match="both tried to set CPUSetCPUs"):
            await runtime.container_event("CreateContainer", POD, APP)
        await first.stop()
        await runtime.until(plugins=1)
        (created,) = await runtime.container_event("CreateContainer", POD, APP)

    assert created.adjust.linux.resources.cpu.cpus == "2-3"


async def test_one_plugin_serves_two_runtimes(socket: Path) -> None:
    plugin = Recorder()
    other = socket.with_name("other.sock")
    async with connected(plugin, socket) as (first, _), connected(plugin, other) as (second, __):
        await first.pod_event("RunPodSandbox", POD)
        await second.pod_event("RunPodSandbox", OTHER)

    assert plugin.calls == [("RunPodSandbox", "s1"), ("RunPodSandbox", "s3")]


async def test_socket_of_something_else_is_reported(socket: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(serve, socket)
    async with running(Recorder(), socket) as run:
        state = await run.until("too large")
        assert "check that the socket is the container runtime's NRI socket" in state.reason
    server.close()
    await server.wait_closed()


async def test_failure_of_each_attempt_to_connect_is_logged_once(
    socket: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = Recorder()
    plugin.synchronize_error = RuntimeError("the state file is locked")
    problem = "not synchronized: the state file is locked"
    with caplog.at_level(logging.INFO):
        async with running(plugin, socket) as run:
            async with Runtime(socket):
                await eventually(lambda: run.client.counters.reconnects >= 3)
                plugin.synchronize_error = None
                await run.until_connected()
                assert caplog.text.count(problem) == 1
            plugin.synchronize_error = RuntimeError("the state file is locked")
            async with Runtime(socket):
                await run.until(problem)

    assert caplog.text.count(problem) == 2


async def test_runtime_that_does_not_answer_the_registration_is_left(
    socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "REGISTRATION_TIMEOUT", 0.01)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(serve, socket)
    async with running(Recorder(), socket) as run:
        await run.until("the runtime did not answer in 0.01 s")
    server.close()
    await server.wait_closed()


async def test_cancelled_client_leaves_nothing_behind(socket: Path, deadline: Deadline) -> None:
    plugin = Recorder()
    async with Runtime(socket) as runtime:
        before = asyncio.all_tasks()
        async with running(plugin, socket):
            await runtime.until(plugins=1)
            plugin.gate.clear()
            deadline.at_once()
            with pytest.raises(CallError):
                await runtime.pod_event("RunPodSandbox", POD)
        await runtime.until(plugins=0)
        await asyncio.sleep(0)

        assert asyncio.all_tasks() == before


async def test_client_that_runs_again_runs_hooks_that_it_cancelled(socket: Path, deadline: Deadline) -> None:
    plugin = Recorder()
    again = NriClient(plugin, name="x", socket=socket)
    async with Runtime(socket) as runtime:
        for calls in (1, 2):
            task = asyncio.create_task(again.run())
            await runtime.until(plugins=1)
            if calls == 1:
                plugin.gate.clear()
                deadline.at_once()
                with pytest.raises(CallError, match="has not finished"):
                    await runtime.pod_event("RunPodSandbox", POD)
                deadline.far()
                plugin.gate.set()
            else:
                await runtime.pod_event("RunPodSandbox", POD)
            task.cancel()
            await asyncio.wait({task})
            await runtime.until(plugins=0)
            assert len(plugin.calls) == calls


async def test_error_of_on_state_does_not_stop_the_client(socket: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(state: ClientState) -> None:
        raise RuntimeError(f"cannot write {state.reason}")

    idle = NriClient(Recorder(), name="x", socket=socket, on_state=fail)
    async with Runtime(socket) as runtime:
        task = asyncio.create_task(idle.run())
        await runtime.until(plugins=1)
        await runtime.pod_event("RunPodSandbox", POD)
        task.cancel()
        await asyncio.wait({task})

    assert task.cancelled()
    assert "cannot write connected" in caplog.text


# Updates


async def test_update_reaches_the_runtime(socket: Path) -> None:
    async with connected(Recorder(), socket, containers=(APP,)) as (runtime, run):
        failed = await run.client.update_containers([update("c1", "1"), update("c9", "1")])

        assert [item.container_id for item in runtime.updates] == ["c1", "c9"]
        assert failed == [update("c9", "1")]


async def test_update_in_a_hook_is_sent_after_its_answer(socket: Path) -> None:
    plugin = Recorder()
    async with connected(plugin, socket, containers=(APP,)) as (runtime, run):

        async def inside() -> None:
            assert await run.client.update_containers([update("c1", "1")]) == []
            for _ in range(20):
                await asyncio.sleep(0)
            assert runtime.log == []

        plugin.inside = inside
        await runtime.pod_event("RunPodSandbox", POD)
        await eventually(lambda: runtime.updates)

        assert runtime.updates == [update("c1", "1")]


async def test_update_of_another_task_waits_for_the_hook(socket: Path) -> None:
    plugin = Recorder()
    async with connected(plugin, socket, containers=(APP,)) as (runtime, run):
        plugin.gate.clear()
        event = asyncio.create_task(runtime.pod_event("RunPodSandbox", POD))
        await eventually(lambda: plugin.calls)
        updating = asyncio.create_task(run.client.update_containers([update("c1", "1")]))
        for _ in range(20):
            await asyncio.sleep(0)
        assert (runtime.log, updating.done()) == ([], False)
        plugin.gate.set()
        await event

        assert await updating == []


async def test_late_hook_can_update(socket: Path, deadline: Deadline) -> None:
    plugin = Recorder()
    async with connected(plugin, socket, containers=(APP,)) as (runtime, run):

        async def inside() -> None:
            await plugin.gate.wait()
            assert await run.client.update_containers([update("c9", "1")]) == [update("c9", "1")]

        plugin.inside = inside
        plugin.gate.clear()
        deadline.at_once()
        with pytest.raises(CallError, match="has not finished"):
            await runtime.pod_event("RunPodSandbox", POD)
        deadline.far()
        plugin.gate.set()
        await eventually(lambda: runtime.updates)
        await runtime.pod_event("RunPodSandbox", POD)

        assert len(plugin.calls) == 1


async def test_update_of_a_late_hook_waits_for_the_retry(socket: Path, deadline: Deadline) -> None:
    plugin = Recorder()
    async with connected(plugin, socket, containers=(APP,)) as (runtime, run):

        async def inside() -> None:
            await plugin.gate.wait()
            await run.client.update_containers([update("c1", "1")])

        plugin.inside = inside
        plugin.gate.clear()
        deadline.at_once()
        with pytest.raises(CallError, match="has not finished"):
            await runtime.pod_event("RunPodSandbox", POD)
        retry = asyncio.create_task(runtime.pod_event("RunPodSandbox", POD))
        await eventually(lambda: run.client._hooks._awaited)
        deadline.far()
        plugin.gate.set()
        await retry
        await eventually(lambda: runtime.updates)

        assert (len(plugin.calls), runtime.updates) == (1, [update("c1", "1")])


async def test_update_without_a_connection_fails(socket: Path) -> None:
    idle = NriClient(Recorder(), name="x", socket=socket)
    with pytest.raises(ConnectionLost, match="not running"):
        await idle.update_containers([])
    async with running(Recorder(), socket) as run:
        await run.until("not connected")
        with pytest.raises(ConnectionLost, match="not connected"):
            await run.client.update_containers([])


async def test_error_of_a_deferred_update_is_logged(socket: Path, caplog: pytest.LogCaptureFixture) -> None:
    plugin = Recorder()
    async with connected(plugin, socket) as (runtime, run):

        async def inside() -> None:
            await run.client.update_containers([update("c9", "1")])

        plugin.inside = inside
        with caplog.at_level(logging.WARNING):
            await runtime.pod_event("RunPodSandbox", POD)
            await eventually(lambda: "container c9 not updated" in caplog.text)
