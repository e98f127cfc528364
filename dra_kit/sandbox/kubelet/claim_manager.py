"""The kubelet's DRA manager: which claims of a pod are prepared, by whom, and what its containers get of them.

Order, conditions and words are those of ``pkg/kubelet/cm/dra/manager.go`` of Kubernetes 1.37.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from dra_kit.client.api import Client
from dra_kit.client.resources import RESOURCE_CLAIMS
from dra_kit.errors import KubeletError, NotFound
from dra_kit.kubernetes.resource.objects import ClaimReference, PodClaim, claim_uses, pod_claims, pod_reference
from dra_kit.kubernetes.resource.v1 import DeviceRequestAllocationResult, ResourceClaim
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.cluster.kubelet.activity import ClaimsPrepared, ClaimsReleased, Observer, PluginCalled
from dra_kit.sandbox.cluster.kubelet.dra.checkpoint import Checkpoint, ClaimInfo
from dra_kit.sandbox.cluster.kubelet.dra.plugin import Device, PluginClient

PREPARE: Final = "NodePrepareResources"
UNPREPARE: Final = "NodeUnprepareResources"


class Plugins(Protocol):
    """The registered drivers, as :class:`dra_kit.sandbox.cluster.kubelet.dra.kubelet.Kubelet` knows them."""

    def plugin(self, driver: str) -> PluginClient:
        """Return the instance that is called; raise a KubeletError when there is none."""
        ...

    async def prepare(self, driver: str, claims: Sequence[ClaimReference]) -> dict[str, tuple[Device, ...]]:
        """Prepare the claims of a pod and return the devices by claim UID."""
        ...

    async def unprepare(self, driver: str, claims: Sequence[ClaimReference]) -> None:
        """Wait until the claims are released, else a KubeletError."""
        ...

    def health(self, driver: str, pool: str, device: str) -> tuple[str, str]:
        """Return health and message of a device; ``Unknown`` where it is not reported."""
        ...


class ClaimManager:
    """Prepares and releases the claims of the node's pods.

    Args:
        client: to fetch claims with.
        plugins: the drivers.
        directory: the kubelet's root directory; the checkpoint lives there.
        observer: is notified of the calls.
        optional_operations: the feature gate DRAOptionalNodeOperations (KEP-5945): a driver whose allocation results
            say so is not called.

    Raises:
        KubeletError: the checkpoint is damaged.
    """

    def __init__(
        self,
        client: Client,
        plugins: Plugins,
        directory: Path,
        observer: Observer,
        *,
        optional_operations: bool = False,
    ) -> None:
        self._client = client
        self._plugins = plugins
        self._checkpoint = Checkpoint(directory)
        self._observe = observer
        self._optional_operations = optional_operations
        self._claims = {(info.claim.namespace, info.claim.name): info for info in self._checkpoint.load()}

    @property
    def pods(self) -> frozenset[str]:
        """UIDs of the pods that use a claim of this node."""
        return frozenset(uid for info in self._claims.values() for uid in info.pods)

    def pods_with(self, driver: str) -> frozenset[str]:
        """Return UIDs of the pods that have prepared devices of a driver."""
        return frozenset(
            uid for info in self._claims.values() if info.prepared and driver in info.drivers for uid in info.pods
        )

    async def prepare(self, pod: ObjectView) -> None:
        """Have the drivers prepare all claims of a pod; what is prepared already is not prepared again.

        Raises:
            KubeletError: the pod cannot start, in the words of its event.
            Unavailable: the API server does not answer.
        """
        who = pod_reference(pod)
        claims = [await self._fetch(pod, entry) for entry in pod_claims(pod)]
        new = [self._admit(who.uid, claim) for claim in claims]
        if not new:
            return
        for info in new:
            self._claims.setdefault((info.claim.namespace, info.claim.name), info).pods.add(who.uid)
        infos = [self._claims[info.claim.namespace, info.claim.name] for info in new]
        self._store()
        waiting = [info for info in infos if not info.prepared]
        for driver, batch in _batches(waiting, PREPARE):
            begin = time.monotonic()
            references = tuple(info.claim for info in batch)
            self._observe(PluginCalled(PREPARE, who.uid, driver, references))
            try:
                devices = await self._plugins.prepare(driver, references)
            except KubeletError as error:
                self._observe(ClaimsPrepared(who, driver, references, time.monotonic() - begin, error=str(error)))
                raise
            found = tuple(device for info in batch for device in devices[info.claim.uid])
            self._observe(ClaimsPrepared(who, driver, references, time.monotonic() - begin, found))
            for info in batch:
                info.drivers[driver] = devices[info.claim.uid]
        for info in waiting:
            info.prepared = True
        if waiting:
            self._store()

    async def release(self, pod_uid: str) -> None:
        """Have the drivers release the claims that only this pod uses, and end its use of the others.

        Raises:
            KubeletError: a driver did not; the claims stay the pod's.
        """
        mine = [info for info in self._claims.values() if pod_uid in info.pods]
        alone = [info for info in mine if len(info.pods) == 1 and not info.releasing]
        for info in mine:
            if len(info.pods) > 1:
                info.pods.discard(pod_uid)
        for info in alone:
            info.releasing = True
        try:
            if len(alone) < len(mine):
                self._store()
            for driver, batch in _batches(alone, UNPREPARE):
                await self._release(pod_uid, driver, tuple(info.claim for info in batch))
        finally:
            for info in alone:
                info.releasing = False
        for info in alone:
            del self._claims[info.claim.namespace, info.claim.name]
        if alone:
            self._store()

    def cdi_devices(self, pod: ObjectView, container: ObjectView) -> tuple[str, ...]:
        """Return qualified CDI names that the drivers gave for a container of a pod with prepared claims.

        A container that names a request of a claim gets the devices that serve this request, or every request.

        Raises:
            KubeletError: a claim is not known.
        """
        namespace = pod_reference(pod).namespace
        names: list[str] = []
        for use in claim_uses(pod, container):
            info = self._claims.get((namespace, use.claim))
            if info is None:
                raise KubeletError(
                    f"internal error: unable to get claim info for ResourceClaim {use.claim} in namespace {namespace}"
                )
            for _, device in _devices(info, use.request):
                names += device.cdi_device_ids
        return tuple(dict.fromkeys(names))

    def allocated_resources(self, pod: ObjectView, container: ObjectView) -> list[dict[str, Any]]:
        """Return ``allocatedResourcesStatus`` of a container's status (KEP-4680): its devices, each with its health.

        A claim that is not known here, because it is released, has none.
        """
        found = []
        for use in claim_uses(pod, container):
            info = self._claims.get((pod_reference(pod).namespace, use.claim))
            if info is None or not use.name:
                continue
            resources: dict[str, dict[str, str]] = {}  # devices of one CDI name are told once
            for driver, device in _devices(info, use.request):
                ids, place = device.cdi_device_ids, (device.pool_name, device.device_name)
                identity = ids[0] if ids else "/".join((driver, *place))
                health, message = self._plugins.health(driver, *place)
                health_status = {"resourceID": identity, "health": health, **({"message": message} if message else {})}
                resources.setdefault(identity, health_status)
            found.append(
                {
                    "name": f"claim:{use.name}/{use.request}" if use.request else f"claim:{use.name}",
                    "resources": list(resources.values()),
                }
            )
        return found

    async def _fetch(self, pod: ObjectView, entry: PodClaim) -> ResourceClaim:
        """Return a claim that the pod may use and that is allocated."""
        who = pod_reference(pod)
        if entry.claim is None:
            raise KubeletError(f'pod "{who}": ResourceClaim not created yet')
        try:
            found = await self._client.get(RESOURCE_CLAIMS, entry.claim, who.namespace)
        except NotFound as error:
            raise KubeletError(
                f'fetch ResourceClaim {entry.claim}: resourceclaims.resource.k8s.io "{entry.claim}" not found'
            ) from error
        claim = ResourceClaim.model_validate(found)
        owners = claim.metadata.owner_references
        if entry.generated and not any(owner.controller and owner.uid == who.uid for owner in owners):
            raise KubeletError(
                f"ResourceClaim {who.namespace}/{entry.claim} was not created for Pod {who} (Pod is not owner)"
            )
        if who.uid not in {consumer.uid for consumer in claim.status.reserved_for}:
            raise KubeletError(
                f"pod {who.name} ({who.uid}) is not allowed to use ResourceClaim {entry.claim} ({claim.metadata.uid})"
            )
        if claim.status.allocation is None:
            raise KubeletError(f"ResourceClaim {entry.claim}: not allocated")
        return claim

    def _admit(self, pod_uid: str, claim: ResourceClaim) -> ClaimInfo:
        """Return the record of the claim, unless something forbids its use."""
        metadata, allocation = claim.metadata, claim.status.allocation
        results = allocation.devices.results if allocation is not None else ()
        new = ClaimInfo(
            claim=ClaimReference(metadata.namespace, metadata.name, metadata.uid),
            pods={pod_uid},
            drivers={result.driver: () for result in results},
            skipped=skipped_operations(results),
        )
        if new.skipped and not self._optional_operations:
            raise KubeletError(
                f"ResourceClaim {metadata.name}: DRAOptionalNodeOperations feature gate is disabled on kubelet"
            )
        known = self._claims.get((metadata.namespace, metadata.name))
        if known is not None and known.claim.uid != metadata.uid:
            raise KubeletError(
                f"old ResourceClaim with same name {metadata.name} and different UID {known.claim.uid} still exists "
                "(previous pod force-deleted?!)"
            )
        if known is not None and known.releasing:
            raise KubeletError(f"ResourceClaim {metadata.name} is being unprepared")
        if known is None or not known.prepared:
            for driver, _ in _batches([new], PREPARE):
                self._plugins.plugin(driver)
        return new

    async def _release(self, pod_uid: str, driver: str, claims: tuple[ClaimReference, ...]) -> None:
        begin = time.monotonic()
        self._observe(PluginCalled(UNPREPARE, pod_uid, driver, claims))
        try:
            await self._plugins.unprepare(driver, claims)
        except KubeletError as error:
            self._observe(ClaimsReleased(driver, claims, time.monotonic() - begin, str(error)))
            raise
        self._observe(ClaimsReleased(driver, claims, time.monotonic() - begin))

    def _store(self) -> None:
        self._checkpoint.store(self._claims.values())


def skipped_operations(results: Sequence[DeviceRequestAllocationResult]) -> dict[str, tuple[str, ...]]:
    """Return the node operations that all results of a driver declare unnecessary, by driver, if there are any.

    Args:
        results: of one claim; ``*`` stands for both operations.
    """
    found: dict[str, tuple[str, ...]] = {}
    for driver in dict.fromkeys(result.driver for result in results):
        declared = [result.skip_node_operations for result in results if result.driver == driver]
        needless = [name for name in (PREPARE, UNPREPARE) if all(name in one or "*" in one for one in declared)]
        if needless:
            found[driver] = tuple(needless)
    return found


def _devices(info: ClaimInfo, request: str) -> Iterator[tuple[str, Device]]:
    """Yield the devices of a claim that serve a request, or all of them, each with its driver."""
    for driver, devices in info.drivers.items():
        for device in devices:
            if not request or not device.request_names or request in device.request_names:
                yield driver, device


def _batches(infos: Sequence[ClaimInfo], operation: str) -> Iterator[tuple[str, list[ClaimInfo]]]:
    """Yield the drivers to call, each with the claims that it is called for."""
    for driver in dict.fromkeys(driver for info in infos for driver in info.drivers):
        batch = [info for info in infos if driver in info.drivers and operation not in info.skipped.get(driver, ())]
        if batch:
            yield driver, batch
