"""A driver's node role as a process of this machine, beside the real kubelet, under the chart's ServiceAccount."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.errors import ConfigurationError
from dra_kit.node.settings import NodeSettings
from dra_kit.node.state.store import dump_state
from dra_kit.sandbox.stories.facts import ResourceFacts
from dra_kit.sandbox.stories.runner import StoryResult, run_story
from dra_kit.sandbox.stories.story import load_story
from dra_kit.testing.real import (
    RemoteDriverControl,
    printed_device_nodes,
    printed_interfaces,
    printed_mounts,
    printed_resources,
    printed_variables,
)
from tests.cluster.access import Access, granted
from tests.cluster.plane import Plane
from tests.cluster.processes import DRA_KIT, Running, running
from tests.support.files import files_below

CDI_DIR = Path("/var/run/cdi")


@dataclass(frozen=True)
class NodeDriver:
    """A driver that serves the kubelet.

    Attributes:
        plane: where it runs.
        access: its accounts.
        name: of the driver.
        process: its node role.
        state_dir: its durable state.
        hardware_dir: the directory that stands for its hardware, if it has one.
        files: the files and folders that its settings name; ``<setting>/<folder>`` for one that is elsewhere.
        command: what starts the node role.
    """

    plane: Plane
    access: Access
    name: str
    process: Running
    state_dir: Path
    hardware_dir: Path | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    command: Sequence[object] = ()

    @asynccontextmanager
    async def cluster(self) -> AsyncIterator[RealCluster]:
        """The cluster with this driver, as stories see it, for the running event loop."""
        credentials = await load_credentials(self.plane.kubeconfig)
        async with Client(credentials, user_agent="dra-kit-tests") as client:
            yield RealCluster(client, self)


async def play(story: Path, cluster: RealCluster, log: Callable[[], str] | None = None) -> StoryResult:
    """Run a story; fail the test unless it passes, with the end of the node role's log, or another one."""
    result = await run_story(load_story(story), cluster)
    if not result.passed:
        told = log() if log is not None else "\n".join((await cluster.driver_log())[-30:])
        pytest.fail(f"{result.report()}\nlog:\n{told}", pytrace=False)
    return result


class Control(RemoteDriverControl):
    """Files of the driver can be replaced: it runs on this machine."""

    def __init__(self, driver: str, cluster: RealCluster) -> None:
        super().__init__(driver)
        self._cluster = cluster

    async def files(self, place: str) -> Sequence[str] | None:
        return await self._cluster.files(place)

    async def replace_file(self, setting: str, text: str) -> str:
        return await self._cluster.replace_file(setting, text)


class RealCluster:
    """A real cluster for stories: containers print their environment, so it is read from their output."""

    def __init__(self, client: Client, driver: NodeDriver) -> None:
        self.client = client
        self._driver = driver

    @property
    def node_driver(self) -> NodeDriver:
        """What serves the kubelet."""
        return self._driver

    @property
    def driver(self) -> str:
        return self._driver.name

    @property
    def drivers(self) -> Sequence[str]:
        return [self.driver]

    @property
    def kubeconfig(self) -> Path:
        return self._driver.plane.kubeconfig

    async def environment(self, namespace: str, pod: str, container: str) -> Mapping[str, str]:
        """What the container printed as ``env`` does."""
        return printed_variables(await self.output(namespace, pod, container))

    async def output(self, namespace: str, pod: str, container: str) -> str:
        """The container's log; empty while the kubelet has none."""
        arguments = ("logs", pod, "--namespace", namespace, "--container", container)
        result = await asyncio.to_thread(self._driver.plane.kubectl, *arguments, check=False)
        return result.stdout if result.returncode == 0 else ""

    async def device_nodes(self, namespace: str, pod: str, container: str) -> Mapping[str, str] | None:
        """What the container printed as ``ls -l`` does."""
        return printed_device_nodes(await self.output(namespace, pod, container))

    async def mounts(self, namespace: str, pod: str, container: str) -> Mapping[str, str] | None:
        """What the container printed of its mounts."""
        return printed_mounts(await self.output(namespace, pod, container))

    async def resources(self, namespace: str, pod: str, container: str) -> ResourceFacts:
        """The CPUs and memory nodes in the status that the container printed."""
        return printed_resources(await self.output(namespace, pod, container))

    async def interfaces(self, namespace: str, pod: str, containers: Sequence[str]) -> Sequence[str] | None:
        """The interfaces that the first container printed that shows any."""
        found = [printed_interfaces(await self.output(namespace, pod, container)) for container in containers]
        return next((names for names in found if names is not None), None)

    async def files(self, place: str) -> Sequence[str] | None:
        """The files at a place, ``<setting>`` or ``<setting>/<glob>``; None for a setting that is not known here."""
        return await asyncio.to_thread(self._files, place)

    def _files(self, place: str) -> list[str] | None:
        known = [name for name in self._driver.files if place == name or place.startswith(f"{name}/")]
        if not known:
            return None
        name = max(known, key=len)
        path, pattern = self._driver.files[name], place.removeprefix(name).removeprefix("/")
        found = sorted(path.glob(pattern)) if pattern else [path]
        return [file.read_text(encoding="utf-8", errors="replace") for file in found if file.is_file()]

    async def node_state(self) -> Iterable[str]:
        """CDI files, records, effects and hardware files of the driver."""
        return await asyncio.to_thread(self._node_state)

    def _node_state(self) -> list[str]:
        driver = self._driver
        found = [f"CDI file {path.name}" for path in self._cdi_files()]
        try:
            state = dump_state(NodeSettings(node_name="", state_dir=driver.state_dir).database(driver.name))
        except ConfigurationError:  # it has written nothing yet
            state = {"claims": [], "effects": []}
        found += [f"record of claim {item['namespace']}/{item['name']}" for item in state["claims"]]
        found += [f"effect {item['effect']} with {item['spec']}" for item in state["effects"]]
        if driver.hardware_dir is not None:
            files = sorted(files_below(driver.hardware_dir))
            found += [f"hardware file {path.relative_to(driver.hardware_dir)}" for path in files]
        return found

    async def replace_file(self, setting: str, text: str) -> str:
        """Replace the file of a setting, as editors do: a new file under the old name."""
        return await asyncio.to_thread(self._replace_file, self._driver.files[setting], text)

    def _replace_file(self, path: Path, text: str) -> str:
        former = path.read_text(encoding="utf-8")
        new = path.with_name(f".{path.name}.new")
        new.write_text(text, encoding="utf-8")
        new.replace(path)
        return former

    async def driver_log(self) -> Sequence[str]:
        """The lines of the node role."""
        return await asyncio.to_thread(self._driver.process.lines)

    def control(self, driver: str = "") -> RemoteDriverControl:
        return Control(driver or self.driver, self)

    def refusal(self, namespace: str, claim: str) -> str:
        """Nothing: of the driver's errors only the texts can be seen from here."""
        del namespace, claim
        return ""

    def forget_refusals(self, namespace: str) -> None:
        """Nothing is kept."""
        del namespace

    def _cdi_files(self) -> list[Path]:
        return sorted(path for path in files_below(CDI_DIR) if self._driver.name in path.name)


def has_hooks(process: Running) -> bool:
    """Whether a process of a driver has logged that it is connected to the container runtime."""
    return "NRI plugin" in process.tail() and "connected" in process.tail()


@contextmanager
def node_driver(
    plane: Plane,
    target: str | Path,
    name: str,
    *,
    classes: str = "",
    files: Mapping[str, Path] | None = None,
    hardware: bool = False,
    directory: Path | None = None,
    values: Sequence[str] = (),
) -> Iterator[NodeDriver]:
    """Run a driver's node role, and its DeviceClasses with it, until its slices are published.

    Args:
        plane: with a node.
        target: TARGET of ``dra-kit node``.
        name: of the driver.
        classes: manifests of its DeviceClasses.
        files: files that its settings name; each gets a copy, so that stories may change it.
        hardware: it has a setting ``hardware_dir``.
        directory: where the command is run from.
        values: of the chart, as helm's ``--set`` takes them.
    """
    assert plane.node is not None
    release = name.replace(".", "-")
    own = plane.directory / release
    own.mkdir()
    copies = {setting: Path(shutil.copy(path, own / path.name)) for setting, path in (files or {}).items()}
    hardware_dir = own / "hardware" if hardware else None
    flags: list[object] = [part for setting, path in copies.items() for part in (f"--{setting}", path)]
    if hardware_dir is not None:
        hardware_dir.mkdir()
        flags += ["--hardware-dir", hardware_dir]
    with granted(plane, release=release, driver=name, values=values) as access, _applied(plane, classes):
        command = [
            DRA_KIT, "node", target, "--node-name", plane.node, "--kubeconfig", access.kubeconfig("node"),
            "--cdi-dir", CDI_DIR, "--state-dir", own / "state", *flags,
        ]  # fmt: skip
        with running(command, log=own / "node.log", directory=directory) as process:
            process.wait_until(
                f"slices of {name}", lambda: any(item["spec"].get("devices") for item in plane.slices(name))
            )
            yield NodeDriver(plane, access, name, process, own / "state", hardware_dir, copies, command)
        plane.delete_slices(name)
    shutil.rmtree(own)


@contextmanager
def _applied(plane: Plane, manifests: str) -> Iterator[None]:
    if not manifests:
        yield
        return
    plane.kubectl("apply", "-f", "-", stdin=manifests)
    try:
        yield
    finally:
        plane.kubectl("delete", "-f", "-", "--ignore-not-found", stdin=manifests)
