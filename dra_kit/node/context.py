"""The node as code sees it: ``Context``, the hardware handle, the API server's release and the Node object."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from typing_extensions import override

from dra_kit.author.calls import PendingResult, call
from dra_kit.author.claim import ConsumerReference
from dra_kit.author.cluster_object import ClusterObject, ClusterObjectClient
from dra_kit.author.context import Context, EffectInForce, NodeInfo, OtherDriver, PreparedClaim, Stopping
from dra_kit.author.driver import Driver
from dra_kit.author.effect import ChildProcess, ChildRunner, Effect
from dra_kit.author.model import short_repr
from dra_kit.author.prepared import DeviceMetadata, DeviceStatus
from dra_kit.author.reads import CLUSTER_SCOPED, ReadApi, ReadVerb
from dra_kit.client.api import Client, ObjectList, discover_release
from dra_kit.client.resources import NODES, RESOURCE_CLAIMS, Resource
from dra_kit.errors import ConfigurationError, NotFound
from dra_kit.kubernetes.release import KubernetesVersion
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.api_model import OwnerReference
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.state.records import ClaimRecord, DeviceRecord
from dra_kit.node.state.store import StateStore
from dra_kit.process.metrics import Metrics


class DeviceUpdate(Struct, frozen=True):
    """Facts that are reported about a device.

    Attributes:
        pool: its pool.
        device: its name.
        claim: UID of the only claim concerned; None for all claims that have the device.
        share: of a shared device, the only share concerned; None for all shares of the claim.
        status: replaces what was reported before; None leaves that unchanged.
        metadata: likewise.
    """

    pool: str
    device: str
    claim: str | None = None
    share: str | None = None
    status: DeviceStatus | None = None
    metadata: DeviceMetadata | None = None

    @property
    def subject(self) -> Subject:
        """What the facts are about, in each claim."""
        return self.pool, self.device, self.share

    def after(self, earlier: DeviceUpdate | None) -> DeviceUpdate:
        """Return these facts, merged with the earlier ones that they do not replace."""
        if earlier is None:
            return self
        return replace(self, status=self.status or earlier.status, metadata=self.metadata or earlier.metadata)

    def are_of(self, device: DeviceRecord) -> bool:
        """Return whether these are facts about a given device of a claim."""
        return (device.pool, device.device) == (self.pool, self.device) and self.share in {None, device.share_id}

    def concern(self, record: ClaimRecord) -> bool:
        """Return whether a claim has the device."""
        return any(map(self.are_of, record.devices))


class NodeContext(Context[Any]):
    """The context that the author's code gets; all methods are thread-safe, and ``effects`` must be so.

    ``state_dir``, the author's own directory, is created if missing. ``settings`` are None if the driver has none.
    Without ``other_driver``, no other drivers can be called.

    Raises:
        ConfigurationError: the author's directory cannot be created.
    """

    def __init__(
        self,
        *,
        driver: str,
        node: NodeInfo,
        state_dir: Path,
        settings: Any,
        store: StateStore,
        rescan: Callable[[], None],
        update: Callable[[DeviceUpdate, bool], None],
        effects: Callable[[], Sequence[EffectInForce]],
        stopping: Stopping,
        metrics: Metrics,
        api: DeclaredReads,
        other_driver: Callable[[str], OtherDriver] | None = None,
    ) -> None:
        try:
            state_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"the author's directory {state_dir} cannot be created: {error.strerror or error}; correct --state-dir"
            ) from error
        self.driver = driver
        self.node: NodeInfo = node
        self.state_dir = state_dir
        if settings is not None:
            self.settings = settings
        self._store = store
        self._update = update
        self._effects = effects
        self._stopping = stopping
        self._metrics = metrics
        self._rescan = rescan
        self._api = api
        self._other_driver = other_driver

    @property
    def stopping(self) -> Stopping:
        """See :class:`dra_kit.Context`."""
        return self._stopping

    @property
    def metrics(self) -> CollectorRegistry:
        """See :class:`dra_kit.Context`."""
        return self._metrics.registry

    @property
    def api(self) -> ReadApi:
        """See :class:`dra_kit.Context`."""
        return self._api

    def other_driver(self, name: str) -> OtherDriver:
        """See :class:`dra_kit.Context`."""
        if name == self.driver:
            raise ConfigurationError(f"driver {name}: context.other_driver({name!r}) is this driver; name another one")
        return self._other_driver(name) if self._other_driver is not None else super().other_driver(name)

    def node_known(self, node: NodeInfo) -> None:
        """Store the Node's data, with its labels, after it was read."""
        self.node = node

    def rescan(self) -> None:
        """See :class:`dra_kit.Context`."""
        self._rescan()

    def prepared(self) -> Mapping[str, PreparedClaim]:
        """See :class:`dra_kit.Context`."""
        return {
            record.uid: PreparedClaim(
                namespace=record.namespace,
                name=record.name,
                uid=record.uid,
                states={(item.pool, item.device, item.share_id): item.state for item in record.devices},
                devices=tuple(item.for_author() for item in record.devices),
                consumers=record.consumers
                or tuple(ConsumerReference(api_group="", resource="pods", name=name, uid="") for name in record.pods),
            )
            for record in self._store.claims()
            if record.phase == "prepared"
        }

    def consumers(self, claim: ClaimReference | PreparedClaim) -> PendingResult[tuple[ConsumerReference, ...]]:
        """See :class:`dra_kit.Context`."""
        return self._api.consumers(ClaimReference(claim.namespace, claim.name, claim.uid))

    def effects(self) -> Sequence[EffectInForce]:
        """See :class:`dra_kit.Context`."""
        return self._effects()

    def update(
        self,
        device: str,
        *,
        pool: str | None = None,
        claim: ClaimReference | PreparedClaim | str | None = None,
        share: str | None = None,
        status: DeviceStatus | None = None,
        metadata: DeviceMetadata | None = None,
        wait: bool = False,
    ) -> None:
        """See :class:`dra_kit.Context`."""
        self._update(
            DeviceUpdate(
                pool=pool or self.node.name,
                device=device,
                claim=claim if isinstance(claim, str | None) else claim.uid,
                share=share,
                status=status,
                metadata=metadata,
            ),
            wait,
        )


class ObjectSource(Protocol):
    """Where declared objects are read; each method raises a DraKitError if they cannot be read."""

    async def get(self, resource: Resource, name: str, namespace: str | None) -> Mapping[str, Any]:
        """Return one object.

        Raises:
            NotFound: it does not exist.
        """
        ...

    async def list(self, resource: Resource, namespace: str | None, *, label_selector: str) -> ObjectList:
        """Return all objects, in one namespace or in all."""
        ...


class DeclaredReads(ReadApi):
    """Reads what a driver declares, as :class:`dra_kit.ReadApi`; ``source`` belongs to the event loop ``loop``.

    What is not declared is refused before a request is sent: also where the account may read it, as in the sandbox.
    """

    def __init__(
        self, driver: Driver[Any, Any], settings: Any, source: ObjectSource, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._driver = driver
        self._settings = settings
        self._source = source
        self._loop = loop

    @override
    def get(
        self, api_version: str, plural: str, name: str, namespace: str | None = None
    ) -> PendingResult[Mapping[str, Any] | None]:
        resource = self._declared("get", api_version, plural, name, namespace)

        async def get() -> Mapping[str, Any] | None:
            try:
                return await self._source.get(resource, name, namespace)
            except NotFound:
                return None

        return PendingResult(get, lambda: self._loop, "context.api.get(…)", "self.context.api.get(…)")

    @override
    def list(
        self, api_version: str, plural: str, namespace: str | None = None, *, label_selector: str = ""
    ) -> PendingResult[Sequence[Mapping[str, Any]]]:
        resource = self._declared("list", api_version, plural, "", namespace)

        async def listed() -> Sequence[Mapping[str, Any]]:
            return (await self._source.list(resource, namespace, label_selector=label_selector)).items

        return PendingResult(listed, lambda: self._loop, "context.api.list(…)", "self.context.api.list(…)")

    def consumers(self, claim: ClaimReference) -> PendingResult[tuple[ConsumerReference, ...]]:
        """Return for whom a claim is reserved now, as :meth:`dra_kit.Context.consumers`."""

        async def read() -> tuple[ConsumerReference, ...]:
            try:
                found = await self._source.get(RESOURCE_CLAIMS, claim.name, claim.namespace)
            except NotFound:
                return ()
            if found["metadata"].get("uid") != claim.uid:
                return ()
            status = v1.ResourceClaimStatus.model_validate(found.get("status") or {})
            return tuple(
                ConsumerReference(one.api_group, one.resource, one.name, one.uid) for one in status.reserved_for
            )

        return PendingResult(read, lambda: self._loop, "context.consumers(…)", "self.context.consumers(…)")

    def _declared(self, verb: ReadVerb, api_version: str, plural: str, name: str, namespace: str | None) -> Resource:
        for argument, value in (("name", name), ("namespace", namespace or "")):
            if not isinstance(value, str):  # without a name, the API server would return all objects
                raise ConfigurationError(
                    f"driver {self._driver.name}: {verb} {plural}: {argument} must be a text, got {short_repr(value)}"
                )
        group, _, version = api_version.rpartition("/")
        of_kind = [item for item in self._driver.reads if (item.group, item.plural) == (group, plural)]
        if not any(item.covers(self._settings, verb, name, namespace) for item in of_kind):
            where = f', namespace="{namespace}"' if namespace else ""
            wider = namespace and (api_version, plural) != ("v1", "secrets")  # all Secrets can never be read
            path = "/".join(filter(None, (namespace, name)))
            raise ConfigurationError(
                f"driver {self._driver.name}: {verb} {' '.join(filter(None, (plural, path)))} is not declared, so the "
                f"node's account has no right to it; declare it: "
                f'Driver(reads=[dra.Reads("{api_version}", "{plural}"{where})])'
                f"{', or without namespace= for all namespaces' if wider else ''}",
                code="undeclared-read",
            )
        if not group and verb == "get" and (namespace is None) != (plural in CLUSTER_SCOPED):
            rule = "are in namespaces; write" if namespace is None else "are not in namespaces; omit"
            raise ConfigurationError(f"driver {self._driver.name}: {verb} {plural} {name}: {plural} {rule} namespace=…")
        # the API server sends the kind with every object
        return Resource(group, version, plural, plural, namespaced=namespace is not None)


EffectT = TypeVar("EffectT", bound="Effect[Any, Any]")


class HardwareHandle:
    """The author's hardware handle, created before the author's startup; code that needs it waits for it.

    ``runner`` and ``keeper`` are for effects that are programs and objects; None if the driver has no such effect.
    """

    def __init__(
        self,
        driver: Driver[Any, Any],
        runner: ChildRunner | None = None,
        keeper: ClusterObjectClient | None = None,
        context: Context[Any] | None = None,
    ) -> None:
        self.context = context
        self._driver = driver
        self._runner = runner
        self._keeper = keeper
        self._made = asyncio.Event()
        self._handle: Any = None

    @property
    def lacking(self) -> bool:
        """Whether it is still being created."""
        return self._driver.hardware is not None and not self._made.is_set()

    async def make(self, context: Context[Any]) -> None:
        """Call the author's factory, and pass its result to all parts of the driver that are bound to a node.

        Raises:
            ConfigurationError: the factory returned nothing.
        """
        factory = self._driver.hardware
        if factory is None:
            return
        handle = await call(factory, context)
        if handle is None:
            raise ConfigurationError(
                f"driver {self._driver.name}: {getattr(factory, '__qualname__', 'hardware')} returned None; return the "
                "handle to the hardware, or leave out hardware=…",
                code="no-hardware",
            )
        for part in self._driver.node_bound:
            part.hardware = handle
        self._handle = handle
        self._made.set()

    async def bound(self, effect: EffectT) -> EffectT:
        """Return the effect ready to be called: with context, with the driver's handle, and its runner or client."""
        if self._driver.hardware is not None:
            await self._made.wait()
        return self.bound_now(effect)

    def bound_now(self, effect: EffectT) -> EffectT:
        """Return the same for code that only reads it, without the handle if that is not created yet. Thread-safe."""
        if self.context is not None:
            effect = effect.with_context(self.context)
        if self._handle is not None:
            effect = effect.with_hardware(self._handle)
        if isinstance(effect, ChildProcess) and self._runner is not None:
            return effect.with_runner(self._runner)
        if isinstance(effect, ClusterObject) and self._keeper is not None:
            return effect.with_keeper(self._keeper)
        return effect


class ClusterFacts:
    """Facts about the cluster, requested once and cached until :meth:`forget`; errors are not cached.

    ``node_known`` is called each time the Node was read.
    """

    def __init__(self, client: Client, node_name: str, node_known: Callable[[NodeInfo], None]) -> None:
        self._client = client
        self._node_name = node_name
        self._node_known = node_known
        self._lock = asyncio.Lock()
        self._facts: tuple[KubernetesVersion, OwnerReference] | None = None

    async def version(self) -> KubernetesVersion:
        """Return the release of the API server."""
        return (await self._all())[0]

    async def owner(self) -> OwnerReference:
        """Return the Node as the owner of its slices, so that they are garbage-collected with it."""
        return (await self._all())[1]

    def forget(self) -> None:
        """Forget the answers: a Node that is created again has another UID and may have other labels."""
        self._facts = None

    async def _all(self) -> tuple[KubernetesVersion, OwnerReference]:
        async with self._lock:
            if self._facts is None:
                version = await discover_release(self._client)
                try:
                    node = await self._client.get(NODES, self._node_name)
                except NotFound as error:
                    raise NotFound(
                        f"node {self._node_name} does not exist in this cluster; correct --node-name (DRA_NODE_NAME)",
                        status=404,
                        code="unknown-node",
                    ) from error
                metadata = node["metadata"]
                owner = OwnerReference(
                    api_version="v1", kind="Node", name=self._node_name, uid=metadata["uid"], controller=True
                )
                self._facts = (version, owner)
                self._node_known(NodeInfo(self._node_name, metadata.get("labels") or {}))
            return self._facts


Subject: TypeAlias = tuple[str, str, str | None]
"""Pool, device, and share (None for all shares)."""
