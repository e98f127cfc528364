"""Unit tests of a preparer without a cluster, with allocated claims and with objects in memory."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from copy import copy
from pathlib import Path
from typing import Any, Final
from uuid import NAMESPACE_OID, uuid5

from pydantic import BaseModel

from dra_kit.apiserver.selectors import parse_label_selector
from dra_kit.author.calls import PendingResult, call
from dra_kit.author.claim import ConsumerReference
from dra_kit.author.cluster_object import ObjectAddress
from dra_kit.author.config import ConfigEntry, OpaqueConfig
from dra_kit.author.context import EffectInForce, NodeInfo, Stopping
from dra_kit.author.device import CounterSet, Device
from dra_kit.author.driver import Driver
from dra_kit.author.effect import ChildProcess, Effect
from dra_kit.author.inventory import Inventory, Pool
from dra_kit.author.model import QuantityLike, parse_quantity
from dra_kit.author.pod_hooks import (
    ContainerAdjustment,
    ContainerUpdate,
    DeviceFacts,
    HeldDevice,
    PodHooks,
    Runtime,
    RuntimeContainer,
    RuntimePod,
)
from dra_kit.author.prepared import Prepared
from dra_kit.author.preparer import Preparer
from dra_kit.author.provider import DeviceProvider
from dra_kit.client.api import ObjectList
from dra_kit.client.resources import Resource
from dra_kit.errors import ConfigurationError, NotFound, NotYet, TransientError
from dra_kit.kubernetes.allocator.devices import AdvertisedDevice, capacity_share
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.manifests.documents import check_objects
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.kubernetes.resource.slice_reader import LazySlice
from dra_kit.kubernetes.resource.v1 import ResourcePool, ResourceSliceSpec
from dra_kit.kubernetes.values.quantity import Quantity
from dra_kit.node.claims.metadata import MetadataFiles
from dra_kit.node.claims.preparer_runner import PreparerRunner
from dra_kit.node.claims.reader import parse_allocated_claim
from dra_kit.node.claims.updates import apply_facts
from dra_kit.node.context import DeclaredReads, HardwareHandle, NodeContext
from dra_kit.node.deadlines import retry_window
from dra_kit.node.effects.children import ChildProcesses
from dra_kit.node.effects.classes import EffectClasses
from dra_kit.node.effects.engine import EffectEngine, EffectReverter, GoneHardware
from dra_kit.node.effects.verifier import EffectVerifier
from dra_kit.node.hook_calls import HookCalls, checked_updates, device_updates, held_devices
from dra_kit.node.locks import NamedLocks
from dra_kit.node.state.store import StateStore
from dra_kit.process.metrics import Metrics
from dra_kit.slices.inventory import CurrentInventory, device_identity
from dra_kit.testing.background import Background
from dra_kit.text import counted

__tracebackhide__ = True  # pytest shows the test's own line instead
NODE: Final = "node-1"
"""Name of the node, and of the pool of the devices."""
_BOOT: Final = "boot-1"
_SCHEDULER: Final = AllocatorRules.of(UNMODIFIED)


class UnitTest:
    """``async with`` gives a :class:`Bench`, ``with`` a :class:`BlockingBench`; see :func:`unit`."""

    def __init__(
        self, driver: Driver[Any, Any], settings: BaseModel | None, objects: Sequence[Mapping[str, Any]]
    ) -> None:
        self._driver = driver
        self._settings = settings
        self._objects = objects
        self._left = AsyncExitStack()
        self._blocking = ExitStack()

    async def __aenter__(self) -> Bench:
        async with AsyncExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dra-kit-")))
            bench = Bench(self._driver, self._settings, directory, self._objects)
            stack.callback(bench._store.close)  # noqa: SLF001 - of this module
            stack.push_async_callback(bench._stop)  # noqa: SLF001
            await bench._start()  # noqa: SLF001
            self._left = stack.pop_all()
        return bench

    async def __aexit__(self, *exc: object) -> None:
        await self._left.aclose()

    def __enter__(self) -> BlockingBench:
        with ExitStack() as stack:
            background = stack.enter_context(Background())
            bench = stack.enter_context(background.entered(self))
            self._blocking = stack.pop_all()
        return BlockingBench(bench, background)

    def __exit__(self, *exc: object) -> None:
        self._blocking.close()


class Bench:
    """Prepares and releases claims with invented names as the node role does, with the same checks and effects.

    It uses no files, sockets or API server. Locks, conflicts, NotYet and rollbacks work as on a node. Programs of
    ``ChildProcess`` effects really run, and are terminated with the bench; objects of ``ClusterObject`` effects are
    stored in memory. ``holds`` is called only when a claim is prepared again.
    """

    def __init__(
        self,
        driver: Driver[Any, Any],
        settings: BaseModel | None,
        directory: Path,
        objects: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._driver = driver
        self._store = StateStore(directory / "state.sqlite")
        self._inventory = CurrentInventory()
        self._devices: dict[str, Device] = {}
        self._runtime = _RecordingRuntime(asyncio.get_running_loop())
        self._children: ChildProcesses | None = None
        self._children_part: asyncio.Future[None] | None = None
        if any(issubclass(effect, ChildProcess) for effect in driver.effects.values()):
            self._children = ChildProcesses(directory / "children", NamedLocks(directory / "children.lock"))
        self._objects = MemoryObjects()
        self._hardware = HardwareHandle(driver, self._children, self._objects)
        self._started = asyncio.Event()
        self._stopping = Stopping()
        classes, locks = EffectClasses(driver.effects), NamedLocks(directory / "effects.lock")
        self._undoing = EffectReverter(
            self._store, classes, self._hardware, locks,
            GoneHardware(self._store, None, look_again=lambda: None),  # a bench finds no devices
        )  # fmt: skip
        self._engine = EffectEngine(
            self._store, classes, self._hardware, self._undoing, boot_id=_BOOT, locks=locks, replaced=lambda *_: None
        )
        self._runner = PreparerRunner(
            driver, driver.configs.with_settings(settings), self._inventory, self._engine, _BOOT, self._started,
            MetadataFiles(directory / "metadata", driver.name), self._hardware,
            EffectVerifier(
                self._store, driver.effects, classes, self._hardware, self._engine, boot_id=_BOOT, locks=locks,
            ),
            checks_device_files=False,
        )  # fmt: skip
        self._context = NodeContext(
            driver=driver.name,
            node=NodeInfo(NODE),
            state_dir=directory / "author",
            settings=settings,
            store=self._store,
            rescan=lambda: None,
            update=lambda *_: None,
            effects=self._engine.known,
            stopping=self._stopping,
            metrics=Metrics(),
            api=DeclaredReads(driver, settings, _MemorySource(self._objects, objects), asyncio.get_running_loop()),
        )
        self._hardware.context = self._context

    async def _start(self) -> None:
        if self._children is not None:
            self._children_part = asyncio.ensure_future(self._children.run(asyncio.Event()))
        for part in self._driver.node_bound:
            part.context = self._context
        await self._hardware.make(self._context)
        await call(self._driver.provider.startup, self._context)
        await call(self._driver.preparer.startup, self._context)
        if self._driver.pod_hooks is not None:
            self._driver.pod_hooks.runtime = self._runtime
            await call(self._driver.pod_hooks.startup, self._context)
        self._started.set()

    async def _stop(self) -> None:
        self._stopping.set()
        if self._children is not None and self._children_part is not None:
            await self._children.end_all()
            self._children_part.cancel()
            await asyncio.wait({self._children_part})

    @property
    def effects(self) -> Sequence[EffectInForce]:
        """All effects that are stored, applied or begun, oldest first."""
        return self._engine.known()

    @property
    def objects(self) -> dict[str, dict[str, Any]]:
        """The objects of effects by ``<kind>/<name>``; a test may change them as other clients in a cluster would.

        ``self.context.api`` reads them, and those given to :func:`unit`. The name consists of the effect's id and the
        claim's UID, which is ``uid-`` and the claim's name.
        """
        return self._objects.objects

    async def prepare(
        self,
        claim: str = "claim",
        devices: Iterable[Device] = (),
        *,
        config: OpaqueConfig | Mapping[str, Any] | None = None,
        configs: Sequence[ConfigEntry[Any]] = (),
        requests: str | Sequence[str] = "device",
        capacity: Mapping[str, QuantityLike] | None = None,
        reserved_for: str | Iterable[str | ConsumerReference] = (),
        admin_access: bool = False,
        within: float = 0,
    ) -> list[Prepared]:
        """Return what the preparer returns for each device of a claim; it may be prepared again.

        Args:
            claim: the name of the claim.
            devices: devices as yielded by ``discover``, with different names.
            config: the config for all devices, or opaque parameters as in a manifest; None for a claim without config.
            configs: instead, all entries of the allocation in their order, those of classes first, such as
                ``dra.ConfigEntry(GpuConfig(), "class")`` and ``dra.ConfigEntry(GpuConfig(), requests=("big",))``. Their
                ``index`` is their position here.
            requests: the request that all devices satisfy, ``name`` or ``name/subrequest``; or one for each device.
            capacity: what the claim requests of each device with ``allow_multiple_allocations``; the device's request
                policies round it up, and set the default of the rest.
            reserved_for: the name of the pod that uses the claim, or names of several pods and other consumers.
            admin_access: whether the claim has admin access.
            within: seconds to retry after a ``NotYet``, for example while a program starts; 0 raises it immediately.

        Raises:
            PrepareError: the error that the user would get; unless it is a ``NotYet``, the effects were undone.
            ConfigurationError: the preparer's result or its effects are invalid; or the arguments do not fit the
                devices.
        """
        used, reference = list(devices), self._reference(claim)
        self._devices |= {item.name: item for item in used}
        known = list(self._devices.values())
        pool = Pool(name=NODE, devices=known, counter_sets=counter_sets(known))
        self._inventory.replace(Inventory(pools=[pool]), {(NODE, item.name): device_identity(item) for item in known})
        if config is not None and configs:
            raise ConfigurationError(
                f"prepare({claim!r}, …): config cannot be combined with configs; add a ConfigEntry to configs"
            )
        alone: Any = config  # may be opaque parameters
        raw = allocated_claim(
            reference, self._driver.name, used, configs if config is None else [ConfigEntry(alone)],
            requests=requests, capacity=capacity, reserved_for=reserved_for, admin_access=admin_access,
        )  # fmt: skip
        allocation = parse_allocated_claim(raw, reference, self._driver.name)
        returned: list[Prepared] = []
        before, epoch = self._store.claim(reference.uid), self._store.epoch()
        if before is not None:
            await self._runner.effects_hold(before)  # effects that do not hold are applied again
        try:
            with retry_window(within):
                record, _ = await self._runner.prepare(allocation, before, returned)
        except NotYet:
            raise
        except BaseException:
            if before is None:
                await self._undoing.release(reference)
            raise
        await self._store.put_claim(record, epoch=epoch, then=lambda _: None)
        return returned

    async def unprepare(self, claim: str = "claim") -> None:
        """Release a claim: its effects are undone, newest first, and the author's ``unprepare`` is called.

        Raises:
            PrepareError: an effect cannot be undone, or ``unprepare`` failed.
        """
        reference = self._reference(claim)
        if record := self._store.claim(reference.uid):
            await self._store.begin_release(record)
        await self._undoing.release(reference)
        if record:
            await self._runner.unprepare(record)
            await self._store.forget_claim(record.uid, first=lambda _: None)

    # -- pod hooks

    @property
    def container_updates(self) -> list[ContainerUpdate]:
        """The updates that the driver made with ``self.runtime.update``, oldest first."""
        return self._runtime.updates

    def pod(
        self,
        name: str = "pod",
        *,
        claims: Iterable[str] | None = None,
        containers: Iterable[RuntimeContainer] = (),
        netns: Path | None = None,
    ) -> RuntimePod:
        """Return a pod that holds prepared claims, for the hooks below.

        Args:
            name: the name of the pod.
            claims: names of the claims; None for all that are prepared.
            containers: those that exist.
            netns: its network namespace; by default a path that does not exist.
        """
        known = {record.name: record for record in self._store.claims()}
        records = [known[claim] for claim in (known if claims is None else claims)]
        return RuntimePod(
            id=f"sandbox-{name}",
            name=name,
            namespace="default",
            uid=f"uid-{name}",
            netns=netns or Path(f"/var/run/netns/{name}"),
            cgroup_parent=f"/kubepods/pod{name}",
            devices=tuple(device for record in records for device in held_devices(record, self._inventory)),
            containers=tuple(containers),
        )

    async def synchronize(self, *pods: str | RuntimePod) -> list[ContainerUpdate]:
        """Return the updates that the author's ``synchronize`` returns for these pods."""
        return await self._hooks.synchronize([self._pod(pod) for pod in pods])

    async def pod_starts(self, pod: str | RuntimePod = "pod") -> list[DeviceFacts]:
        """Return what the author's ``pod_starts`` returns, checked as on a node.

        Args:
            pod: a pod of :meth:`pod`, or the name of one that holds all prepared claims.

        Raises:
            DraKitError: the hook raised, or what it returned is invalid.
        """
        facts = await self._hooks.pod_starts(self._pod(pod))
        for claim, updates in device_updates(facts).items():
            if (record := self._store.claim(claim.uid)) is None:
                raise TransientError(f"claim {claim} was released; make a pod of claims that are prepared")
            changed = apply_facts(record, updates, "pod_starts returned")
            await self._store.put_claim(changed, epoch=self._store.epoch(), then=lambda _: None)
        return facts

    async def container_starts(
        self,
        container: str | RuntimeContainer = "app",
        *,
        pod: str | RuntimePod = "pod",
        devices: Iterable[str] | None = None,
    ) -> ContainerAdjustment | None:
        """Return what the author's ``container_starts`` returns.

        Args:
            container: the container, or its name.
            pod: as for :meth:`pod_starts`.
            devices: names of the devices that the container uses; None for all that the pod holds.

        Raises:
            DraKitError: the hook raised, or what it returned is invalid.
        """
        of_pod, names = self._pod(pod), None if devices is None else set(devices)
        used: list[HeldDevice[Any]] = [item for item in of_pod.devices if names is None or item.name in names]
        made = RuntimeContainer(id=f"id-{container}", name=container) if isinstance(container, str) else container
        return await self._hooks.container_starts(of_pod, made, used)

    async def pod_stops(self, pod: str | RuntimePod = "pod") -> None:
        """Call the author's ``pod_stops``; ``pod`` is as for :meth:`pod_starts`."""
        await self._hooks.pod_stops(self._pod(pod))

    def _pod(self, pod: str | RuntimePod) -> RuntimePod:
        return self.pod(pod) if isinstance(pod, str) else pod

    @property
    def _hooks(self) -> HookCalls:
        hooks: PodHooks[Any, Any, Any] | None = self._driver.pod_hooks
        if hooks is None:
            raise ConfigurationError(
                f"{self._driver!r} has no pod hooks to call; give unit(…) a driver with Driver(pod_hooks=…)"
            )
        return HookCalls(hooks)

    def _reference(self, claim: str) -> ClaimReference:
        return ClaimReference("default", claim, f"uid-{claim}")


class BlockingBench:
    """A :class:`Bench` for tests that are plain functions."""

    def __init__(self, bench: Bench, background: Background) -> None:
        self._bench = bench
        self._background = background

    @property
    def effects(self) -> Sequence[EffectInForce]:
        """See :attr:`Bench.effects`."""
        return self._bench.effects

    @property
    def objects(self) -> dict[str, dict[str, Any]]:
        """See :attr:`Bench.objects`."""
        return self._bench.objects

    def prepare(
        self,
        claim: str = "claim",
        devices: Iterable[Device] = (),
        *,
        config: OpaqueConfig | Mapping[str, Any] | None = None,
        configs: Sequence[ConfigEntry[Any]] = (),
        requests: str | Sequence[str] = "device",
        capacity: Mapping[str, QuantityLike] | None = None,
        reserved_for: str | Iterable[str | ConsumerReference] = (),
        admin_access: bool = False,
        within: float = 0,
    ) -> list[Prepared]:
        """See :meth:`Bench.prepare`."""
        prepared = self._bench.prepare(
            claim, devices, config=config, configs=configs, requests=requests, capacity=capacity,
            reserved_for=reserved_for, admin_access=admin_access, within=within,
        )  # fmt: skip
        return self._background.call(prepared)

    def unprepare(self, claim: str = "claim") -> None:
        """See :meth:`Bench.unprepare`."""
        self._background.call(self._bench.unprepare(claim))

    @property
    def container_updates(self) -> list[ContainerUpdate]:
        """See :attr:`Bench.container_updates`."""
        return self._bench.container_updates

    def pod(
        self,
        name: str = "pod",
        *,
        claims: Iterable[str] | None = None,
        containers: Iterable[RuntimeContainer] = (),
        netns: Path | None = None,
    ) -> RuntimePod:
        """See :meth:`Bench.pod`."""
        return self._bench.pod(name, claims=claims, containers=containers, netns=netns)

    def synchronize(self, *pods: str | RuntimePod) -> list[ContainerUpdate]:
        """See :meth:`Bench.synchronize`."""
        return self._background.call(self._bench.synchronize(*pods))

    def pod_starts(self, pod: str | RuntimePod = "pod") -> list[DeviceFacts]:
        """See :meth:`Bench.pod_starts`."""
        return self._background.call(self._bench.pod_starts(pod))

    def container_starts(
        self,
        container: str | RuntimeContainer = "app",
        *,
        pod: str | RuntimePod = "pod",
        devices: Iterable[str] | None = None,
    ) -> ContainerAdjustment | None:
        """See :meth:`Bench.container_starts`."""
        return self._background.call(self._bench.container_starts(container, pod=pod, devices=devices))

    def pod_stops(self, pod: str | RuntimePod = "pod") -> None:
        """See :meth:`Bench.pod_stops`."""
        self._background.call(self._bench.pod_stops(pod))


class _RecordingRuntime(Runtime):
    """The runtime of a bench: accepts all updates."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.updates: list[ContainerUpdate] = []

    @property
    def connected(self) -> bool:
        """See :class:`dra_kit.Runtime`."""
        return True

    def update(self, updates: Iterable[ContainerUpdate]) -> PendingResult[Sequence[ContainerUpdate]]:
        """See :class:`dra_kit.Runtime`."""
        given = checked_updates(updates)

        async def update() -> Sequence[ContainerUpdate]:
            self.updates += given
            return ()

        return PendingResult(update, lambda: self._loop, "runtime.update(…)", "self.runtime.update(…)")


def unit(
    tested: Driver[Any, Any] | Preparer[Any, Any, Any, Any],
    *,
    effects: Sequence[type[Effect[Any, Any]]] = (),
    hardware: Any = None,
    settings: BaseModel | None = None,
    objects: Sequence[Mapping[str, Any]] = (),
) -> UnitTest:
    """Return a bench for unit tests of a preparer and its effects::

        async with unit(driver, hardware=FakeCard()) as bench:
            [prepared] = await bench.prepare("lunch", [Gpu(name="gpu-0")], config=GpuConfig(profile="1g"))
            assert prepared.env["UUID"] == "MIG-0"
            await bench.unprepare("lunch")
            assert not bench.effects

    In a plain function write ``with unit(…)``, without ``await``.

    Args:
        tested: the driver, or a preparer.
        effects: the effect classes that the preparer uses; only without a driver.
        hardware: the value of ``self.hardware``, instead of the result of ``Driver(hardware=…)``.
        settings: the author's settings; by default the defaults of the driver's model.
        objects: manifests of objects that ``self.context.api`` finds, by the plural that Kubernetes guesses of a kind.
            A test may change them.

    Raises:
        ConfigurationError: ``effects`` are given with a driver, which has its own; or a manifest in ``objects`` is
            invalid.
    """
    list(check_objects(objects, "unit(…, objects=…)"))
    if isinstance(tested, Driver):
        if effects:
            raise ConfigurationError(f"unit({tested!r}, effects=…): a driver has its own effects; omit effects")
        driver = copy(tested)
    else:
        driver = Driver("unit.example", provider=_NoDevices(), preparer=tested, effects=effects)
    if hardware is not None:
        driver.hardware = lambda _: hardware
    if settings is None and driver.settings is not None:
        settings = driver.settings()
    return UnitTest(driver, settings, objects)


class _NoDevices(DeviceProvider):
    def discover(self) -> Iterable[Sequence[Device]]:
        return ()


def allocated_claim(
    reference: ClaimReference,
    driver: str,
    devices: Sequence[Device],
    configs: Sequence[ConfigEntry[Any]],
    *,
    requests: str | Sequence[str],
    capacity: Mapping[str, QuantityLike] | None,
    reserved_for: str | Iterable[str | ConsumerReference],
    admin_access: bool,
) -> dict[str, Any]:
    """Return the claim object; see :meth:`Bench.prepare`."""
    names = [requests] * len(devices) if isinstance(requests, str) else list(requests)
    if len(names) != len(devices):
        raise ConfigurationError(
            f"prepare({reference.name!r}, …): {counted(len(devices), 'device')} and {counted(len(names), 'request')}; "
            "pass one name for all, or one for each device"
        )
    results = []
    for device, request in zip(devices, names, strict=True):
        result: dict[str, Any] = {"request": request, "driver": driver, "pool": NODE, "device": device.name}
        if admin_access:
            result["adminAccess"] = True
        if device.allow_multiple_allocations:
            consumed = _consumed(device, driver, capacity)
            share = uuid5(NAMESPACE_OID, f"{reference.uid}/{request}/{device.name}")
            result |= {"shareID": str(share), "consumedCapacity": consumed}
        results.append(result)
    entries = [
        {
            "source": "FromClaim" if entry.source == "claim" else "FromClass",
            "requests": list(entry.requests),
            "opaque": {"driver": driver, "parameters": _parameters(entry.config)},
        }
        for entry in configs
    ]
    consumers = [
        ConsumerReference("", "pods", item, f"uid-{item}") if isinstance(item, str) else item
        for item in ([reserved_for] if isinstance(reserved_for, str) else reserved_for)
    ]
    return {
        "metadata": {"name": reference.name, "namespace": reference.namespace, "uid": reference.uid},
        "status": {
            "allocation": {"devices": {"results": results, "config": entries}},
            "reservedFor": [
                {"apiGroup": item.api_group, "resource": item.resource, "name": item.name, "uid": item.uid}
                for item in consumers
            ],
        },
    }


def _consumed(device: Device, driver: str, capacity: Mapping[str, QuantityLike] | None) -> dict[str, str]:
    """Return what a share of a device consumes, by the rules of the scheduler."""
    pool = ResourcePool(name=NODE, generation=1, resource_slice_count=1)
    spec = ResourceSliceSpec(driver=driver, pool=pool, node_name=NODE, devices=(device.to_v1(),))
    requested = None if capacity is None else {name: parse_quantity(amount) for name, amount in capacity.items()}
    share = capacity_share(requested, AdvertisedDevice(LazySlice(NODE, spec), 0), _SCHEDULER)
    offered = spec.devices[0].capacity
    if share is None or any(amount > offered[name].value for name, amount in share.amounts.items()):
        amounts = ", ".join(f"{name} {amount}" for name, amount in (requested or {}).items())
        raise ConfigurationError(
            f"device {device.name} cannot serve a request for {amounts}; its capacity: "
            f"{', '.join(f'{name} {offer.value}' for name, offer in offered.items()) or 'none'}. Keep to it and to the "
            "limits of its request policies"
        )
    return {name: str(amount) for name, amount in share.amounts.items()}


def _parameters(config: OpaqueConfig | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(config, Mapping):
        return dict(config)
    kind = type(config)
    fields: dict[str, Any] = json.loads(config.model_dump_json(by_alias=True))
    return {"apiVersion": kind.api_version_, "kind": kind.kind_} | fields


def counter_sets(devices: Sequence[Device]) -> list[CounterSet]:
    """Return counter sets that suffice for all these devices; those in the pool of ``discover`` are not known here."""
    found: dict[str, dict[str, Quantity]] = {}
    for taken in (taken for device in devices for taken in device.consumes_counters):
        counters = found.setdefault(taken.counter_set, {})
        for name, amount in taken.counters.items():
            counters[name] = counters.get(name, Quantity(0)) + Quantity(amount)
    return [CounterSet(name=name, counters=counters) for name, counters in found.items()]


class MemoryObjects:
    """The :class:`dra_kit.author.cluster_object.ClusterObjectClient` of a bench."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self._made = 0

    async def apply(self, address: ObjectAddress, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """See :class:`dra_kit.author.cluster_object.ClusterObjectClient`."""
        fields = json.loads(json.dumps(body))  # a copy, which the driver cannot change
        known = self.objects.get(_key(address))
        if known is None:
            self._made += 1
        owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": f"uid-{NODE}"}
        metadata = {
            **(fields.get("metadata") or {}),
            "name": address.name,
            "uid": known["metadata"]["uid"] if known else f"uid-{self._made}-{address.name}",
            "ownerReferences": [owner],
        }
        if address.namespace:
            metadata["namespace"] = address.namespace
        whole = {**(known or {}), **fields, "apiVersion": address.api_version, "kind": address.kind}
        self.objects[_key(address)] = whole | {"metadata": metadata}
        return self.objects[_key(address)]

    async def get(self, address: ObjectAddress) -> Mapping[str, Any] | None:
        """See :class:`dra_kit.author.cluster_object.ClusterObjectClient`."""
        return self.objects.get(_key(address))

    async def delete(self, address: ObjectAddress) -> None:
        """See :class:`dra_kit.author.cluster_object.ClusterObjectClient`."""
        self.objects.pop(_key(address), None)


class _MemorySource:
    """The :class:`dra_kit.node.context.ObjectSource` of a bench."""

    def __init__(self, memory: MemoryObjects, given: Sequence[Mapping[str, Any]]) -> None:
        self._memory = memory
        self._given = given

    async def get(self, resource: Resource, name: str, namespace: str | None) -> Mapping[str, Any]:
        """See :class:`dra_kit.node.context.ObjectSource`."""
        for item in self._of(resource, namespace):
            if item["metadata"].get("name") == name:
                return item
        raise NotFound(f"{resource.full_name} {name} does not exist; give it to unit(…, objects=[…])")

    async def list(self, resource: Resource, namespace: str | None, *, label_selector: str) -> ObjectList:
        """See :class:`dra_kit.node.context.ObjectSource`."""
        wanted = parse_label_selector(label_selector)
        return ObjectList([item for item in self._of(resource, namespace) if wanted.matches(item)], "1")

    def _of(self, resource: Resource, namespace: str | None) -> Sequence[dict[str, Any]]:
        plural = resource.plural.replace("-", "")
        return [
            dict(item)
            for item in (*self._given, *self._memory.objects.values())
            if item["apiVersion"] == resource.api_version
            and _guessed_plural(item["kind"]) == plural
            and namespace in {None, item["metadata"].get("namespace")}
        ]


def _guessed_plural(kind: str) -> str:
    """Return the plural that Kubernetes guesses (apimachinery 0.37, ``meta.UnsafeGuessKindToResource``)."""
    name = kind.lower()
    if name.endswith("s"):
        return f"{name}es"
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"


def _key(address: ObjectAddress) -> str:
    return f"{address.kind}/{address.name}"
