"""One node for the tests of its role: an API server, a kubelet, and the driver's node process on real sockets."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any, Self

import dra_kit as dra
from dra_kit.client.credentials import load_credentials
from dra_kit.errors import KubeletError
from dra_kit.kubelet.plugin_client import DeviceAnswer
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.agent import NodeAgent
from dra_kit.node.settings import NodeSettings
from dra_kit.node.state.store import dump_state
from dra_kit.sandbox.kubelet.plugin_manager import PluginManager
from tests.support.api import Api, eventually

DRIVER = "dra.pizza"
NODE = "node-1"
AGENT = "dra-kit"  # in the User-Agent of everything but kopf
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
PLENTY = 120.0
"""Seconds that exceed any call, even on a busy machine."""


class Node:
    """A node with an API server and a kubelet, as an asynchronous context manager; tests run agents on it.

    Attributes:
        api: the API server.
        kubelet: the kubelet.
        root: the kubelet's directory.
        cdi: the directory of CDI files.
        boot_id: the file that identifies the boot.
        clock: of agents that are created from now on.
        given: default settings of the agents.
    """

    def __init__(self, directory: Path, *, services: Sequence[str] = ("v1.DRAPlugin", "v1beta1.DRAPlugin")) -> None:
        self.root = directory / "k"
        self.cdi = directory / "cdi"
        self.boot_id = directory / "boot_id"
        self.boot_id.write_text("boot-1\n")
        self.root.mkdir()
        self.clock: Callable[[], float] = time.monotonic
        self.given: dict[str, Any] = {}
        self.directory = directory
        self.api = Api()
        self.kubelet = PluginManager(
            self.root, supported_services=services, get_info_timeout=60, call_timeout=60, release=UNMODIFIED
        )
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._stack.enter_context(self.api)
        self.api.put("nodes", {"metadata": {"name": NODE, "labels": {"oven": "hot"}}})
        self.kubeconfig = self.api.kubeconfig(self.directory / "kubeconfig")
        await self._stack.enter_async_context(self.kubelet)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def settings(self, **changes: Any) -> NodeSettings:
        given: dict[str, Any] = {
            "node_name": NODE, "kubeconfig": self.kubeconfig, "kubelet_dir": self.root, "cdi_dir": self.cdi,
            "boot_id": self.boot_id, "state_dir": self.root / "state",
        }  # fmt: skip
        return NodeSettings(**{**given, **self.given, **changes})

    async def agent(self, driver: dra.Driver[Any, Any], **settings: Any) -> NodeAgent:
        """Create an agent that does not run yet."""
        made = self.settings(**settings)
        return NodeAgent(driver, made, await load_credentials(made.kubeconfig), clock=self.clock)

    @asynccontextmanager
    async def running(self, driver: dra.Driver[Any, Any], **settings: Any) -> AsyncIterator[NodeAgent]:
        """Run an agent that the kubelet calls; it is stopped cleanly at the end."""
        agent = await self.agent(driver, **settings)
        task = asyncio.create_task(agent.run())
        try:
            before = set(self.kubelet.plugins(driver.name))  # a process that was killed may still be among them
            # the kubelet calls the one registered last among those that are connected
            await eventually(
                lambda: any(item.connected for item in set(self.kubelet.plugins(driver.name)) - before) or task.done()
            )
            if task.done():
                await task
                raise AssertionError("the agent stopped by itself")
            yield agent
        finally:
            agent.stop()
            assert await task == 0
            await eventually(lambda: not self.kubelet.plugins(driver.name))

    # -- the cluster's side

    def claim(
        self,
        name: str = "lunch",
        devices: Sequence[str | Mapping[str, Any]] = ("pizza-0",),
        *,
        namespace: str = "default",
        uid: str = "",
        config: Sequence[Mapping[str, Any]] = (),
        annotations: Mapping[str, str] | None = None,
        owner: Mapping[str, Any] | None = None,
        spec: Mapping[str, Any] | None = None,
        reserved_for: Sequence[str] = (),
    ) -> ClaimReference:
        """Create a claim with these allocated devices, each a name or a whole result; without any, it is not allocated.

        ``config`` are opaque parameters of the claim, or whole entries when they have a ``source``; ``owner`` is the
        claim's ownerReference, ``spec`` its spec, ``reserved_for`` the UIDs of pods.
        """
        uid = uid or f"uid-{name}"
        results = [
            {"request": "pizza", "driver": DRIVER, "pool": NODE}
            | ({"device": item} if isinstance(item, str) else dict(item))
            for item in devices
        ]
        entries = [
            dict(item)
            if "source" in item
            else {"source": "FromClaim", "requests": [], "opaque": {"driver": DRIVER, "parameters": dict(item)}}
            for item in config
        ]
        status: dict[str, Any] = {"allocation": {"devices": {"results": results, "config": entries}}} if results else {}
        if reserved_for:
            status["reservedFor"] = [{"resource": "pods", "name": pod, "uid": pod} for pod in reserved_for]
        metadata: dict[str, Any] = {"name": name, "namespace": namespace, "uid": uid}
        if annotations:
            metadata["annotations"] = dict(annotations)
        if owner:
            # the API server deletes objects whose owner does not exist
            there = self.api.put("pods", {"metadata": {"name": owner["name"], "namespace": "default"}})
            metadata["ownerReferences"] = [{**owner, "uid": there["metadata"]["uid"]}]
        self.api.put("resourceclaims", {"metadata": metadata, "spec": dict(spec or {}), "status": status})
        return ClaimReference(namespace, name, uid)

    def slices(self) -> list[dict[str, Any]]:
        """The specs of the published slices."""
        return [item["spec"] for item in self.api.objects("resourceslices")]

    def published(self) -> list[str]:
        """The names of all published devices."""
        return [device["name"] for spec in self.slices() for device in spec.get("devices", [])]

    def slice_writes(self) -> int:
        """The number of requests that write slices."""
        return sum(request.method != "GET" and request.path.startswith(SLICES) for request in self.api.requests)

    def delete_slices(self) -> None:
        """Delete all slices as another client."""
        for item in self.api.objects("resourceslices"):
            self.api.delete("resourceslices", item["metadata"]["name"])

    def forge_slice(self) -> None:
        """Edit the first slice as another client."""
        [item, *_] = self.api.objects("resourceslices")
        item["spec"]["devices"] = [{"name": "forged"}]
        self.api.put("resourceslices", item)

    def events(self) -> list[dict[str, Any]]:
        return self.api.objects("events")

    def gets(self, claim: ClaimReference) -> int:
        """Return how often the node read a claim."""
        return self.api.asked("GET", f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{claim.name}")

    # -- the kubelet's side

    async def prepare(self, *claims: ClaimReference) -> list[DeviceAnswer]:
        """Prepare a pod's claims in one call and return the devices; an error is raised."""
        answers = await self.kubelet.prepare(DRIVER, claims)
        return [device for claim in claims for device in answers[claim.uid]]

    async def prepared_by(
        self, driver: dra.Driver[Any, Any], *claims: ClaimReference, **settings: Any
    ) -> list[DeviceAnswer]:
        """Run a process that prepares these claims, and stop it cleanly; return the devices."""
        async with self.running(driver, **settings):
            return await self.prepare(*claims)

    async def error(self, claim: ClaimReference) -> str:
        """Return why a claim cannot be prepared."""
        answer = (await self.kubelet.plugin(DRIVER).prepare([claim]))[claim.uid]
        assert answer.error, f"{claim} was prepared: {answer.devices}"
        return answer.error

    async def late(self, claim: ClaimReference, begun: Callable[[], object]) -> str:
        """Return the timeout error of a prepare, once the author's code runs: a busy machine may need more calls."""
        while "not prepared within" in (error := await self.error(claim)) and not begun():
            pass
        return error

    async def unprepare(self, *claims: ClaimReference) -> None:
        """Unprepare a pod's claims in one call; an error is raised."""
        await self.kubelet.unprepare(DRIVER, claims)

    async def unprepare_error(self, claim: ClaimReference) -> str:
        """Return why a claim cannot be released."""
        try:
            await self.unprepare(claim)
        except KubeletError as error:
            return str(error)
        raise AssertionError(f"{claim} was released")

    async def late_release(self, claim: ClaimReference, begun: Callable[[], object]) -> str:
        """Return the timeout error of a release, as :meth:`late` does."""
        while "not released within" in (error := await self.unprepare_error(claim)) and not begun():
            pass
        return error

    # -- what is left on the node

    def spec(self, claim: ClaimReference) -> dict[str, Any]:
        """The CDI spec of a claim."""
        [path] = [path for path in self.specs() if claim.uid in path.name and path.suffix == ".json"]
        loaded: dict[str, Any] = json.loads(path.read_text())
        return loaded

    def env(self, claim: ClaimReference) -> list[str]:
        """The environment variables that a container of the claim gets from all its devices."""
        spec = self.spec(claim)
        edits = [spec.get("containerEdits", {}), *(device["containerEdits"] for device in spec["devices"])]
        return [entry for item in edits for entry in item.get("env", [])]

    def specs(self) -> list[Path]:
        """All files in the CDI directory, temporary ones too."""
        return sorted(self.cdi.iterdir()) if self.cdi.is_dir() else []

    def contents(self) -> dict[str, bytes]:
        """Return the files that a container runtime reads: their names do not begin with a dot."""
        return {path.name: path.read_bytes() for path in self.specs() if not path.name.startswith(".")}

    def state(self, **settings: Any) -> dict[str, Any]:
        """What ``--dump-state`` shows."""
        return dump_state(self.settings(**settings).database(DRIVER))

    def records(self) -> list[str]:
        """The names of the claims that are recorded."""
        return [record["name"] for record in self.state()["claims"]]

    def effects(self) -> list[tuple[str, str, list[str]]]:
        """Effects with their phase and the names of the claims that need them."""
        return [
            (item["effect"], item["phase"], [claim["name"] for claim in item["claims"]])
            for item in self.state()["effects"]
        ]

    def execute(self, statement: str, *arguments: object) -> list[Any]:
        """Execute a statement in the database, commit, and return its rows."""
        with closing(sqlite3.connect(self.settings().database(DRIVER), timeout=30)) as db, db:
            return db.execute(statement, arguments).fetchall()

    def lose_claims(self) -> None:
        """Delete the claims from the database, as if their pages were corrupt; the effects remain."""
        self.execute("DELETE FROM effect_claims")
        self.execute("DELETE FROM claims")

    def is_clean(self) -> bool:
        """Return whether nothing is left of any claim."""
        state = self.state()
        return not self.specs() and not any(state[part] for part in ("claims", "effects", "epochs", "corrupt"))


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def not_understood(node: Node, name: str) -> None:
    """Give a claim a status that this release cannot parse."""
    [claim] = [item for item in node.api.objects("resourceclaims") if item["metadata"]["name"] == name]
    node.api.put("resourceclaims", claim | {"status": {"allocation": {"devices": {"results": "all"}}}})


def set_deadline(agent: NodeAgent, seconds: float) -> None:
    """Set the deadline of calls that begin from now on: short if a call must exceed it, long if it must succeed."""
    agent._service.calls.deadline = seconds


@asynccontextmanager
async def node(**options: Any) -> AsyncIterator[Node]:
    """Create a node in a directory whose path is short enough for sockets; pytest's directories are too long."""
    with tempfile.TemporaryDirectory(prefix="n") as directory:
        async with Node(Path(directory), **options) as made:
            yield made
