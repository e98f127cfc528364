"""Devices in use by containers: the rows of ``dra-kit who``, and what the kubelet knows of it.

That is what its PodResources service reports, and its checkpoint of claims: ``dra_manager_state`` in its root
directory.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, TypedDict, TypeVar
from urllib.parse import quote

import grpc.aio
from msgspec import Struct
from msgspec.structs import replace

from dra_kit.errors import Unavailable
from dra_kit.kubelet.proto import podresources_v1_pb2 as pb
from dra_kit.kubelet.proto import podresources_v1_pb2_grpc as pb_grpc
from dra_kit.kubernetes.resource.objects import ClaimReference

Identity: TypeAlias = tuple[str, str, str, str, str, str, str, str]
"""Namespace, pod, container, claim, driver, pool, device, share."""
_FIELDS: Final = (
    "driver", "pool", "device", "share", "request", "namespace", "claim", "claim_uid", "pod", "container", "node",
)  # fmt: skip
_TEXTS: Final = {"claimUID" if field == "claim_uid" else field: field for field in _FIELDS}
"""The fields that hold text, by their names in JSON."""
MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Maximum message size of the kubelet's own client (k8s.io/kubernetes, pkg/kubelet/apis/podresources/constants.go)."""


class DeviceUse(Struct, frozen=True, kw_only=True, order=True):
    """What is known about a device in use; unknown fields are empty.

    Attributes:
        share: the share, if several claims share the device (KEP-5075).
        request: the claim's request that it satisfies.
        hardware_ids: the names by which the hardware itself knows it, as reported by its driver.
        container: the container of the pod that gets the device.
    """

    driver: str
    pool: str
    device: str
    share: str = ""
    request: str = ""
    hardware_ids: tuple[str, ...] = ()
    namespace: str = ""
    claim: str = ""
    claim_uid: str = ""
    pod: str = ""
    container: str = ""
    node: str = ""

    @property
    def identity(self) -> Identity:
        """The fields that the kubelet's PodResources service also reports."""
        return (
            self.namespace, self.pod, self.container, self.claim, self.driver, self.pool, self.device, self.share,
        )  # fmt: skip

    @property
    def allocation(self) -> tuple[str, str, str, str, str, str]:
        """Which device of which claim, regardless of its users."""
        return self.namespace, self.claim, self.driver, self.pool, self.device, self.share

    def fits(self, wanted: str) -> bool:
        """Return whether a search term of the user matches it.

        Args:
            wanted: the name of a node, a pod, a claim or a device, a name with its ``namespace/``, a device with its
                ``pool/``, or a hardware id.
        """
        return wanted in {
            self.node, self.pod, self.claim, self.device, f"{self.namespace}/{self.pod}",
            f"{self.namespace}/{self.claim}", f"{self.pool}/{self.device}", *self.hardware_ids,
        }  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return all fields, by their names in JSON."""
        texts = {key: getattr(self, field) for key, field in _TEXTS.items()}
        return {**texts, "hardwareIDs": list(self.hardware_ids)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DeviceUse:
        """Return the object from JSON, maybe of another release: missing fields are unknown.

        Raises:
            ValueError: a field has another type.
        """
        texts = {field: value.get(key, "") for key, field in _TEXTS.items()}
        ids = value.get("hardwareIDs", [])
        if not all(isinstance(item, str) for item in [*texts.values(), *ids]):
            raise ValueError(f"not a device in use: {value}")
        return cls(**texts, hardware_ids=tuple(ids))


def with_users(uses: Iterable[DeviceUse], users: Iterable[DeviceUse]) -> list[DeviceUse]:
    """Return the drivers' devices joined with the kubelet's pods and containers, and rows that only one of them has."""
    by_allocation: dict[object, list[DeviceUse]] = {}
    for user in users:
        by_allocation.setdefault(user.allocation, []).append(user)
    joined, known = [], set()
    for use in uses:
        found = by_allocation.get(use.allocation, ())
        if found:
            known.add(use.allocation)
            joined += [replace(use, pod=user.pod, container=user.container) for user in _distinct(found)]
        else:
            joined.append(use)
    joined += [user for allocation, found in by_allocation.items() if allocation not in known for user in found]
    # a device that two requests name is listed once if the kubelet does not report requests
    return list(dict.fromkeys(joined))


def _distinct(users: Sequence[DeviceUse]) -> list[DeviceUse]:
    return list({(user.pod, user.container): user for user in users}.values())


class ContainerDevice(Struct, frozen=True):
    """A device that the kubelet has assigned to a container.

    Attributes:
        namespace: of pod and claim.
        share: the share of a shared device; empty for none.
    """

    namespace: str
    pod: str
    container: str
    claim: str
    driver: str
    pool: str
    device: str
    share: str
    cdi_devices: tuple[str, ...]


def pod_resources_socket(kubelet_dir: Path) -> Path:
    """Return the path of the kubelet's PodResources socket."""
    return kubelet_dir / "pod-resources" / "kubelet.sock"


async def list_container_devices(socket: Path, *, timeout: float = 5.0) -> list[ContainerDevice]:
    """List the devices in use, from the kubelet.

    Raises:
        Unavailable: it does not respond.
    """
    # most processes of a driver never call this
    options = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]
    try:
        async with grpc.aio.insecure_channel(f"unix:{quote(str(socket))}", options=options) as channel:
            lister = pb_grpc.PodResourcesListerStub(channel)
            answer = await lister.List(pb.ListPodResourcesRequest(), timeout=timeout)
    except grpc.aio.AioRpcError as error:
        raise Unavailable(
            f"the kubelet does not tell which containers have devices ({socket}: {error.code().name}); is it running, "
            "and may this user open the socket?",
            code="no-answer",
        ) from error
    return list(_devices(answer))


def _devices(answer: pb.ListPodResourcesResponse) -> Iterator[ContainerDevice]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            for resource in container.dynamic_resources:
                for item in resource.claim_resources:
                    yield ContainerDevice(
                        namespace=pod.namespace,
                        pod=pod.name,
                        container=container.name,
                        claim=resource.claim_name,
                        driver=item.driver_name,
                        pool=item.pool_name,
                        device=item.device_name,
                        share=item.share_id,
                        cdi_devices=tuple(device.name for device in item.cdi_devices),
                    )


def device_use_of(held: ContainerDevice) -> DeviceUse:
    """Return the kubelet's report about a device as a row."""
    return DeviceUse(
        driver=held.driver,
        pool=held.pool,
        device=held.device,
        share=held.share,
        namespace=held.namespace,
        claim=held.claim,
        pod=held.pod,
        container=held.container,
    )


logger: logging.Logger = logging.getLogger(__name__)
FILE_NAME: Final = "dra_manager_state"
_T = TypeVar("_T")
_KIND: Final = "DRACheckpoint"
_API_VERSION: Final = "checkpoint.dra.kubelet.k8s.io/v1"


class CheckpointDevice(TypedDict):
    """One prepared device of a claim."""

    PoolName: str
    DeviceName: str
    ShareID: str | None
    RequestNames: Sequence[str] | None
    CDIDeviceIDs: Sequence[str] | None


class CheckpointClaim(TypedDict):
    """One claim; ``PodUIDs`` is a set as Go writes it, ``DriverState`` has an entry for each driver with a result."""

    ClaimUID: str
    ClaimName: str
    Namespace: str
    PodUIDs: Mapping[str, Mapping[str, Any]] | None
    DriverState: Mapping[str, Mapping[str, Any]] | None


def encode_checkpoint(claims: Iterable[CheckpointClaim]) -> str:
    """Return the content of the file."""
    data = {"kind": _KIND, "apiVersion": _API_VERSION, "ClaimInfoStateList": list(claims) or None}
    text = json.dumps(data, separators=(",", ":"))
    return json.dumps({"Data": text, "Checksum": zlib.crc32(text.encode())})


def decode_checkpoint(content: bytes) -> list[CheckpointClaim]:
    """Return the claims of a file.

    Raises:
        ValueError: it is corrupt, or has another format.
    """
    try:
        outer = json.loads(content)
        text = outer["Data"]
        if zlib.crc32(text.encode()) != outer["Checksum"]:
            raise ValueError("checkpoint is corrupt: wrong checksum")
        data = json.loads(text)
        if data["apiVersion"] != _API_VERSION:
            raise ValueError(f"its format is {data['apiVersion']}, not {_API_VERSION}")
        return list(data["ClaimInfoStateList"] or ())
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def read_claim_pods(kubelet_dir: Path) -> dict[str, frozenset[str]]:
    """Return UIDs of the claims that the kubelet knows, and will release when their containers have exited.

    Returns:
        By claim, the UIDs of its pods with containers that have not exited.

    Raises:
        OSError: the file does not exist, or cannot be read from here.
        ValueError: it is corrupt, or has another format.
    """
    entries = decode_checkpoint((kubelet_dir / FILE_NAME).read_bytes())
    try:
        return {entry["ClaimUID"]: frozenset(entry.get("PodUIDs") or ()) for entry in entries}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def read_driver_claims(kubelet_dir: Path, driver: str) -> set[ClaimReference]:
    """Return claims that the kubelet will ask a driver to release: those with its entry in ``DriverState``.

    Raises:
        OSError: the file does not exist, or cannot be read from here.
        ValueError: it is corrupt, or has another format.
    """
    try:
        return {
            ClaimReference(entry["Namespace"], entry["ClaimName"], entry["ClaimUID"])
            for entry in decode_checkpoint((kubelet_dir / FILE_NAME).read_bytes())
            if driver in (entry.get("DriverState") or ())
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


class KubeletCheckpoint:
    """The current content of the checkpoint; reading it blocks as briefly as reading one small file."""

    def __init__(self, kubelet_dir: Path) -> None:
        self._kubelet_dir = kubelet_dir
        self._logged = ""

    def pods(self) -> Mapping[str, frozenset[str]]:
        """Return the result of :func:`read_claim_pods`; nothing if it cannot be read, which is logged."""
        return self._read(
            partial(read_claim_pods, self._kubelet_dir),
            {},
            "checkpoint of the kubelet not read, using the age of claims only",
        )

    def claims(self, driver: str) -> AbstractSet[ClaimReference]:
        """Return the result of :func:`read_driver_claims`; none if it cannot be read, which is logged."""
        return self._read(
            partial(read_driver_claims, self._kubelet_dir, driver),
            set(),
            "checkpoint of the kubelet not read, using the claims of the state only",
        )

    def _read(self, read: Callable[[], _T], otherwise: _T, message: str) -> _T:
        try:
            return read()
        except (OSError, ValueError) as error:
            if str(error) != self._logged:
                self._logged = str(error)
                logger.info(message, extra={"error": str(error)})
            return otherwise
