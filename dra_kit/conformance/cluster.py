"""The cluster of the checks: an API server in this process, a node, and claims that are allocated at once."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import time
import uuid
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final, Self

import yaml
from msgspec import Struct

from dra_kit.apiserver.api import AdmissionAttributes, AdmissionPlugin, RuntimeConfig
from dra_kit.apiserver.authentication import Authenticator
from dra_kit.apiserver.requests import Target
from dra_kit.apiserver.server import ApiServer
from dra_kit.apiserver.status_errors import forbidden_object
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.client.resources import DEVICE_CLASSES, NAMESPACES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dra_kit.conformance.profile import DriverProfile
from dra_kit.conformance.subject import SimulatedNode
from dra_kit.errors import ConfigurationError, KubeError, NotFound
from dra_kit.files import replace_private
from dra_kit.kubernetes.allocator.allocation import Allocator
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.allocator.state import AllocatorState
from dra_kit.kubernetes.manifests.documents import read_objects, source_file
from dra_kit.kubernetes.release import UNMODIFIED, Release
from dra_kit.kubernetes.resource.matching import Node
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.text import did_you_mean

USER_AGENT: Final = "dra-kit conformance"
"""The client of the checks; all other requests are the driver's."""
NAMESPACE: Final = "conformance"
"""Namespace of claims and pods; admin access is allowed in it."""
OWN_CLASS: Final = "conformance.dra-kit"
"""The class of claims if the profile names none."""
CONFIGURED_CLASS: Final = "conformance-configured.dra-kit"
"""The same class with opaque configuration."""
FOREIGN_DRIVER: Final = "other.conformance.dra-kit"
"""A driver that does not exist, for results and slices that are not the driver's."""
_BUFFER: Final = 64 * 1024
_GATE: Final = "127.0.0.1"
_SERVER: Final = "127.0.0.2"  # Linux has all of 127.0.0.0/8
_ATTEMPTS: Final = 20
_TRIED_MAX: Final = 1000
_WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})


class ApiGate:
    """A TCP proxy before the API server, which can refuse connections.

    It has the port of the server, at another address of this machine: the server accepts only requests whose ``Host``
    names its port.
    """

    def __init__(self) -> None:
        self.port: int = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen at a free port."""
        await self.up()

    async def up(self) -> None:
        """Accept connections again."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, _GATE, self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def down(self) -> None:
        """Break all connections, and refuse new ones."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for writer in [*self._writers]:
            writer.transport.abort()
        for task in [*self._tasks]:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @contextlib.asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Be down inside the context."""
        await self.down()
        try:
            yield
        finally:
            await self.up()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - of this coroutine
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            there, out = await asyncio.open_connection(_SERVER, self.port)
            self._writers.add(out)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._forward(reader, out))
                    group.create_task(self._forward(there, writer))
            finally:
                self._writers.discard(out)
                out.close()
        except* (OSError, asyncio.CancelledError):
            pass  # one side has gone, or the gate is closed
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_BUFFER):
            writer.write(data)
            await writer.drain()
        with suppress(OSError):
            if writer.can_write_eof():
                writer.write_eof()


class HeldRequests:
    """Has the driver's requests wait on request, as those to an API server that does not answer."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._held: set[tuple[str, str]] = set()

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Let no request of the driver go on inside the context."""
        self._held.clear()
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    async def wait(self, agent: str, target: Target) -> None:
        """Wait with a request while requests are held."""
        if agent != USER_AGENT and not self._open.is_set():
            self._held.add((target.plural, target.name))
            await self._open.wait()

    def has_claim(self, claim: ClaimReference) -> bool:
        """Return whether a request about a claim has come since the newest hold began."""
        return (RESOURCE_CLAIMS.plural, claim.name) in self._held


class DriverWrites:
    """An admission plugin: it notes the slices of the driver, accepted or not, and rejects those of a pool on request.

    Args:
        inner: the plugin before it.

    Attributes:
        tried: the newest slices as the driver sent them, oldest first; also those that were not accepted.
        count: how many it has sent.
        rejected: how many writes it has rejected.
    """

    def __init__(self, inner: AdmissionPlugin) -> None:
        self._inner = inner
        self._rejects: Callable[[Mapping[str, Any]], bool] = lambda _: False
        self._reason = ""
        self.tried: deque[dict[str, Any]] = deque(maxlen=_TRIED_MAX)
        self.count: int = 0
        self.rejected: int = 0

    @contextlib.contextmanager
    def rejecting(self, pool: str, reason: str) -> Iterator[None]:
        """Reject the driver's slices of a pool inside the context."""
        self._rejects = lambda obj: ((obj.get("spec") or {}).get("pool") or {}).get("name") == pool
        self._reason = reason
        try:
            yield
        finally:
            self._rejects = lambda _: False

    async def mutate(self, write: AdmissionAttributes, warnings: list[str]) -> dict[str, Any]:
        """Note a slice of the driver, or reject it.

        Raises:
            StatusError: it is rejected.
        """
        if write.kind.plural == RESOURCE_SLICES.plural and write.request.agent != USER_AGENT:
            assert write.obj is not None  # noqa: S101 - only a deletion has none
            self.tried.append(copy.deepcopy(write.obj))
            self.count += 1
            if self._rejects(write.obj):
                self.rejected += 1
                raise forbidden_object(write.kind.group, write.kind.plural, write.name, self._reason)
        return await self._inner.mutate(write, warnings)

    async def review(self, write: AdmissionAttributes, warnings: list[str]) -> None:
        """Leave the review to the plugin before it."""
        await self._inner.review(write, warnings)


class DeviceInSlice(Struct, frozen=True):
    """A device in a slice of the driver."""

    pool: str
    name: str
    fields: Mapping[str, Any]


class ConformanceClaim(Struct, frozen=True):
    """A claim as the kubelet names it, and its allocation."""

    reference: ClaimReference
    allocation: Mapping[str, Any]

    @property
    def uid(self) -> str:
        """Its UID."""
        return self.reference.uid

    @property
    def results(self) -> Sequence[Mapping[str, Any]]:
        """The results of its allocation."""
        found: Sequence[Mapping[str, Any]] = self.allocation["devices"]["results"]
        return found

    def results_of(self, driver: str) -> list[Mapping[str, Any]]:
        """Return the results of one driver."""
        return [result for result in self.results if result["driver"] == driver]


class ConformanceCluster:
    """An API server with one node; an asynchronous context manager that runs it.

    Args:
        places: of the node; the kubeconfig is written.
        profile: of the driver.
        socket: path of a unix socket for the checks' own client, in a directory that only this user can access.
        release: of the API server; by default the newest, unmodified.
        runtime_config: which versions the API server serves; by default the newest, unmodified.

    Attributes:
        writes: the slices that the driver tries to write.
        held: lets the driver's requests wait.
    """

    def __init__(
        self,
        places: SimulatedNode,
        profile: DriverProfile,
        socket: Path,
        *,
        release: Release | None = None,
        runtime_config: RuntimeConfig | None = None,
    ) -> None:
        self._places = places
        self._profile = profile
        self._release = release or UNMODIFIED
        self.server: Final = ApiServer(
            _SERVER, tls=True, authenticator=Authenticator(), release=self._release, runtime_config=runtime_config
        )
        self.server.socket = socket
        self.writes: Final = DriverWrites(self.server.api.admission)
        self.server.api.admission = self.writes
        self.gate: Final = ApiGate()
        self.held: Final = HeldRequests()
        self.server.delay_requests(self.held.wait)
        self._stack = AsyncExitStack()
        self._client: Client | None = None
        self._numbers: Counter[str] = Counter()
        self.node_uid: str = ""

    async def __aenter__(self) -> Self:
        try:
            await self._listen()
            self._client = await self._stack.enter_async_context(
                Client(Credentials(self.server.connection()), user_agent=USER_AGENT, warnings=False)
            )
            self.write_kubeconfig()
            await self._create_objects()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _listen(self) -> None:
        """Listen at one port with the gate and the server."""
        for attempt in range(_ATTEMPTS):
            await self.gate.start()
            self.server.port = self.gate.port
            try:
                await self._stack.enter_async_context(self.server)
            except OSError:
                await self.gate.down()
                self.gate.port = 0
                if attempt + 1 == _ATTEMPTS:
                    raise
            else:
                self._stack.push_async_callback(self.gate.down)
                return

    @property
    def client(self) -> Client:
        """The client of the checks, which may do everything."""
        assert self._client is not None  # noqa: S101 - entered
        return self._client

    @property
    def node(self) -> str:
        """Name of the node."""
        return self._places.node

    def write_kubeconfig(self, token: str = "") -> None:
        """Write the driver's kubeconfig, with a token or the administrator's."""
        document: Any = self.server.kubeconfig(token)
        document["clusters"][0]["cluster"]["server"] = f"https://{_GATE}:{self.gate.port}"
        replace_private(self._places.kubeconfig, yaml.safe_dump(document).encode())

    def driver_requests(self) -> Counter[tuple[str, str]]:
        """Return how many requests the driver has sent, by verb and resource."""
        found: Counter[tuple[str, str]] = Counter()
        for (agent, verb, resource), count in self.server.requests.items():
            if agent != USER_AGENT:
                found[verb, resource] += count
        return found

    def slice_writes(self) -> int:
        """Return how many requests of the driver were to write slices."""
        requests = self.driver_requests()
        return sum(
            count for (verb, resource), count in requests.items() if verb in _WRITES and resource == "resourceslices"
        )

    # --- objects

    async def _create_objects(self) -> None:
        for namespace in ("default", NAMESPACE):
            labels = {"resource.kubernetes.io/admin-access": "true"} if namespace == NAMESPACE else {}
            with suppress(KubeError):  # it may exist
                await self.client.create(NAMESPACES, _object(NAMESPACES, namespace, labels=labels))
        node = _object(NODES, self.node, labels={"kubernetes.io/hostname": self.node, "kubernetes.io/os": "linux"})
        created = await self.client.create(NODES, node)
        self.node_uid = created["metadata"]["uid"]
        for file in self._profile.device_classes:
            for _, body in read_objects(source_file(file)):
                kind = self.server.api.registry.by_kind(body["apiVersion"], body["kind"])
                if kind is None:
                    what = f"{body['kind']} {body['apiVersion']}"
                    raise ConfigurationError(f"{file}: {what} is not served; leave it out")
                version = body["apiVersion"].rpartition("/")[2]
                await self.client.create(
                    Resource(kind.group, version, kind.plural, kind.kind, namespaced=kind.namespaced), body
                )

    async def _check_classes(self) -> None:
        """Check that the classes of the profile exist.

        Raises:
            ConfigurationError: one does not.
        """
        known = [item["metadata"]["name"] for item in (await self.client.list(DEVICE_CLASSES)).items]
        named = {"deviceClass": self._profile.device_class}
        for field, request in (("request", self._profile.request), ("sharedRequest", self._profile.shared_request)):
            named[f"{field}.deviceClassName"] = request.get("deviceClassName")
        for field, name in named.items():
            if name is not None and name not in known:
                hint = did_you_mean(str(name), known) or ";"
                there = f"there are {', '.join(known)}" if known else "there is none"
                raise ConfigurationError(
                    f"{field} {name} of the profile does not exist{hint} {there}; correct it, or name its file as "
                    "deviceClasses"
                )

    async def create_classes(self, driver: str) -> None:
        """Create the classes of claims for a driver, if they do not exist.

        Raises:
            ConfigurationError: a class of the profile does not exist.
        """
        selector = {"cel": {"expression": f"device.driver == {json.dumps(driver)}"}}
        await self._create_class(OWN_CLASS, {"selectors": [selector]})
        await self._check_classes()  # the driver may have created some
        if self._profile.configurations:
            spec: dict[str, Any] = {"selectors": [selector]}
            if self._profile.device_class is not None:
                existing = await self.client.get(DEVICE_CLASSES, self._profile.device_class)
                spec = {"selectors": existing["spec"].get("selectors", [])}
            parameters = self._profile.configurations[0].parameters
            spec["config"] = [{"opaque": {"driver": driver, "parameters": parameters}}]
            await self._create_class(CONFIGURED_CLASS, spec)

    async def _create_class(self, name: str, spec: Mapping[str, Any]) -> None:
        try:
            await self.client.get(DEVICE_CLASSES, name)
        except NotFound:
            await self.client.create(DEVICE_CLASSES, {**_object(DEVICE_CLASSES, name), "spec": dict(spec)})

    # --- slices

    async def slices(self, driver: str = "") -> list[dict[str, Any]]:
        """Return the slices of a driver, or all."""
        listed = await self.client.list(RESOURCE_SLICES)
        return [item for item in listed.items if not driver or item["spec"]["driver"] == driver]

    async def devices(self, driver: str) -> list[DeviceInSlice]:
        """Return the published devices of a driver."""
        return [
            DeviceInSlice(item["spec"]["pool"]["name"], device["name"], device)
            for item in newest(await self.slices(driver))
            for device in item["spec"].get("devices") or ()
        ]

    async def wait_for_devices(self, driver: str, timeout: float) -> list[DeviceInSlice]:
        """Wait until every pool of a driver is complete; return the devices, or nothing if there are none in time."""
        end = time.monotonic() + timeout
        while True:
            slices = newest(await self.slices(driver))
            pools = Counter(item["spec"]["pool"]["name"] for item in slices)
            counts = {item["spec"]["pool"]["name"]: item["spec"]["pool"]["resourceSliceCount"] for item in slices}
            if slices and pools == counts and (devices := await self.devices(driver)):
                return devices
            if time.monotonic() > end:
                return await self.devices(driver)
            await asyncio.sleep(0.05)

    # --- claims

    def request(self, name: str = "device", *, device_class: str = "", **fields: Any) -> dict[str, Any]:
        """Return a request for a device, by the profile."""
        device_class = device_class or self._profile.device_class or OWN_CLASS
        return {"name": name, "exactly": {"deviceClassName": device_class, **self._profile.request, **fields}}

    def configuration(self, driver: str, parameters: Mapping[str, Any], *requests: str) -> dict[str, Any]:
        """Return an entry of ``spec.devices.config`` of a claim."""
        entry: dict[str, Any] = {"opaque": {"driver": driver, "parameters": dict(parameters)}}
        return {"requests": list(requests), **entry} if requests else entry

    async def create_claim(
        self, requests: Sequence[Mapping[str, Any]], config: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, Any]:
        """Create a claim that is not allocated."""
        self._numbers["claim"] += 1
        spec = {"devices": {"requests": [*requests], "config": [*config]}}
        claim = {**_object(RESOURCE_CLAIMS, f"claim-{self._numbers['claim']}", NAMESPACE), "spec": spec}
        return await self.client.create(RESOURCE_CLAIMS, claim)

    async def allocate(
        self, claim: Mapping[str, Any], *, others: Sequence[Mapping[str, Any]] = ()
    ) -> Mapping[str, Any] | None:
        """Find devices for a claim, as the scheduler does; None if there are none. Nothing is written.

        Args:
            claim: the claim.
            others: further claims whose devices are in use.

        Raises:
            AllocationError: a selector or a slice makes the search fail.
        """
        slices, classes, claims = await asyncio.gather(
            self.client.list(RESOURCE_SLICES), self.client.list(DEVICE_CLASSES), self.client.list(RESOURCE_CLAIMS)
        )
        version = self._release.version
        held = [*claims.items, *others]
        state = AllocatorState(version=version, slices=slices.items, classes=classes.items, claims=held)
        node = Node.of(await self.client.get(NODES, self.node))
        found = Allocator(state, AllocatorRules.of(self._release)).allocate(node, [claim])
        return found[0].to_json() if found else None

    async def reserve(self, claim: Mapping[str, Any], allocation: Mapping[str, Any]) -> ConformanceClaim:
        """Write an allocation to a claim, and reserve it for a new pod on the node."""
        metadata = claim["metadata"]
        pod = await self._create_pod(metadata["name"])
        consumer = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        status = {"allocation": dict(allocation), "reservedFor": [consumer]}
        stored = await self.client.update(RESOURCE_CLAIMS, {**claim, "status": status}, subresource="status")
        reference = ClaimReference(metadata["namespace"], metadata["name"], metadata["uid"])
        return ConformanceClaim(reference, stored["status"]["allocation"])

    async def _create_pod(self, claim: str) -> dict[str, Any]:
        pod = _object(PODS, f"pod-of-{claim}", NAMESPACE)
        pod["spec"] = {
            "nodeName": self.node,
            "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "device"}]}}],
            "resourceClaims": [{"name": "device", "resourceClaimName": claim}],
        }
        return await self.client.create(PODS, pod)

    async def delete_claim(self, reference: ClaimReference) -> None:
        """Delete a claim and its pod, if they exist."""
        for resource, name in ((PODS, f"pod-of-{reference.name}"), (RESOURCE_CLAIMS, reference.name)):
            with suppress(NotFound):
                await self.client.delete(
                    resource, name, reference.namespace, grace_period_seconds=0 if resource is PODS else None
                )


def _object(
    resource: Resource, name: str, namespace: str = "", *, labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    if labels:
        metadata["labels"] = dict(labels)
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}


def newest(slices: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the slices that have the newest generation of their pool, as the scheduler reads them."""
    generations: dict[tuple[str, str], int] = {}
    for spec in (item["spec"] for item in slices):
        key = spec["driver"], spec["pool"]["name"]
        generations[key] = max(generations.get(key, 0), spec["pool"].get("generation", 0))
    return [
        item
        for item in slices
        if item["spec"]["pool"].get("generation", 0)
        == generations[item["spec"]["driver"], item["spec"]["pool"]["name"]]
    ]


def unknown_claim() -> ClaimReference:
    """Return a claim that never existed."""
    return ClaimReference(NAMESPACE, "never-existed", str(uuid.uuid4()))
