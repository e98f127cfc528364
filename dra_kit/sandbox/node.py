"""One node of a sandbox: a kubelet with its containers, and the driver's node role in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from copy import deepcopy
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import BaseModel

from dra_kit.author.driver import Driver
from dra_kit.errors import ConfigurationError
from dra_kit.kube.client import Client
from dra_kit.kube.credentials import load_credentials
from dra_kit.node.agent import Agent
from dra_kit.node.settings import NodeSettings
from dra_kit.node.state.dump import dump_state
from dra_kit.sandbox.kubelet.activity import Observer
from dra_kit.sandbox.kubelet.node import NodeKubelet
from dra_kit.sandbox.roles import RoleThread
from dra_kit.sandbox.workload.intake import Intake
from dra_kit.sandbox.workload.orphans import MARK_VARIABLE
from dra_kit.sandbox.workload.runtime import ProcessRuntime

_ORPHAN_AFTER = 600.0
_POLL = 0.02
_EFFECTS_INTERVAL = 30.0  # seconds, as on a node
_DRAIN_SECONDS = 1.0  # nobody comes back for the state of a sandbox that ends


class SandboxNode:
    """An asynchronous context manager that runs a kubelet; the driver follows with :meth:`start_driver`.

    Args:
        name: of the node.
        directory: everything of the node lies below it; a short path, for sockets.
        client: of the API server, for the kubelet.
        mark: of the sandbox, for the processes of containers.
        time_scale: waits of kubelet and driver are divided by this.
        declared_features: alpha features that are on for the kubelet.
        observer: told what the kubelet does.
        intake: reads the output of containers.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        client: Client,
        *,
        mark: str,
        time_scale: float = 1.0,
        declared_features: Sequence[str] = (),
        observer: Observer,
        intake: Intake,
    ) -> None:
        self.name = name
        self.directory = directory
        self.cdi_dir = directory / "cdi"
        self.runtime = ProcessRuntime(directory=directory / "containers", mark=mark, intake=intake)
        self._mark = mark
        self._time_scale = time_scale
        self.kubelet = NodeKubelet(
            client,
            node_name=name,
            kubelet_dir=directory,
            runtime=self.runtime,
            cdi_dirs=(self.cdi_dir,),
            time_scale=time_scale,
            declared_features=declared_features,
            observer=observer,
        )
        self._stack = AsyncExitStack()
        self._settings: NodeSettings | None = None
        self._role: RoleThread | None = None
        self._agent: Agent | None = None
        self._driver = ""
        self._own_directories: dict[str, Path] = {}

    async def __aenter__(self) -> Self:
        self.cdi_dir.mkdir(parents=True, exist_ok=True)
        try:
            await self._stack.enter_async_context(self.runtime)
            await self._stack.enter_async_context(self.kubelet)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop_driver()
        await self._stack.aclose()

    def start_driver(self, driver: Driver[Any, Any], kubeconfig: Path, author: BaseModel | None) -> RoleThread:
        """Start the driver's node role.

        Args:
            driver: of this node alone.
            kubeconfig: of the API server.
            author: the author's settings.
        """
        settings = self._settings = NodeSettings(
            node_name=self.name,
            kubeconfig=kubeconfig,
            kubelet_dir=self.directory,
            cdi_dir=self.cdi_dir,
            drain=_DRAIN_SECONDS,
            orphan_after=_ORPHAN_AFTER / self._time_scale,
            effects_interval=_EFFECTS_INTERVAL / self._time_scale,
            child_environment={MARK_VARIABLE: self._mark},
            check_device_nodes=False,  # nothing applies them here, and pretended hardware has none
            author=author,
        )
        self._driver = driver.name
        # what a driver changes in hardware may be files; directories that others fill are none of its
        self._own_directories = {name: path for name, path in _directories(author) if _is_vacant(path)}

        async def run() -> int:
            self._agent = Agent(driver, settings, await load_credentials(kubeconfig))
            return await self._agent.run()

        self._role = RoleThread(f"node role on {self.name}", run)
        self._role.start()
        return self._role

    async def restart_driver(self, spare: Driver[Any, Any] | None, kubeconfig: Path) -> None:
        """Stop the driver as a SIGTERM would, and start a copy of one that never ran: nothing in memory is left.

        Raises:
            ConfigurationError: there is none.
        """
        if spare is None:
            raise ConfigurationError("the driver here cannot be restarted; use dra_kit.testing.sandbox(…)")
        await self.stop_driver()
        while self.serves():  # until the kubelet knows, it would call what is gone  # noqa: ASYNC110
            await asyncio.sleep(_POLL)
        directories = self._own_directories
        self.start_driver(deepcopy(spare), kubeconfig, self.author)
        self._own_directories = directories  # what was there before the first start decides

    async def inject_health(self, device: str, reason: str, message: str | None, pool: str | None) -> None:
        """See :meth:`dra_kit.node.agent.Agent.inject_health`.

        Raises:
            ConfigurationError: the driver has no health source, or no such device or reason here.
        """
        if self._agent is None or self._role is None:
            raise ConfigurationError(f"no driver runs on {self.name}")
        await asyncio.wrap_future(self._agent.inject_health(device, reason, message, pool=pool))

    async def stop_driver(self) -> None:
        """Stop the driver as a SIGTERM would; its state stays."""
        role, self._role = self._role, None
        if role is not None:
            await role.stop()

    def calls(self) -> Sequence[str]:
        """The calls of the driver's code that have not returned."""
        return self._role.calls() if self._role else ()

    def hanging(self, patience: float) -> Sequence[str]:
        """Those that have not returned for so many seconds, and ``discover`` when it has not yielded for as long."""
        return self._agent.hanging(patience) if self._agent else ()

    def serves(self) -> bool:
        """Whether the kubelet knows the driver: a pod that comes before waits for more than a minute."""
        return bool(self.kubelet.plugins.plugins(self._driver))

    @property
    def failure(self) -> str:
        """Why the driver's node role ended; empty while it runs."""
        return self._role.failure if self._role else ""

    @property
    def author(self) -> BaseModel | None:
        """The author's settings on this node."""
        settings: BaseModel | None = self._settings.author if self._settings else None
        return settings

    # --- what can be seen of it

    def cdi_files(self) -> list[Path]:
        """The driver's files in the CDI directory, those that it is writing too."""
        return [path for path in _files(self.cdi_dir) if self._driver in path.name]

    def cdi_specs(self) -> dict[str, Mapping[str, Any]]:
        """What a container runtime reads there, by path."""
        found = {}
        for path in self.cdi_files():
            if path.suffix != ".json":  # not whole yet
                continue
            try:
                found[str(path)] = json.loads(path.read_text(encoding="utf-8"))
            except FileNotFoundError:
                continue  # removed at this moment
        return found

    def state(self) -> Iterator[str]:
        """What the node keeps for claims, one text for each thing."""
        for path in self.cdi_files():
            yield f"CDI file {path.name}"
        if self._settings is None:
            return
        try:
            state = dump_state(self._settings.database(self._driver))
        except ConfigurationError:  # it has written nothing yet
            return
        for record in state["claims"]:
            yield f"record of claim {record['namespace']}/{record['name']}"
        for effect in state["effects"]:
            yield f"effect {effect['effect']} with {effect['spec']}"
        for name, directory in self._own_directories.items():
            for path in _files(directory):
                yield f"{_words(name)} file {path.relative_to(directory)}"


def _directories(author: BaseModel | None) -> Iterator[tuple[str, Path]]:
    """The settings that name a directory, or a path where none is yet."""
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


def _words(setting: str) -> str:
    return setting.removesuffix("_dir").removesuffix("_directory").replace("_", " ")


def _files(directory: Path) -> list[Path]:
    # not rglob: it fails on a directory that is removed meanwhile
    return sorted(Path(top, name) for top, _, names in os.walk(directory) for name in names)
