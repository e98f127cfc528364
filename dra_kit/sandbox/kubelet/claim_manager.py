"""Claims of pods on a node: prepared before containers start, unprepared after they end, with a checkpoint.

Order, conditions and words are those of ``pkg/kubelet/cm/dra/manager.go`` of Kubernetes 1.37.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dra_kit.client.api import Client
from dra_kit.client.resources import RESOURCE_CLAIMS
from dra_kit.errors import KubeletError, NotFound
from dra_kit.kubelet.device_use import (
    FILE_NAME,
    CheckpointClaim,
    CheckpointDevice,
    decode_checkpoint,
    encode_checkpoint,
)
from dra_kit.kubelet.plugin_client import DeviceAnswer
from dra_kit.kubernetes.resource.objects import (
    ClaimReference,
    PodClaim,
    PodReference,
    claim_uses,
    is_made_for,
    is_reserved_for,
    not_made_for,
    pod_claims,
    pod_reference,
)
from dra_kit.kubernetes.resource.v1 import DeviceRequestAllocationResult, ResourceClaim
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.kubelet.plugin_manager import PluginManager
from dra_kit.sandbox.records import PREPARE, UNPREPARE, AnsweredDevice, CallEnded, CallStarted, RecordObserver


class ClaimManager:
    """Prepares and releases the claims of the node's pods.

    ``optional_operations`` is the feature gate DRAOptionalNodeOperations (KEP-5945): a driver whose allocation results
    say so is not called.

    Raises:
        KubeletError: the checkpoint is corrupt.
    """

    def __init__(
        self,
        client: Client,
        node_name: str,
        plugins: PluginManager,
        directory: Path,
        observer: RecordObserver,
        *,
        optional_operations: bool = False,
    ) -> None:
        self._client = client
        self._node_name = node_name
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
        """Have the drivers prepare all claims of a pod; claims that are already prepared are skipped.

        Raises:
            KubeletError: the pod cannot start; the text is the message of its Event.
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
            devices = await self._call(PREPARE, driver, batch, who.uid, who)
            for info in batch:
                info.drivers[driver] = devices[info.claim.uid]
        for info in waiting:
            info.prepared = True
        if waiting:
            self._store()

    async def release(self, pod_uid: str) -> None:
        """Have the drivers release the claims that only this pod uses, and remove it from the users of the others.

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
                await self._call(UNPREPARE, driver, batch, pod_uid)
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
            resources: dict[str, dict[str, str]] = {}  # devices with the same CDI name are listed once
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
        if entry.generated and not is_made_for(found, pod):
            raise KubeletError(not_made_for(found, pod))
        if not is_reserved_for(found, pod):
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

    async def _call(
        self, method: str, driver: str, batch: Sequence[ClaimInfo], pod_uid: str, pod: PodReference | None = None
    ) -> dict[str, tuple[DeviceAnswer, ...]]:
        """Call a driver and record the call; return the prepared devices by claim UID."""
        claims = tuple(info.claim for info in batch)
        self._observe(CallStarted(node=self._node_name, driver=driver, method=method, pod_uid=pod_uid, claims=claims))
        begin = time.monotonic()
        ended = partial(CallEnded, node=self._node_name, driver=driver, method=method, claims=claims, pod=pod)
        answers: dict[str, tuple[DeviceAnswer, ...]] = {}
        try:
            if method == PREPARE:
                answers = await self._plugins.prepare(driver, claims)
            else:
                await self._plugins.unprepare(driver, claims)
        except KubeletError as error:
            self._observe(ended(duration=time.monotonic() - begin, error=str(error)))
            raise
        devices = tuple(
            AnsweredDevice(device.pool_name, device.device_name, device.cdi_device_ids)
            for claim in claims
            for device in answers.get(claim.uid, ())
        )
        self._observe(ended(duration=time.monotonic() - begin, devices=devices))
        return answers

    def _store(self) -> None:
        self._checkpoint.store(self._claims.values())


def skipped_operations(results: Sequence[DeviceRequestAllocationResult]) -> dict[str, tuple[str, ...]]:
    """Return the node operations that all of a claim's results declare unnecessary, by driver; ``*`` means both."""
    found: dict[str, tuple[str, ...]] = {}
    for driver in dict.fromkeys(result.driver for result in results):
        declared = [result.skip_node_operations for result in results if result.driver == driver]
        needless = [name for name in (PREPARE, UNPREPARE) if all(name in one or "*" in one for one in declared)]
        if needless:
            found[driver] = tuple(needless)
    return found


def _devices(info: ClaimInfo, request: str) -> Iterator[tuple[str, DeviceAnswer]]:
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


@dataclass(slots=True)
class ClaimInfo:
    """What the kubelet knows of a claim that pods of its node use.

    Attributes:
        claim: name and identity.
        pods: UIDs of the pods that use it here.
        drivers: devices by driver, for every driver that has a result in the claim; empty until it is prepared.
        skipped: node operations that a driver need not be called for, by driver.
        prepared: all drivers prepared it since the kubelet started; not in the checkpoint.
        releasing: an unprepare is on its way; not in the checkpoint.
    """

    claim: ClaimReference
    pods: set[str]
    drivers: dict[str, tuple[DeviceAnswer, ...]]
    skipped: dict[str, tuple[str, ...]] = field(default_factory=dict)
    prepared: bool = field(default=False, compare=False)
    releasing: bool = field(default=False, compare=False)


class Checkpoint:
    """The file; its methods block for the moment of one small write or read."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME

    def load(self) -> list[ClaimInfo]:
        """Load the stored checkpoint; do nothing if the file does not exist.

        Raises:
            KubeletError: the file is corrupt. The kubelet does not start without it: it would forget claims to release.
        """
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return []
        try:
            return [_claim_info(entry) for entry in decode_checkpoint(content)]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise KubeletError(
                f"error loading DRA manager state from {self._path}: {error}; remove the file once no pod of the node "
                "uses a claim"
            ) from error

    def store(self, claims: Iterable[ClaimInfo]) -> None:
        """Replace the file.

        Raises:
            KubeletError: it cannot be written.
        """
        temporary = self._path.with_name(f".{FILE_NAME}.new")
        try:
            temporary.write_text(encode_checkpoint(map(_entry, claims)))
            temporary.replace(self._path)
        except OSError as error:
            raise KubeletError(f"checkpoint ResourceClaim state: {self._path}: {error.strerror}") from error


def _entry(info: ClaimInfo) -> CheckpointClaim:
    return {
        "ClaimUID": info.claim.uid,
        "ClaimName": info.claim.name,
        "Namespace": info.claim.namespace,
        "PodUIDs": {uid: {} for uid in sorted(info.pods)},
        "DriverState": {
            driver: {
                "Devices": [_device_entry(device) for device in devices] or None,
                **({"skipNodeOperations": list(info.skipped[driver])} if driver in info.skipped else {}),
            }
            for driver, devices in info.drivers.items()
        },
    }


def _device_entry(device: DeviceAnswer) -> CheckpointDevice:
    return {
        "PoolName": device.pool_name,
        "DeviceName": device.device_name,
        "ShareID": device.share_id,
        "RequestNames": list(device.request_names),
        "CDIDeviceIDs": list(device.cdi_device_ids),
    }


def _claim_info(entry: CheckpointClaim) -> ClaimInfo:
    states = entry["DriverState"] or {}
    return ClaimInfo(
        claim=ClaimReference(entry["Namespace"], entry["ClaimName"], entry["ClaimUID"]),
        pods=set(entry["PodUIDs"] or ()),
        drivers={driver: tuple(map(_device, state["Devices"] or ())) for driver, state in states.items()},
        skipped={
            driver: tuple(state["skipNodeOperations"])
            for driver, state in states.items()
            if "skipNodeOperations" in state
        },
    )


def _device(entry: CheckpointDevice) -> DeviceAnswer:
    return DeviceAnswer(
        request_names=tuple(entry["RequestNames"] or ()),
        pool_name=entry["PoolName"],
        device_name=entry["DeviceName"],
        cdi_device_ids=tuple(entry["CDIDeviceIDs"] or ()),
        share_id=entry["ShareID"],
    )
