"""The slices of this node, the watch that triggers the publisher, devices of pools without a node, vanished devices."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from typing_extensions import override

from dra_kit.author.device import Device, device_from_published
from dra_kit.author.driver import Driver
from dra_kit.author.inventory import Inventory, Pool
from dra_kit.author.provider import provider_device_class
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.client.resources import RESOURCE_SLICES
from dra_kit.errors import ConfigurationError, InvalidDevice, KubeError, StoreError, TransientError
from dra_kit.kubernetes.release import KubernetesVersion
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.api_model import OwnerReference
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.context import ClusterFacts
from dra_kit.node.failpoints import Failpoint, hit
from dra_kit.node.processes import DriverProcesses
from dra_kit.node.state.records import ClaimRecord, DeviceRecord
from dra_kit.node.state.store import StateStore
from dra_kit.slices.inventory import CurrentInventory, DeviceIdentity, device_identity
from dra_kit.slices.planning import DesiredPool, selects_pools
from dra_kit.slices.publisher import Publisher, SliceScope, SliceWrite, parse_slice

if TYPE_CHECKING:
    from dra_kit.client.operator import EventType, KopfThread, kopf


logger: logging.Logger = logging.getLogger(__name__)
_STEPS: Final = {
    SliceWrite.DELETED: Failpoint.SLICE_DELETED,
    SliceWrite.UPDATED: Failpoint.SLICE_UPDATED,
    SliceWrite.CREATED: Failpoint.SLICE_CREATED,
}


def field_selector(driver: str, node_name: str) -> str:
    """Return the server-side field selector for this driver's slices of this node."""
    return f"spec.driver={driver},spec.nodeName={node_name}"


def desired_pool(pool: Pool[Device], node_name: str) -> DesiredPool:
    """Return the desired state of an author's pool of this node."""
    return DesiredPool(
        name=pool.name or node_name,
        node_name=node_name,
        devices=tuple(device.to_v1() for device in pool.devices),
        counter_sets=tuple(pool.counter_sets_v1()),
        partition_type_attribute=pool.partition_type_attribute,
        skip_node_operations=tuple(pool.skip_node_operations),
    )


class NodeScope(SliceScope):
    """The scope of one driver on this node.

    Older ``processes`` of the driver leave the slices to younger ones, so that two releases with different inventories
    do not undo each other's writes; None if there is only this one.
    """

    def __init__(
        self, driver: str, node_name: str, facts: ClusterFacts, *, processes: DriverProcesses | None = None
    ) -> None:
        self._driver = driver
        self._node_name = node_name
        self._facts = facts
        self._processes = processes
        self._succeeded = False

    @property
    @override
    def driver(self) -> str:
        return self._driver

    @property
    @override
    def field_selector(self) -> str:
        return field_selector(self._driver, self._node_name)

    @override
    async def version(self) -> KubernetesVersion:
        return await self._facts.version()

    @override
    async def owner(self) -> OwnerReference | None:
        return await self._facts.owner()

    @override
    def invalidate(self) -> None:
        self._facts.forget()

    @override
    def desired(self, pool: Pool[Device]) -> DesiredPool:
        return desired_pool(pool, self._node_name)

    @override
    async def publishable(
        self, pools: tuple[DesiredPool, ...]
    ) -> tuple[tuple[DesiredPool, ...], ConfigurationError | None]:
        return pools, None  # the controller checks once for name conflicts with pools without a node

    @override
    def is_superseded(self) -> bool:
        if self._processes is None:
            return False
        try:
            self._processes.publishes()
            succeeded = self._processes.is_succeeded()
        except StoreError as error:  # a failing disk must not stop the publication
            logger.warning(
                "other processes of the driver cannot be checked", extra={"error": str(error), "code": error.code}
            )
            succeeded = False
        if succeeded != self._succeeded:
            text = "a younger process publishes the slices" if succeeded else "this process publishes the slices again"
            logger.info(text)
        self._succeeded = succeeded
        return succeeded

    @override
    def on_write(self, what: SliceWrite) -> None:
        hit(_STEPS[what])


class ClusterPoolDevices:
    """Looks up devices of a cluster provider; claims of this node's own devices cause no request.

    Each claim sees what is published when it is prepared: one list request, shared with claims that arrive meanwhile.
    ``client`` needs ``list`` on resourceslices, as the publisher does. ``device_class`` is that of the cluster
    provider, without fields of its own.
    """

    def __init__(
        self,
        client: Client,
        driver: str,
        facts: ClusterFacts,
        device_class: type[Device],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._driver = driver
        self._facts = facts
        self._device_class = device_class
        self._clock = clock
        self._reading = asyncio.Lock()
        self._read: dict[str, tuple[float, Sequence[v1.ResourceSlice]]] = {}

    async def device(self, pool: str, name: str) -> tuple[Device, DeviceIdentity]:
        """Return the device as it is published, and its identity.

        Raises:
            TransientError: it is not published (code ``device-gone``), or the API server cannot be reached.
        """
        try:
            slices = await self._slices(pool)
        except KubeError as error:
            raise TransientError(
                f"device {pool}/{name} cannot be looked up: {error}; the kubelet retries", code=error.code
            ) from error
        for item in sorted(slices, key=lambda item: item.spec.pool.generation, reverse=True):
            for published in item.spec.devices:
                if published.name == name:
                    return self._known(pool, published)
        raise TransientError(
            f"device {pool}/{name} is not published any more; it can be prepared when it is back, or delete the pod to "
            "get another device",
            code="device-gone",
        )

    async def _slices(self, pool: str) -> Sequence[v1.ResourceSlice]:
        asked = self._clock()
        async with self._reading:
            began, slices = self._read.get(pool, (-1.0, ()))
            if began >= asked:
                return slices  # the answer to another claim's later request
            self._read.clear()  # cached answers are only for claims that wait now
            began = self._clock()
            slices = await self._list(pool)
            self._read[pool] = (began, slices)
            return slices

    async def _list(self, pool: str) -> Sequence[v1.ResourceSlice]:
        selector = f"spec.driver={self._driver},spec.nodeName="
        if selects_pools(await self._facts.version()):
            selector += f",spec.pool.name={pool}"
        listed = await self._client.list(RESOURCE_SLICES, field_selector=selector)
        return [parse_slice(item) for item in listed.items if item["spec"]["pool"]["name"] == pool]

    def _known(self, pool: str, published: v1.Device) -> tuple[Device, DeviceIdentity]:
        try:
            device = device_from_published(self._device_class, published)
        except (InvalidDevice, ValueError) as error:
            text = " ".join(str(error).split())
            raise TransientError(
                f"device {pool}/{published.name} has values that this release does not support: {text}; update "
                "the driver on this node to the release of its controller",
                code="device-gone",
            ) from error
        return device, device_identity(device)


def cluster_pool_devices(driver: Driver[Any, Any], client: Client, facts: ClusterFacts) -> ClusterPoolDevices | None:
    """Return the source for a driver that has such devices, else None."""
    provider = driver.cluster_provider
    return None if provider is None else ClusterPoolDevices(client, driver.name, facts, provider_device_class(provider))


class SliceWatch:
    """Lets the publisher check the slices when they have changed; runs kopf in its own thread.

    It is started late, since importing kopf takes longer than the rest of the start.
    """

    name = "kopf"

    def __init__(self, credentials: Credentials, driver: str, node_name: str, publisher: Publisher) -> None:
        self._credentials = credentials
        self._driver = driver
        self._node_name = node_name
        self._publisher = publisher
        self._thread: KopfThread | None = None

    def restarts(self) -> int:
        """Return how often kopf was restarted. Thread-safe."""
        return self._thread.restarts if self._thread is not None else 0

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; kopf may crash and restart while the rest keeps working."""
        loop = asyncio.get_running_loop()
        kopf_thread = await asyncio.to_thread(_import_kopf)

        def look_again() -> None:
            with suppress(RuntimeError):  # the process has stopped, kopf's thread has not
                loop.call_soon_threadsafe(self._publisher.look_again)

        self._thread = thread = kopf_thread(
            self._credentials,
            lambda: _watch_slices(self._driver, self._node_name, self._publisher, loop),
            # changes between the publisher's list and kopf's list produce no event
            watching=look_again,
        )
        await thread.run(ready)


def _import_kopf() -> type[KopfThread]:
    from dra_kit.client.operator import KopfThread  # kopf: half a second, in a separate thread

    # everything loaded now stays: without this, each full collection costs a prepare about ten milliseconds (make
    # bench)
    gc.collect()
    gc.freeze()
    return KopfThread


def _watch_slices(
    driver: str, node_name: str, publisher: Publisher, loop: asyncio.AbstractEventLoop
) -> tuple[kopf.OperatorRegistry, kopf.OperatorSettings]:
    """Return registry and settings of one kopf run, which watches only this driver's slices of this node."""
    from dra_kit.client.operator import kopf, kopf_settings, on_event

    registry = kopf.OperatorRegistry()

    async def slice_changed(event: EventType, item: Mapping[str, Any]) -> None:
        if event == "DELETED":
            publisher.look_again()
        elif event is not None:  # the publisher has listed the initial state itself
            publisher.changed(item)

    on_event(registry, RESOURCE_SLICES, slice_changed, id="slice-changed", loop=loop)
    return registry, kopf_settings({RESOURCE_SLICES: field_selector(driver, node_name)})


_Key: TypeAlias = tuple[str, str]
"""Pool and name of a device."""


class VanishedDevices:
    """Compares the devices of prepared claims with the inventory; used only in the main loop.

    Args:
        inventory: each new one is compared.
        cluster_pools: claims may have devices of pools without a node, which are not in the inventory.
        report: called once for each device that vanishes, with the claims that have it.
    """

    def __init__(
        self,
        store: StateStore,
        inventory: CurrentInventory,
        *,
        cluster_pools: bool,
        report: Callable[[str, str, Sequence[ClaimReference]], None],
    ) -> None:
        self._store = store
        self._inventory = inventory
        self._cluster_pools = cluster_pools
        self._report = report
        self._pools: set[str] = set()  # that this node has published since the start
        self._reported: dict[tuple[str, _Key], ClaimReference] = {}  # by UID of the claim, and device
        inventory.listen(self._compare)

    def all(self) -> frozenset[_Key]:
        """Return pool and name of each such device.

        Raises:
            StoreError: the records of claims cannot be read.
        """
        return frozenset(key for _, key in self._found())

    def prepared(self, record: ClaimRecord) -> None:
        """Look again if a claim was prepared with a device that vanished meanwhile."""
        if any((record.uid, (item.pool, item.device)) not in self._reported for item in self._missing(record)):
            assert self._inventory.latest is not None  # noqa: S101 - else nothing is missing
            self._compare(self._inventory.latest)

    def _compare(self, inventory: Inventory[Device]) -> None:
        self._pools |= {pool.name or "" for pool in inventory.pools}
        try:
            found = {(claim.uid, key): claim for claim, key in self._found()}
        except StoreError:  # reported where the record is needed
            return
        vanished: dict[_Key, list[ClaimReference]] = {}
        for (_, key), claim in (item for item in found.items() if item[0] not in self._reported):
            vanished.setdefault(key, []).append(claim)
        self._reported = found
        for (pool, device), claims in vanished.items():
            fields = {"device": f"{pool}/{device}", "claims": ", ".join(map(str, claims))}
            logger.warning("device in use is not in the inventory any more", extra=fields)
            self._report(pool, device, claims)

    def _found(self) -> Iterator[tuple[ClaimReference, _Key]]:
        for record in self._store.claims():
            for item in self._missing(record):
                yield record.reference, (item.pool, item.device)

    def _missing(self, record: ClaimRecord) -> list[DeviceRecord]:
        """Return the devices of a prepared claim that this node has published before, and not now."""
        if self._inventory.latest is None or record.phase != "prepared":
            return []
        own = (item for item in record.devices if not self._cluster_pools or item.pool in self._pools)
        return [item for item in own if not self._inventory.has(item.pool, item.device)]
