from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import types
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_kit.errors import KubeletError, SandboxError
from dra_kit.kubelet.cdi.spec import Mount, SpecEdits
from dra_kit.kubernetes.resource.objects import PodReference
from dra_kit.sandbox.containers import processes
from dra_kit.sandbox.containers.process_runtime import ProcessRuntime
from dra_kit.sandbox.containers.processes import NetworkNamespace, socket_in
from dra_kit.sandbox.containers.runtime import (
    ContainerConfig,
    ContainerExit,
    ContainerReport,
    ContainerStatus,
    SandboxConfig,
    VolumeMount,
)
from tests.support.processes import children_of, is_alive
from tests.unit.kubelet.nri.recorder import Recorder, running
from tests.unit.sandbox.cluster.kubelet.polling import until

POD = PodReference("kitchen", "guest", "uid-1")


@pytest.fixture
async def runtime() -> AsyncIterator[ProcessRuntime]:
    async with ProcessRuntime() as runtime:
        yield runtime


def config(
    *command: str,
    name: str = "eater",
    env: dict[str, str] | None = None,
    cdi: tuple[str, ...] = (),
    mounts: tuple[VolumeMount, ...] = (),
) -> ContainerConfig:
    return ContainerConfig(
        POD, name, 0, "busybox:stable", command, hostname="guest", environment=env or {}, edits=SpecEdits(env=cdi),
        mounts=mounts,
    )  # fmt: skip


async def ended(runtime: ProcessRuntime, *command: str, **options: object) -> ContainerExit:
    """Runs a container until it ends by itself."""
    await runtime.run(config(*command, **options))  # type: ignore[arg-type]
    return await end(runtime)


async def end(runtime: ProcessRuntime) -> ContainerExit:
    """How the newest container ends."""
    await until(lambda: not runtime.containers(POD.uid)[-1].running)
    return exit_of(runtime.containers(POD.uid)[-1])


def exit_of(status: ContainerStatus) -> ContainerExit:
    assert status.exit is not None
    return status.exit


def report_of(runtime: ProcessRuntime, name: str = "eater", pod: str = "guest") -> ContainerReport:
    report = runtime.report("kitchen", pod, name)
    assert report is not None
    return report


def output(runtime: ProcessRuntime) -> str:
    return report_of(runtime).log.text


@pytest.mark.parametrize(("command", "started"), [(["true"], 1), ([], 0)])
async def test_reaper_starts_before_the_first_process(
    runtime: ProcessRuntime, command: list[str], started: int
) -> None:
    before = children_of().keys()

    runtime.expect({"spec": {"containers": [{"name": "eater", "command": command}]}})

    found = children_of().keys() - before
    assert len(found) == started
    if started:
        await ended(runtime, "true")
        assert children_of().keys() - before == found


async def test_environment_order_is_image_pod_cdi(runtime: ProcessRuntime) -> None:
    env = {"HOME": "/kitchen", "PIZZA": "pod", "DOUGH": "thin"}
    found = await ended(runtime, "env", env=env, cdi=("PIZZA=cdi=1",))
    assert (found.code, found.reason) == (0, "Completed")
    lines = dict(line.partition("=")[::2] for line in output(runtime).splitlines())
    assert lines.pop("PATH")
    assert lines == {"HOSTNAME": "guest", "HOME": "/kitchen", "PIZZA": "cdi=1", "DOUGH": "thin"}
    report = report_of(runtime)
    assert {key: report.environment[key] for key in lines} == lines


async def test_working_directory_is_empty_and_removed_with_the_pod(runtime: ProcessRuntime) -> None:
    await ended(runtime, "sh", "-c", "echo x > left; pwd; ls")
    directory, *files = output(runtime).split()
    assert files == ["left"]
    assert Path(directory).is_dir()
    runtime.remove(POD.uid)
    assert not Path(directory).exists()
    assert runtime.containers(POD.uid) == []
    assert output(runtime).startswith(directory)


async def test_exit_codes_and_signals(runtime: ProcessRuntime) -> None:
    failed = await ended(runtime, "sh", "-c", "exit 7")
    killed = await ended(runtime, "sh", "-c", "kill -9 $$")
    assert (failed.code, failed.reason) == (7, "Error")
    assert (killed.code, killed.reason) == (137, "Error")


async def test_missing_command_is_a_start_error(runtime: ProcessRuntime) -> None:
    found = exit_of(await runtime.run(config("no-such-program", "--help")))
    assert (found.code, found.reason) == (128, "StartError")
    assert found.message.endswith('exec: "no-such-program": executable file not found in $PATH')
    found = exit_of(await runtime.run(config("/no/such/program")))
    assert found.message.endswith('exec: "/no/such/program": stat /no/such/program: no such file or directory')


async def test_file_that_cannot_be_executed_is_a_start_error(runtime: ProcessRuntime, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("pizza")
    assert exit_of(await runtime.run(config(str(tmp_path / "text")))).message.endswith("permission denied")


async def test_argument_that_no_process_can_have_is_a_start_error(runtime: ProcessRuntime) -> None:
    how = await ended(runtime, "echo", "a\0b")

    assert (how.code, how.reason) == (128, "StartError")
    assert how.message.endswith('exec: "echo": invalid argument')


async def test_volume_is_mounted_before_the_one_in_it(runtime: ProcessRuntime, tmp_path: Path) -> None:
    for name in ("outer", "inner"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    target = tmp_path / "target"
    mounts = (
        VolumeMount(f"{target}/in", str(tmp_path / "inner")), VolumeMount(str(target), str(tmp_path / "outer"))
    )  # fmt: skip
    # where volumes cannot be mounted, the variable says where they are
    script = f'test -n "$DRA_KIT_SANDBOX_MOUNTS" && echo outerinner && exit; cd {target} && cat file in/file'

    how = await ended(runtime, "sh", "-c", script, mounts=mounts)

    assert (how.code, output(runtime).strip()) == (0, "outerinner")
    assert not target.exists()


async def test_volume_that_cannot_be_mounted_does_not_keep_a_container_from_starting(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    script = 'echo "$DRA_KIT_SANDBOX_MOUNTS"'

    await ended(runtime, "sh", "-c", script, mounts=(VolumeMount(f"{tmp_path}/file", f"{tmp_path}"),))

    assert output(runtime) == f"{tmp_path}/file={tmp_path}\n"


async def test_command_that_the_shell_does_not_find(runtime: ProcessRuntime) -> None:
    found = await ended(runtime, "sh", "-c", "no-such-program")
    assert (found.code, found.reason) == (127, "Error")
    assert "not found" in output(runtime)


async def test_arguments_that_are_too_long(runtime: ProcessRuntime) -> None:
    status = await runtime.run(config("echo", "x" * (1 << 21)))
    assert exit_of(status).message.endswith("argument list too long")


async def test_a_container_without_a_command_runs_until_it_is_stopped_and_says_so(runtime: ProcessRuntime) -> None:
    status = await runtime.run(config())
    assert status.running
    assert "no command" in output(runtime)
    assert "until its pod is deleted" in output(runtime)
    changed: list[str] = []
    runtime.subscribe(changed.append)
    runtime.stop(status.id, 30)
    (status,) = runtime.containers(POD.uid)
    assert exit_of(status).code == 0
    assert changed == [POD.uid]


async def test_stop_sends_sigterm_first(runtime: ProcessRuntime) -> None:
    status = await runtime.run(
        config("sh", "-c", "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.01; done")
    )
    await until(lambda: "up" in output(runtime))
    runtime.stop(status.id, 3600)
    assert (await end(runtime)).code == 3
    assert "bye" in output(runtime)


async def test_stop_kills_after_the_grace_period_which_can_be_shortened(runtime: ProcessRuntime) -> None:
    status = await runtime.run(config("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.01; done"))
    await until(lambda: "up" in output(runtime))
    runtime.stop(status.id, 3600)
    runtime.stop(status.id, 0.01)
    runtime.stop(status.id, 3600)
    assert (await end(runtime)).code == 137


async def test_child_processes_end_with_their_container(runtime: ProcessRuntime) -> None:
    await ended(runtime, "sh", "-c", "sleep 3600 & echo $!")
    process = int(output(runtime))
    await until(lambda: not is_alive(process))


async def test_output_is_bounded() -> None:
    async with ProcessRuntime(output_limit=1000) as runtime:
        await ended(runtime, "sh", "-c", "i=0; while [ $i -lt 500 ]; do echo $i; i=$((i+1)); done")
        assert output(runtime).endswith("498\n499\n")
        report = report_of(runtime)
        assert len(report.log.text) + report.log.begin.offset == 1890
        assert report.log.size <= 1000


async def test_output_of_the_previous_attempt_only_is_retained(runtime: ProcessRuntime) -> None:
    identities = []
    for attempt in range(3):
        command = ("echo", f"attempt {attempt}")
        identities.append((await runtime.run(replace(config(*command), attempt=attempt))).id)
        await until(lambda: not runtime.containers(POD.uid)[-1].running)

    found = [runtime.find(identity) for identity in identities]

    assert [report.log.text for report in found if report] == ["", "attempt 1\n", "attempt 2\n"]


async def test_retained_output_of_deleted_pods_is_bounded() -> None:
    async with ProcessRuntime() as runtime:
        for number in range(70):
            pod = PodReference("kitchen", f"guest-{number}", f"uid-{number}")
            await runtime.run(ContainerConfig(pod, "eater", 0, "x"))
            report = report_of(runtime, pod=pod.name)
            for _ in range(20):
                report.log.append(b"x" * 60_000 + b"\n", 0)
            runtime.stop(report.status.id, 0)
            runtime.remove(pod.uid)
        kept = [report.log.size for number in range(70) for report in runtime.reports("kitchen", f"guest-{number}")]

    assert len(kept) == 70
    assert kept[0] == 0
    assert kept[-1] > 900_000
    assert sum(kept) <= 64 << 20


async def test_noisy_container_does_not_starve_others(runtime: ProcessRuntime) -> None:
    for name in ("loud", "louder"):
        await runtime.run(config("yes", name=name))
    await runtime.run(config("sh", "-c", "echo quiet; exec sleep 3600"))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    await until(lambda: output(runtime) == "quiet\n")
    loud = report_of(runtime, "loud")
    await until(lambda: loud.log.begin.offset > 5 << 20)
    counting.cancel()

    assert loud.log.size <= 1 << 20
    # the event loop is free between two readings
    assert turns > 3 * loud.log.end.offset / (1 << 20)


async def test_container_with_closed_output_still_runs(runtime: ProcessRuntime, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    status = await runtime.run(config("sh", "-c", f"printf one; exec >&- 2>&-; : > {closed}; exec sleep 3600"))
    report = runtime.find(status.id)
    assert report is not None
    await until(closed.exists)
    await asyncio.sleep(0.05)  # the end of the pipe is read meanwhile

    assert not report.log.ended
    runtime.stop(status.id, 0)
    await until(lambda: report.log.ended)
    assert report.log.text == "one"


async def test_edits_that_are_not_applied_are_reported(runtime: ProcessRuntime) -> None:
    edits = SpecEdits(mounts=(Mount(host_path="/oven", container_path="/mnt/oven"),))
    await runtime.run(ContainerConfig(POD, "eater", 0, "busybox", ("true",), edits=edits))
    report = report_of(runtime)
    assert report.config.edits.mounts[0].container_path == "/mnt/oven"


async def test_runtime_leaves_no_processes_or_directories() -> None:
    async with ProcessRuntime() as runtime:
        # a daemon: its own session, and its parent is gone
        await ended(
            runtime,
            "sh",
            "-c",
            "setsid sh -c 'echo $$; : > up; exec sleep 3600' & until [ -e up ]; do sleep 0.01; done",
        )
        process = int(output(runtime))
        assert is_alive(process)
    assert not is_alive(process)


def test_killed_runtime_leaves_no_processes(tmp_path: Path) -> None:
    # the shell, a process that left its session, and where they work
    told = tmp_path / "told"
    command = f"setsid sleep 3601 & echo $$ $! $PWD > {told}.new; mv {told}.new {told}; wait"
    script = f"""
        import asyncio
        from dra_kit.sandbox.containers.runtime import ContainerConfig
        from dra_kit.kubernetes.resource.objects import PodReference
        from dra_kit.sandbox.containers.process_runtime import ProcessRuntime

        async def main():
            async with ProcessRuntime() as runtime:
                command = ("sh", "-c", {command!r})
                await runtime.run(ContainerConfig(PodReference("a", "b", "c"), "d", 0, "e", command))
                await asyncio.Event().wait()

        asyncio.run(main())
    """
    holder = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)])
    try:
        wait_for(told.exists)
        *numbers, directory = told.read_text().split()
        processes = [int(number) for number in numbers]
        assert all(map(is_alive, processes))
    finally:
        holder.kill()
        holder.wait()
    wait_for(lambda: not any(map(is_alive, processes)))
    wait_for(lambda: not Path(directory).parent.exists())


async def test_containers_of_a_killed_reaper_end_and_a_new_reaper_starts(runtime: ProcessRuntime) -> None:
    await runtime.run(config("sh", "-c", "echo $PPID; exec sleep 3600"))
    await until(lambda: output(runtime))
    os.kill(int(output(runtime)), signal.SIGKILL)
    assert (await end(runtime)).code == 137
    assert (await ended(runtime, "true")).code == 0


def wait_for(condition: Callable[[], object]) -> None:
    asyncio.run(until(condition))


def may_create_network_namespaces() -> bool:
    try:
        NetworkNamespace().close()
    except SandboxError:
        return False
    return True


def add_interfaces(netns: Path) -> bool:
    """Both ends of a pair, in a pod's network namespace."""
    command = shutil.which("ip") or "ip"
    pair = [command, "link", "add", "net1", "netns", str(netns), "type", "veth"]
    try:
        return subprocess.run([*pair, "peer", "net2", "netns", str(netns)], check=False).returncode == 0
    except OSError:
        return False


async def test_sandbox_that_still_starts_when_its_kubelet_stops_can_be_found_and_stopped(tmp_path: Path) -> None:
    plugin = Recorder()
    plugin.gate.clear()
    async with (
        ProcessRuntime(nri_socket=tmp_path / "n", nri_timeout=60) as runtime,
        running(plugin, tmp_path / "n"),
    ):
        await until(lambda: runtime.nri and runtime.nri.plugins)
        kubelet = asyncio.create_task(runtime.run_sandbox(SandboxConfig(POD)))
        await until(lambda: plugin.calls)
        kubelet.cancel()
        await asyncio.wait([kubelet])
        assert list(runtime.pods()) == [POD]

        stopping = asyncio.create_task(runtime.stop_sandbox(POD.uid))
        await asyncio.sleep(0)  # it has begun
        plugin.gate.set()
        await stopping
        assert list(runtime.pods()) == [POD]
        runtime.remove(POD.uid)
        assert list(runtime.pods()) == []
        await until(lambda: len(plugin.calls) >= 3)
    assert [hook for hook, _ in plugin.calls] == ["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"]


@pytest.mark.skipif(not may_create_network_namespaces(), reason="only root can create network namespaces")
async def test_socket_of_a_network_namespace_connects_inside_it() -> None:
    network = NetworkNamespace()
    with socket_in(str(network.path)) as server, socket_in(str(network.path)) as inside, socket_in("") as outside:
        server.bind(("127.0.0.1", 0))
        server.listen()
        loop = asyncio.get_running_loop()

        await loop.sock_connect(inside, server.getsockname())
        with pytest.raises(ConnectionRefusedError):
            await loop.sock_connect(outside, server.getsockname())
    network.close()


@pytest.mark.skipif(not may_create_network_namespaces(), reason="only root can create network namespaces")
async def test_container_runs_in_the_network_namespace_of_its_pod_if_an_interface_is_there(tmp_path: Path) -> None:
    other = PodReference("kitchen", "other", "uid-2")
    async with ProcessRuntime(network_namespaces=True, nri_socket=tmp_path / "n", nri_timeout=60) as runtime:
        for pod in (POD, other):
            await runtime.run_sandbox(SandboxConfig(pod))
        assert runtime.interfaces("kitchen", "guest") == []
        (netns, _) = [Path(item.linux.namespaces[0].path) for item in runtime.nri_pods()]
        if not add_interfaces(netns):
            pytest.skip("this machine cannot create veth interfaces")
        assert sorted(runtime.interfaces("kitchen", "guest")) == ["net1", "net2"]
        for pod in (POD, other):
            await runtime.run(ContainerConfig(pod, "eater", 0, "busybox", ("cat", "/proc/net/dev")))
            await until(lambda pod=pod: not runtime.containers(pod.uid)[-1].running)  # type: ignore[misc]
        assert "net1:" in report_of(runtime).log.text
        assert "net1:" not in report_of(runtime, pod="other").log.text
        await runtime.stop_sandbox(POD.uid)
        assert sorted(runtime.interfaces("kitchen", "guest")) == ["net1", "net2"]  # as when it was stopped
        assert not netns.exists()


@pytest.mark.skipif(not may_create_network_namespaces(), reason="only root can create network namespaces")
async def test_network_namespace_that_the_kernel_refuses_is_an_error_of_the_pod(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: int) -> int:
        ctypes.set_errno(errno.ENOSPC)
        return -1

    async with ProcessRuntime(network_namespaces=True) as runtime:
        with monkeypatch.context() as refusing:
            refusing.setattr(processes, "_LIBC", types.SimpleNamespace(unshare=refuse))
            with pytest.raises(KubeletError, match=r"network for sandbox: .*No space left on device"):
                await runtime.run_sandbox(SandboxConfig(POD))
        await runtime.run_sandbox(SandboxConfig(POD))
        assert runtime.has_sandbox(POD.uid)


async def test_network_namespaces_that_are_forbidden_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(_: int) -> int:
        ctypes.set_errno(errno.EPERM)
        return -1

    monkeypatch.setattr(processes, "_LIBC", types.SimpleNamespace(unshare=forbid))
    with pytest.raises(SandboxError, match="Operation not permitted; run the sandbox as root, or without"):
        async with ProcessRuntime(network_namespaces=True):
            pass
