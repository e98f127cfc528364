"""Containers that podman runs in their image: as root and as an ordinary user, with the same stories as processes."""

from __future__ import annotations

import asyncio
import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dra_kit.cli.app import cli
from dra_kit.client.resources import PODS
from dra_kit.errors import ConfigurationError, SandboxError
from dra_kit.kubelet.cdi.spec import CDIDevice, DeviceNode, Hook, Mount, SpecEdits, build_spec
from dra_kit.kubernetes.resource.objects import PodReference
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.containers.images import ImageSettings, LocalImage
from dra_kit.sandbox.containers.node_namespace import NodeNamespace, NodePlaces, namespaces_refused
from dra_kit.sandbox.containers.podman_runtime import PodmanRuntime
from dra_kit.sandbox.containers.runtime import ContainerConfig, ContainerStatus, ImageMissing, VolumeMount
from tests.support.processes import processes
from tests.unit.sandbox.cluster.kubelet.polling import until
from tests.unit.testing.bakery import ORDER, write_project
from tests.unit.testing.test_plugin import report

PODMAN = shutil.which("podman") or ""
REFUSAL = str(asyncio.run(namespaces_refused()) or "") if PODMAN else "podman is not installed"
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(bool(REFUSAL), reason=f"NOT TESTED: {REFUSAL}"),
]
POD = PodReference("kitchen", "guest", "uid-1")
PROGRAMS = ("sh", "ls", "cat", "env", "id", "sleep", "sort", "touch")
IMAGE = "kitchen:of-test"
IMAGE_OF_STORIES = "busybox:stable"
STORIES = Path(__file__).parents[5] / "examples/pizza-driver/stories"


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """An image with some programs of this machine, in a storage of its own."""
    with tempfile.TemporaryDirectory(prefix="p") as directory:
        place, root = Path(directory), Path(directory, "rootfs")
        _make_root(root)
        (place / "storage.conf").write_text(
            f'[storage]\ndriver = "vfs"\ngraphroot = "{place}/root"\nrunroot = "{place}/run"\n'
            '[storage.options.vfs]\nignore_chown_errors = "true"\n'
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CONTAINERS_STORAGE_CONF", str(place / "storage.conf"))
            patch.setenv("XDG_RUNTIME_DIR", directory)
            patch.setenv("HOME", directory)
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w") as archive:
                archive.add(root, ".")
            change = ("--change", 'ENTRYPOINT ["/bin/cat", "/etc/kitchen"]', "--change", "ENV DOUGH=thin")
            subprocess.run([PODMAN, "import", "--quiet", *change, "-", IMAGE], input=packed.getvalue(), check=True)
            subprocess.run([PODMAN, "tag", IMAGE, IMAGE_OF_STORIES], check=True)
            yield IMAGE


def _make_root(root: Path) -> None:
    for name in ("bin", "dev", "etc", "proc", "sys", "tmp", "run"):
        (root / name).mkdir(parents=True)
    (root / "etc/kitchen").write_text("of the image\n")
    for name in PROGRAMS:
        program = os.path.realpath(shutil.which(name) or name)
        shutil.copy(program, root / "bin" / name)
        listed = subprocess.run(
            [shutil.which("ldd") or "ldd", program], check=False, capture_output=True, text=True
        ).stdout
        for library in re.findall(r"(/\S+) \(0x", listed):
            target = root / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)


@pytest.fixture
async def runtime(image: str) -> AsyncIterator[PodmanRuntime]:
    with tempfile.TemporaryDirectory(prefix="n") as directory:
        async with _runtime(Path(directory)) as made:
            yield made


@asynccontextmanager
async def _runtime(place: Path) -> AsyncIterator[PodmanRuntime]:
    (place / "cdi").mkdir()
    places = NodePlaces(place, place / "cdi")
    namespace = NodeNamespace(places, {}, name="node-1", containers=True)
    async with PodmanRuntime(PODMAN, places, namespace, directory=place / "containers") as made:
        yield made


async def run(runtime: PodmanRuntime, *command: str, **config: Any) -> tuple[ContainerStatus, str]:
    """Runs a container to its end; its status and its output."""
    await runtime.run(ContainerConfig(POD, "c", 0, IMAGE, command, hostname="guest", **config))
    await until(lambda: not runtime.containers(POD.uid)[-1].running)
    status = runtime.containers(POD.uid)[-1]
    found = runtime.find(status.id)
    assert found is not None
    runtime.remove(POD.uid)
    return status, found.log.text


async def test_container_has_the_files_of_its_image(runtime: PodmanRuntime) -> None:
    status, text = await run(
        runtime, "sh", "-c", "id -u; cat /etc/kitchen; cat /proc/sys/kernel/hostname; ls /; exit 7"
    )

    assert status.exit is not None
    assert (status.exit.code, status.exit.reason) == (7, "Error")
    assert text.startswith("0\nof the image\nguest\n")
    assert "home" not in text
    assert status.id.startswith("podman://")


async def test_container_without_a_command_runs_that_of_its_image(runtime: PodmanRuntime) -> None:
    assert (await run(runtime))[1] == "of the image\n"
    status, text = await run(runtime, "/etc/hostname", arguments_only=True)
    assert text.splitlines()[0] == "of the image"
    assert status.environment["DOUGH"] == "thin"


async def test_cdi_is_applied_by_podman(runtime: PodmanRuntime, tmp_path: Path) -> None:
    (tmp_path / "menu").write_text("funghi\n")
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ncat > /dev/null; touch {tmp_path}/hooked\n")
    hook.chmod(0o755)
    edits = SpecEdits(
        env=("OVEN=hot",),
        mounts=(Mount(host_path=str(tmp_path / "menu"), container_path="/etc/menu", options=("ro", "bind")),),
        device_nodes=(DeviceNode(path="/dev/loop-control"),) if Path("/dev/loop-control").exists() else (),
        hooks=(Hook(hook_name="createRuntime", path=str(hook)),),
    )
    spec = build_spec("kitchen.example/oven", (CDIDevice(name="oven0", container_edits=edits),))
    assert runtime.namespace is not None
    runtime.namespace.outside("/var/run/cdi/oven.json").write_text(
        spec.model_dump_json(by_alias=True, exclude_defaults=True)
    )

    status, text = await run(
        runtime, "sh", "-c", "cat /etc/menu; ls /dev; env", edits=edits, cdi_devices=("kitchen.example/oven=oven0",)
    )

    assert text.startswith("funghi\n")
    assert "\nOVEN=hot\n" in text
    assert ("\nloop-control\n" in text) == bool(edits.device_nodes)
    assert (tmp_path / "hooked").exists()
    assert status.edits_applied
    assert status.hooks_applied


async def test_variables_reach_a_container_but_no_other_user(
    runtime: PodmanRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    variables = {"PATH": "/bin:/kitchen", "LD_PRELOAD": "", "SECRET": 'two "lines"\n of $it', "EMPTY": ""}
    program, log = tmp_path / "podman", tmp_path / "log"
    program.write_text(f'#!/bin/sh\nprintf "%s " "$@" >> {log}; cat /proc/self/environ >> {log}\nexec {PODMAN} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(runtime, "_podman_program", str(program))

    _, text = await run(runtime, "env", "-0", environment=variables)

    found = dict(item.split("=", 1) for item in text.split("\0") if item)
    assert {name: found[name] for name in variables} == variables
    assert "create" in log.read_text()
    assert "of $it" not in log.read_text()
    assert runtime.namespace is not None
    assert list(runtime.namespace.outside("/var/run/cdi").iterdir()) == []


async def test_variables_of_devices_replace_those_of_the_pod(runtime: PodmanRuntime) -> None:
    edits = SpecEdits(env=("OVEN=hot",))
    spec = build_spec("kitchen.example/oven", (CDIDevice(name="oven0", container_edits=edits),))
    assert runtime.namespace is not None
    runtime.namespace.outside("/var/run/cdi/oven.json").write_text(
        spec.model_dump_json(by_alias=True, exclude_defaults=True)
    )

    _, text = await run(
        runtime, "env", edits=edits, cdi_devices=("kitchen.example/oven=oven0",), environment={"OVEN": "cold"}
    )

    assert "OVEN=hot" in text.splitlines()


async def test_device_that_no_cdi_file_defines_is_a_start_error(runtime: PodmanRuntime) -> None:
    status, _ = await run(runtime, "true", cdi_devices=("kitchen.example/oven=none",))
    assert status.exit is not None
    assert status.exit.reason == "StartError"
    assert "kitchen.example/oven=none" in status.exit.message


async def test_volumes_are_mounted(runtime: PodmanRuntime, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old\n")
    mounts = (VolumeMount("/data", str(tmp_path)), VolumeMount("/fixed", str(tmp_path), read_only=True))
    status, text = await run(runtime, "sh", "-c", "cat /data/file; touch /data/new; touch /fixed/x", mounts=mounts)

    assert text.startswith("old\n")
    assert status.exit is not None
    assert status.exit.code != 0
    assert (tmp_path / "new").exists()
    assert not (tmp_path / "x").exists()


async def test_command_that_is_not_in_the_image_is_a_start_error(runtime: PodmanRuntime) -> None:
    status, _ = await run(runtime, "/bin/none")
    assert status.exit is not None
    assert (status.exit.code, status.exit.reason) == (128, "StartError")
    assert "/bin/none" in status.exit.message
    status, _ = await run(runtime, "sh", "-c", "exit 127")
    assert status.exit is not None
    assert (status.exit.code, status.exit.reason) == (127, "Error")


async def test_folder_stands_for_an_image(runtime: PodmanRuntime, tmp_path: Path) -> None:
    _make_root(tmp_path / "root")
    image = LocalImage("x", tmp_path / "root", ImageSettings(env=("DOUGH=thick",)))
    status, text = await run(runtime, "sh", "-c", "cat /etc/kitchen; touch /new; env", local_image=image)
    assert text.startswith("of the image\n")
    assert "DOUGH=thick" in text
    assert status.environment["DOUGH"] == "thick"
    assert not (tmp_path / "root/new").exists()


async def test_command_runs_in_a_container(runtime: PodmanRuntime) -> None:
    status = await runtime.run(ContainerConfig(POD, "c", 0, IMAGE, ("sh", "-c", "touch /here; echo up; sleep 3600")))
    await until(lambda: "up" in runtime.reports(*_name())[-1].log.text)
    nothing = os.open(os.devnull, os.O_RDWR)
    reading, writing = os.pipe()
    code = await runtime.exec(status.id, ("sh", "-c", "ls /here; exit 5"), (nothing, writing, nothing))
    os.close(writing)
    with os.fdopen(reading) as output:
        assert await asyncio.to_thread(output.read) == "/here\n"
    assert await code == 5
    os.close(nothing)


async def test_image_that_is_missing_is_reported(runtime: PodmanRuntime) -> None:
    with pytest.raises(ImageMissing, match='Container image "none:1" is not present with pull policy of Never'):
        await runtime.run(ContainerConfig(POD, "c", 0, "none:1", ("true",)))
    assert runtime.containers(POD.uid) == []


async def test_container_is_killed_after_its_grace_period(runtime: PodmanRuntime) -> None:
    status = await runtime.run(ContainerConfig(POD, "c", 0, IMAGE, ("sh", "-c", "trap '' TERM; echo up; sleep 3600")))
    await until(lambda: "up" in runtime.reports(*_name())[-1].log.text)
    runtime.stop(status.id, 0.2)
    await until(lambda: not runtime.containers(POD.uid)[-1].running)
    found = runtime.containers(POD.uid)[-1].exit
    assert found is not None
    assert found.code == 137


def _name() -> tuple[
    str,
    str,
]:
    return POD.namespace, POD.name


async def test_nothing_is_left_of_containers(image: str) -> None:
    with tempfile.TemporaryDirectory(prefix="n") as directory:
        async with _runtime(Path(directory)) as runtime:
            await runtime.run(ContainerConfig(POD, "c", 0, IMAGE, ("sleep", "3600")))
            await until(lambda: _processes_with(directory))
        await until(lambda: not _processes_with(directory))


def _processes_with(text: str) -> list[str]:
    return [process.command_line for process in processes() if text in process.command_line]


@pytest.mark.parametrize("mode", ["process", "podman"])
def test_stories_pass_in_both_modes(image: str, mode: str) -> None:
    stories = ["order-by-claim", "shared-by-two-containers", "same-oven-temperature", "menu-changes"]
    given = [word for story in stories for word in ("--story", str(STORIES / story))]
    arguments = ["sandbox", str(STORIES.parent), "--containers", mode, *given]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output


TEST = """\
def test_a_pod_in_its_image(dra):
    dra.apply("order.yaml")
    dra.wait_for(lambda: "of the image" in dra.wait("guest").containers["eater"].output)
"""


def test_tests_of_a_driver_run_in_images(image: str, tmp_path: Path) -> None:
    order = ORDER.replace('"echo $FLAME; sleep 3600"', '"cat /etc/kitchen; sleep 3600"')
    project = write_project(tmp_path, {"tests/order.yaml": order, "tests/test_images.py": TEST})

    output = report(project, "--dra-containers", "podman")

    assert "1 passed" in output, output


async def test_pod_of_an_unknown_image_waits_for_it(image: str) -> None:
    container = {"name": "c", "image": "none:1", "command": ["true"]}
    async with Sandbox([], SandboxSettings(containers="podman")) as sandbox:
        await sandbox.client.create(PODS, {"metadata": {"name": "p"}, "spec": {"containers": [container]}}, "default")
        api = sandbox.control_plane.server.api

        def reason() -> Any:
            pod = api.lookup("pods", "default/p") or {}
            statuses = pod["status"].get("containerStatuses") or [{}]
            return (statuses[0].get("state") or {}).get("waiting", {}).get("reason")

        await until(lambda: reason() == "ErrImageNeverPull")
        await sandbox.client.delete(PODS, "p", "default")
        await until(lambda: api.lookup("pods", "default/p") is None)


async def test_podman_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxError, match="podman is not on the PATH; install it"):
        async with Sandbox([], SandboxSettings(containers="podman")):
            pass


async def test_podman_needs_namespaces() -> None:
    with pytest.raises(ConfigurationError, match="leave out --no-node-namespaces"):
        async with Sandbox([], SandboxSettings(containers="podman", node_namespaces=False)):
            pass
