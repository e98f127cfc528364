"""The status and the metrics of the driver on this node: what ``dra-kit status`` and ``dra-kit who`` print."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace
from prometheus_client import Metric

from dra_kit import __version__
from dra_kit.author.device import Device
from dra_kit.author.inventory import Inventory
from dra_kit.client.api import Client
from dra_kit.client.resources import RESOURCE_SLICES
from dra_kit.errors import DraKitError
from dra_kit.kubelet.device_use import (
    DeviceUse,
    device_use_of,
    list_container_devices,
    pod_resources_socket,
    with_users,
)
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.kubelet_connection import KubeletRegistration, MeasuredService
from dra_kit.node.slices import VanishedDevices, field_selector
from dra_kit.node.state.records import ClaimRecord, EffectRecord
from dra_kit.node.state.store import StateStore
from dra_kit.process.metrics import (
    DEVICE_INFO,
    DEVICES,
    EFFECTS,
    KOPF_RESTARTS,
    PREPARED_CLAIMS,
    REGISTERED,
    STORE_BYTES,
    STORE_CORRUPT_ROWS,
    process_metrics,
    publication_metrics,
)
from dra_kit.process.probes import LoopWatchdog
from dra_kit.process.supervisor import Supervisor
from dra_kit.slices.inventory import CurrentInventory
from dra_kit.slices.publisher import Publisher

if TYPE_CHECKING:
    from dra_kit.kubelet.health import ReportedHealth
    from dra_kit.node.pod_hooks import PodHooksPart


class DevicesInUse:
    """The devices of prepared claims.

    ``kubelet_dir`` is where the kubelet's PodResources socket may be; not every driver's pod mounts it. The methods
    raise a StoreError if the records cannot be read.
    """

    def __init__(self, driver: str, node: str, store: StateStore, kubelet_dir: Path) -> None:
        self.driver = driver
        self.node = node
        self._store = store
        self._socket = pod_resources_socket(kubelet_dir)
        self._reported = ""

    def recorded(self) -> list[DeviceUse]:
        """Return them as recorded: with the pods that claims were reserved for when they were prepared."""
        return [use for record in self._store.claims() if record.phase == "prepared" for use in self._of(record)]

    async def in_use(self) -> list[DeviceUse]:
        """Return them with containers, if the kubelet reports those; without devices of other drivers."""
        uses = self.recorded()
        if not self._socket.is_socket():
            return uses
        try:
            held = await list_container_devices(self._socket)
        except DraKitError as error:
            if str(error) != self._reported:
                logger.warning(
                    "containers that use devices cannot be read", extra={"error": str(error), "code": error.code}
                )
            self._reported = str(error)
            return uses
        self._reported = ""
        own = {use.allocation for use in uses}
        # what the kubelet knows but no record contains is being released, or was prepared by a release that is gone
        return with_users(uses, (user for user in map(device_use_of, held) if user.allocation in own))

    def _of(self, record: ClaimRecord) -> Iterator[DeviceUse]:
        for item in record.devices:
            use = DeviceUse(
                driver=self.driver,
                pool=item.pool,
                device=item.device,
                share=item.share_id or "",
                request=item.request,
                hardware_ids=item.hardware_ids,
                namespace=record.namespace,
                claim=record.name,
                claim_uid=record.uid,
                node=self.node,
            )
            yield from [replace(use, pod=pod) for pod in record.pods] or [use]


class RecentFailures:
    """The latest failures, newest last; repeated equal failures of a claim count as one."""

    def __init__(self) -> None:
        self._latest: deque[PrepareFailure] = deque(maxlen=_FAILURES_MAX)

    def failed(self, claim: ClaimReference, error: DraKitError) -> None:
        """Record that a claim could not be prepared."""
        times = 1
        for known in list(self._latest):
            if (known.claim, known.code, known.message) == (claim, error.code, str(error)):
                self._latest.remove(known)
                times = known.times + 1
        self._latest.append(PrepareFailure(datetime.now(UTC), claim, error.code, str(error), times))

    def all(self) -> list[PrepareFailure]:
        """Return the latest failures."""
        return list(self._latest)


class NodeView(Struct, frozen=True, kw_only=True):
    """The data that status and metrics are made of; read-only.

    Attributes:
        in_force: returns whether an effect is in force.
        title: returns the text of an effect for people.
        pod_uid: of the process's pod; empty if it has none.
        health: the health reported to the kubelet; None if the driver reports none.
        pod_hooks: the connection to the container runtime; None if the driver has no pod hooks.
    """

    prepared: DevicesInUse
    store: StateStore
    in_force: Callable[[EffectRecord], bool]
    title: Callable[[EffectRecord], str]
    publisher: Publisher
    inventory: CurrentInventory
    vanished: VanishedDevices
    client: Client
    kubelet: KubeletRegistration
    pod_uid: str
    health: Callable[[], Sequence[ReportedHealth]] | None
    supervisor: Supervisor
    failures: RecentFailures
    pod_hooks: PodHooksPart | None = None


class NodeStatus:
    """Builds the status document."""

    def __init__(self, view: NodeView) -> None:
        self._view = view
        self._began = datetime.now(UTC)

    async def document(self) -> dict[str, Any]:
        """Return the whole document; a part that cannot be read contains the error, and the others are still shown."""
        view = self._view
        document: dict[str, Any] = {
            "driver": view.prepared.driver,
            "node": view.prepared.node,
            "release": __version__,
            "pid": os.getpid(),
            "podUID": view.pod_uid,
            "started": self._began.isoformat(timespec="seconds"),
            "registration": _registration(view.kubelet),
            "parts": {
                name: {
                    "state": str(part.state),
                    "error": part.error,
                    "waitsFor": part.waits_for,
                    "after": list(part.after),
                }
                for name, part in view.supervisor.status().items()
            },
            "failures": [item.to_json() for item in view.failures.all()],
        }
        document["devices"] = await _read(self._devices)
        document["claims"] = await _read(self._claims)
        document["effects"] = await _read(self._effects)
        document["state"] = await _read(self._state)
        document["slices"] = await self._slices()
        if view.pod_hooks is not None:
            document["containerRuntime"] = view.pod_hooks.document()
        if view.health is not None:
            document["health"] = [
                {"pool": item.pool, "device": item.device, "health": item.status, "message": item.message}
                for item in view.health()
            ]
        return document

    async def _devices(self) -> list[Any]:
        gone = self._view.vanished.all()
        uses = await self._view.prepared.in_use()
        return [{**use.to_json(), "gone": (use.pool, use.device) in gone} for use in uses]

    async def _claims(self) -> list[Any]:
        return [
            {
                "namespace": record.namespace,
                "name": record.name,
                "uid": record.uid,
                "phase": "preparing" if record.preparing else record.phase,
                "outdated": record.outdated,
            }
            for record in self._view.store.claims()
        ]

    async def _effects(self) -> list[Any]:
        return [
            {
                "effect": record.effect,
                "title": self._view.title(record),
                "keys": list(record.keys),
                "state": effect_state(record, in_force=self._view.in_force(record)),
                "claims": [f"{claim.namespace}/{claim.name}" for claim in record.claims],
                "error": record.error,
            }
            for record in self._view.store.effects()
        ]

    async def _state(self) -> dict[str, Any]:
        store = self._view.store
        return {"corrupt": [str(item) for item in store.corrupt_rows()], "incomplete": store.incomplete()}

    async def _slices(self) -> dict[str, Any]:
        view = self._view
        node = view.prepared.node
        found: dict[str, Any] = {
            "wanted": _wanted(view.publisher.wanted, node),
            "lastError": view.publisher.last_error,
            "lastPublished": _time(view.publisher.record.last_success),
            "discoverError": view.inventory.problem,
        }
        try:
            listed = await view.client.list(RESOURCE_SLICES, field_selector=field_selector(view.prepared.driver, node))
        except DraKitError as error:
            return found | {"published": None, "notRead": str(error)}
        return found | {"published": _published(listed.items)}


def effect_state(record: EffectRecord, *, in_force: bool) -> str:
    """Return one word for an effect: ``in_force``, ``pending``, ``reverting`` or ``revert_failed``."""
    if in_force:
        return "in_force"
    if record.error:
        return "revert_failed"
    return "reverting" if record.phase == "reverting" else "pending"


async def _read(part: Callable[[], Any]) -> Any:
    try:
        return await part()
    except DraKitError as error:
        return {"notRead": str(error), "code": error.code}


def _registration(kubelet: KubeletRegistration) -> dict[str, Any]:
    status = kubelet.status
    if status is not None:
        state = "registered" if status.registered else "refused"
        at = kubelet.status_at
        return {"state": state, "text": status.error, "at": at.isoformat() if at is not None else None}
    if kubelet.is_deferred:
        return {"state": "deferred", "text": kubelet.waits_for()}
    return {"state": "waiting", "text": "no kubelet has connected yet"}


def _wanted(inventory: Inventory[Device] | None, node: str) -> list[Any] | None:
    if inventory is None:
        return None
    return [
        {"pool": pool.name or node, "devices": sorted(device.name for device in pool.devices)}
        for pool in inventory.pools
    ]


def _published(slices: Sequence[Mapping[str, Any]]) -> list[Any]:
    pools: dict[str, dict[str, Any]] = {}
    for item in slices:
        spec = item["spec"]
        name, generation = spec["pool"]["name"], spec["pool"]["generation"]
        pool = pools.setdefault(name, {"pool": name, "generation": generation, "slices": 0, "devices": []})
        if generation < pool["generation"]:
            continue  # an older generation that is being removed
        if generation > pool["generation"]:
            pool.update(generation=generation, slices=0, devices=[])
        pool["slices"] += 1
        pool["devices"] += [str(device["name"]) for device in spec.get("devices") or ()]
    return [pool | {"devices": sorted(pool["devices"])} for pool in pools.values()]


def _time(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else None


_PATIENCE: Final = 5.0


class NodeMetrics:
    """Yields the current metrics; called in the thread that scrapes."""

    def __init__(
        self,
        view: NodeView,
        loop: asyncio.AbstractEventLoop,
        calls: MeasuredService,
        watchdog: LoopWatchdog,
        kopf_restarts: Callable[[], int],
    ) -> None:
        self._view = view
        self._loop = loop
        self._calls = calls
        self._watchdog = watchdog
        self._kopf_restarts = kopf_restarts

    def __call__(self) -> Iterator[Metric]:
        """Yield all metrics; those that cannot be read are missing."""
        yield from self._calls.readings()
        if self._view.pod_hooks is not None:
            yield from self._view.pod_hooks.readings()
        yield REGISTERED.of(int(self._view.kubelet.is_registered()))
        for read in (self._devices, self._effects, self._state):
            with suppress(DraKitError):  # the disk is failing, which is logged
                yield from list(read())
        yield from publication_metrics(self._view.publisher.record)
        yield from process_metrics("node", self._view.client, self._view.supervisor, self._watchdog.lag)
        yield KOPF_RESTARTS.of(self._kopf_restarts())

    def _devices(self) -> Iterator[Metric]:
        recorded = self._view.prepared.recorded()
        yield PREPARED_CLAIMS.of(len({use.claim_uid for use in recorded}))
        inventory = self._view.inventory.latest
        health = {(item.pool, item.device): item.status.lower() for item in self._health()}
        used = {(use.pool, use.device) for use in recorded}
        found: Counter[tuple[str, str]] = Counter()
        for pool in inventory.pools if inventory is not None else ():
            for device in pool.devices:
                key = (pool.name or "", device.name)
                found["prepared" if key in used else "free", health.get(key, "not_reported")] += 1
        yield DEVICES.of_each(found.items())
        infos = sorted({item for use in self._in_use(recorded) for item in _info(use)})
        yield DEVICE_INFO.of_each((info, 1) for info in infos)

    def _health(self) -> Sequence[ReportedHealth]:
        return self._view.health() if self._view.health is not None else ()

    def _in_use(self, recorded: Sequence[DeviceUse]) -> Sequence[DeviceUse]:
        """Return the devices with containers, which only the event loop can look up."""
        asking = asyncio.run_coroutine_threadsafe(self._view.prepared.in_use(), self._loop)
        try:
            return asking.result(_PATIENCE)
        except (TimeoutError, concurrent.futures.CancelledError):
            asking.cancel()
            return recorded

    def _effects(self) -> Iterator[Metric]:
        states = Counter(
            (record.effect, effect_state(record, in_force=self._view.in_force(record)))
            for record in self._view.store.effects()
        )
        yield EFFECTS.of_each(states.items())

    def _state(self) -> Iterator[Metric]:
        store = self._view.store
        yield from store.commit_seconds.collect()
        yield STORE_BYTES.of(store.size_bytes())
        yield STORE_CORRUPT_ROWS.of(len(store.corrupt_rows()))


def _info(use: DeviceUse) -> Iterator[tuple[str, ...]]:
    """Yield the labels of ``dra_device_info``: one series for each hardware id, for joins with other metrics."""
    for hardware_id in use.hardware_ids or ("",):
        yield (
            use.pool, use.device, use.share, hardware_id, use.namespace, use.claim, use.pod, use.container,
        )  # fmt: skip


logger: logging.Logger = logging.getLogger(__name__)
_FAILURES_MAX: Final = 32


class PrepareFailure(Struct, frozen=True):
    """The last of ``times`` equal failures to prepare a claim."""

    at: datetime
    claim: ClaimReference
    code: str
    message: str
    times: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return all fields."""
        return {
            "at": self.at.isoformat(timespec="seconds"),
            "namespace": self.claim.namespace,
            "claim": self.claim.name,
            "claimUID": self.claim.uid,
            "code": self.code,
            "message": self.message,
            "times": self.times,
        }
