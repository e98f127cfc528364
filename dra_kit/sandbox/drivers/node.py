"""One node of the sandbox: kubelet, containers and the driver's node roles."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel

from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.errors import ConfigurationError, DraKitError
from dra_kit.kubernetes.release import UNMODIFIED, Release
from dra_kit.node.settings import NodeSettings
from dra_kit.node.state.store import dump_state
from dra_kit.sandbox.containers.images import ImageStore
from dra_kit.sandbox.containers.log import OutputReader
from dra_kit.sandbox.containers.node_namespace import LOCALHOST, NodeNamespace, NodePlaces
from dra_kit.sandbox.containers.podman_runtime import VARIABLES_FILE, PodmanRuntime
from dra_kit.sandbox.containers.process_runtime import ProcessRuntime
from dra_kit.sandbox.containers.processes import kill_orphans
from dra_kit.sandbox.drivers.accounts import RoleCredentials
from dra_kit.sandbox.drivers.node_driver import NodeDriver
from dra_kit.sandbox.drivers.sandbox_driver import DriverRelease
from dra_kit.sandbox.drivers.settings import BOOT_ID, cdi_directory, node_settings, nri_socket
from dra_kit.sandbox.kubelet.claim_manager import Checkpoint
from dra_kit.sandbox.kubelet.environment import NodeShape
from dra_kit.sandbox.kubelet.node import NodeKubelet
from dra_kit.sandbox.records import RecordObserver

_POLL = 0.02


class SandboxNode:
    """An asynchronous context manager that runs a kubelet; drivers follow with :meth:`start_driver`.

    Args:
        directory: everything of the node lies below it; a short path, for sockets.
        shape: labels and capacity of the Node.
        network_namespaces: see :class:`dra_kit.sandbox.containers.process_runtime.ProcessRuntime`.
        namespace: makes what the node's containers and programs run in, from the node's directories; None for this
            machine.
        podman: the path of podman, which runs the containers in that namespace; empty for processes.
        images: what stands for images.
    """

    def __init__(
        self,
        name: str,
        drivers: Sequence[str],
        directory: Path,
        client: Client,
        *,
        mark: str,
        time_scale: float = 1.0,
        release: Release = UNMODIFIED,
        observer: RecordObserver,
        intake: OutputReader,
        shape: NodeShape | None = None,
        network_namespaces: bool = False,
        namespace: Callable[[NodePlaces], NodeNamespace] | None = None,
        podman: str = "",
        images: ImageStore | None = None,
    ) -> None:
        self.name = name
        self.directory = directory
        self.cdi_dir: Path = cdi_directory(directory)
        places = NodePlaces(directory, self.cdi_dir)
        own = namespace(places) if namespace else None
        options: dict[str, Any] = {
            "directory": directory / "containers",
            "mark": mark,
            "intake": intake,
            "nri_socket": nri_socket(directory),
        }
        self.runtime: ProcessRuntime = (
            PodmanRuntime(podman, places, own, **options)
            if podman and own
            else ProcessRuntime(
                network_namespaces=network_namespaces, node_directory=directory, namespace=own, **options
            )
        )
        self._mark = mark
        self._time_scale = time_scale
        self.kubelet: NodeKubelet = NodeKubelet(
            client,
            node_name=name,
            kubelet_dir=directory,
            runtime=self.runtime,
            cdi_dirs=(places.static_cdi, self.cdi_dir),
            time_scale=time_scale,
            shape=shape,
            address=own.address if own else LOCALHOST,
            release=release,
            images=images,
            observer=observer,
        )
        self.drivers: Mapping[str, NodeDriver] = {
            driver: NodeDriver(
                driver,
                self.kubelet,
                self._settings,
                directory / "processes" / driver,
                observer,
                credentials=self._credentials,
            )
            for driver in drivers
        }
        self._boot_id = BOOT_ID
        self._boots = 0
        self._stack = AsyncExitStack()
        self._access: RoleCredentials | None = None
        self._own_directories: dict[str, dict[str, Path]] = {}  # of drivers that were started

    async def __aenter__(self) -> Self:
        self.cdi_dir.mkdir(parents=True, exist_ok=True)
        try:
            await self._stack.enter_async_context(self.runtime)
            await self._stack.enter_async_context(self.kubelet)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(driver.close() for driver in self.drivers.values()))
        await self._stack.aclose()

    def start_driver(self, release: DriverRelease, access: RoleCredentials) -> None:
        """Start a driver's node role for the first time.

        Raises:
            ConfigurationError: it is to run in a process, and no TARGET names it.
        """
        self._access = access
        # a driver's hardware state may be files; directories that others fill do not belong to the driver
        name = release.driver.name
        self._own_directories[name] = {
            setting: path for setting, path in _directories(release.author) if _is_vacant(path)
        }
        self.drivers[name].start(release)

    def _credentials(self) -> Credentials:
        assert self._access is not None  # noqa: S101 - since the first start
        return self._access.credentials

    def _settings(self, pod_uid: str | None) -> NodeSettings:
        assert self._access is not None  # noqa: S101 - since the first start
        return node_settings(
            self.name,
            self.directory,
            self._access.kubeconfig,
            mark=self._mark,
            time_scale=self._time_scale,
            pod_uid=pod_uid,
            boot_id=self._boot_id,
        )

    async def fails(self) -> None:
        """Wait until the kubelet fails, and raise why; one that is stopped for a reboot does not."""
        while True:
            await self.kubelet.wait()
            await asyncio.sleep(_POLL)

    async def reboot(self, releases: Sequence[DriverRelease], lost: Sequence[Path] = ()) -> None:
        """Reboot the node: containers, programs and drivers stop, CDI files are deleted.

        A driver in a process is killed, as by a power cut; a driver in a thread is shut down.

        Args:
            releases: the releases to run afterwards, one per driver; they never ran, since a reboot loses memory.
            lost: further directories whose files do not survive the reboot.

        Raises:
            SandboxError: a driver does not come up again.
        """
        await asyncio.gather(*(driver.lose_power() for driver in self.drivers.values()))
        await self.kubelet.stop()
        await self.runtime.lose_power()
        await asyncio.to_thread(kill_orphans, self._mark)
        for directory in (self.cdi_dir, *lost):
            for path in _files(directory):
                path.unlink(missing_ok=True)
        self._boots += 1
        self._boot_id = self.directory / f"boot-id-{self._boots}"
        self._boot_id.write_text(f"{uuid.uuid4()}\n", encoding="utf-8")
        await self.kubelet.start()
        await asyncio.gather(*(self.drivers[release.driver.name].start_again(release) for release in releases))

    # --- what drivers of others need

    def variables(self, kubeconfig: str) -> dict[str, str]:
        """Return the environment of a driver on it, by the names of Kubernetes' example driver and of ``dra-kit node``.

        Args:
            kubeconfig: a path.
        """
        directory, cdi, nri = str(self.directory), str(self.cdi_dir), str(nri_socket(self.directory))
        return {
            "KUBECONFIG": kubeconfig,
            "NODE_NAME": self.name,
            "KUBELET_REGISTRAR_DIRECTORY_PATH": f"{directory}/plugins_registry",
            "KUBELET_PLUGINS_DIRECTORY_PATH": f"{directory}/plugins",
            "CDI_ROOT": cdi,
            "NRI_SOCKET": nri,
            "DRA_KUBECONFIG": kubeconfig,
            "DRA_NODE_NAME": self.name,
            "DRA_KUBELET_DIR": directory,
            "DRA_CDI_DIR": cdi,
            "DRA_NRI_SOCKET": nri,
        }

    def places(self, kubeconfig: str) -> dict[str, str]:
        """Return the values of placeholders in a command for this node, all but ``port``.

        Args:
            kubeconfig: a path.
        """
        directory = str(self.directory)
        return {
            "node": self.name,
            "kubelet": directory,
            "plugins": f"{directory}/plugins",
            "registry": f"{directory}/plugins_registry",
            "cdi": str(self.cdi_dir),
            "nri": str(nri_socket(self.directory)),
            "sysfs": "/sys",
            "kubeconfig": kubeconfig,
        }

    # --- what can be seen of it

    def cdi_files(self, driver: str = "") -> list[Path]:
        """Return a driver's files in the CDI directory, those that it is writing too.

        For an empty name the files of all drivers, and all files for a driver that was started by others.
        """
        names = [driver] if driver in self.drivers else [] if driver else list(self.drivers)
        files = (path for path in _files(self.cdi_dir) if not path.name.startswith(VARIABLES_FILE))
        return [path for path in files if not names or any(name in path.name for name in names)]

    def cdi_specs(self, driver: str, claims: Collection[str]) -> dict[str, Mapping[str, Any]]:
        """Return what a container runtime reads there of a driver's claims, which are given by UID; by path."""
        found = {}
        for path in self.cdi_files(driver):
            if path.suffix != ".json" or not any(uid in path.name for uid in claims):  # another suffix: not whole yet
                continue
            try:
                found[str(path)] = json.loads(path.read_text(encoding="utf-8"))
            except FileNotFoundError:
                continue  # removed at this moment
        return found

    def state(self) -> Iterator[str]:
        """Yield what the node stores for claims, one text for each thing."""
        for path in self.cdi_files():
            yield f"CDI file {path.name}"
        for info in Checkpoint(self.directory).load():
            yield f"claim {info.claim} that the kubelet has not released"
        for driver, directories in self._own_directories.items():
            of = f" of {driver}" if len(self.drivers) > 1 else ""
            for text in self._state_of(driver, directories):
                yield f"{text}{of}"

    def effects(self) -> list[str]:
        """Return the changes that the drivers made for claims and that would outlive the sandbox, one text for each.

        Programs and objects of the cluster, which can be undone without the driver's code, end with the sandbox.
        """
        found = []
        for database in sorted(self.directory.glob("plugins/*/state.sqlite")):
            with suppress(DraKitError):  # it cannot be read, which its driver logs
                effects = dump_state(database)["effects"]
                found += [f"effect {item['effect']} with {item['spec']}" for item in effects if not item["undo"]]
        return found

    def _state_of(self, driver: str, directories: Mapping[str, Path]) -> Iterator[str]:
        try:
            state = dump_state(self._settings(None).database(driver))
        except ConfigurationError:  # it has written nothing yet
            return
        for record in state["claims"]:
            yield f"record of claim {record['namespace']}/{record['name']}"
        for effect in state["effects"]:
            yield f"effect {effect['effect']} with {effect['spec']}"
        for setting, directory in directories.items():
            name = setting.removesuffix("_dir").removesuffix("_directory").replace("_", " ")
            for path in _files(directory):
                yield f"{name} file {path.relative_to(directory)}"


def _directories(author: BaseModel | None) -> Iterator[tuple[str, Path]]:
    """Yield the settings that name a directory, or a path where none is yet."""
    for name in type(author).model_fields if author else ():
        value = getattr(author, name)
        if isinstance(value, Path) and not value.is_file():
            yield name, value


def _is_vacant(path: Path) -> bool:
    try:
        return not any(path.iterdir())
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _files(directory: Path) -> list[Path]:
    # not rglob: it fails on a directory that is removed meanwhile
    return sorted(Path(top, name) for top, _, names in os.walk(directory) for name in names)
