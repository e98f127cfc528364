"""The kubelet's memory of claims that outlives it: ``dra_manager_state`` in its root directory, in its format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dra_kit.errors import KubeletError
from dra_kit.kubelet.checkpoint import (
    FILE_NAME,
    CheckpointClaim,
    CheckpointDevice,
    decode_checkpoint,
    encode_checkpoint,
)
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.sandbox.cluster.kubelet.dra.plugin import Device


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
    drivers: dict[str, tuple[Device, ...]]
    skipped: dict[str, tuple[str, ...]] = field(default_factory=dict)
    prepared: bool = field(default=False, compare=False)
    releasing: bool = field(default=False, compare=False)


class Checkpoint:
    """The file; its methods block for the moment of one small write or read.

    Args:
        directory: the kubelet's root directory.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME

    def load(self) -> list[ClaimInfo]:
        """Load what was stored last; nothing without a file.

        Raises:
            KubeletError: the file is damaged. A kubelet does not start over it: it would forget claims to release.
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


def _device_entry(device: Device) -> CheckpointDevice:
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


def _device(entry: CheckpointDevice) -> Device:
    return Device(
        request_names=tuple(entry["RequestNames"] or ()),
        pool_name=entry["PoolName"],
        device_name=entry["DeviceName"],
        cdi_device_ids=tuple(entry["CDIDeviceIDs"] or ()),
        share_id=entry["ShareID"],
    )
