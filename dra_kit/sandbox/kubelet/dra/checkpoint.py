"""The kubelet's memory of claims that outlives it: ``dra_manager_state`` in its root directory, in its format.

The format is that of Kubernetes 1.37 (``pkg/kubelet/cm/dra/state``): the claims as JSON text, and the text's CRC32.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_kit.errors import KubeletError
from dra_kit.resource.reference import ClaimReference
from dra_kit.sandbox.kubelet.dra.plugin import Device

FILE_NAME = "dra_manager_state"


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
        """What was stored last; nothing without a file.

        Raises:
            KubeletError: the file is damaged. A kubelet does not start over it: it would forget claims to release.
        """
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return []
        try:
            return [_claim_info(entry) for entry in json.loads(_verified(content))["ClaimInfoStateList"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise KubeletError(
                f"error loading DRA manager state from {self._path}: {error}; remove the file once no pod of the node "
                "uses a claim"
            ) from error

    def store(self, claims: Iterable[ClaimInfo]) -> None:
        """Replaces the file.

        Raises:
            KubeletError: it cannot be written.
        """
        data = {
            "kind": "DRACheckpoint",
            "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
            "ClaimInfoStateList": [_entry(info) for info in claims],
        }
        text = json.dumps(data, separators=(",", ":"))
        temporary = self._path.with_name(f".{FILE_NAME}.new")
        try:
            temporary.write_text(json.dumps({"Data": text, "Checksum": zlib.crc32(text.encode())}))
            temporary.replace(self._path)
        except OSError as error:
            raise KubeletError(f"checkpoint ResourceClaim state: {self._path}: {error.strerror}") from error


def _verified(content: bytes) -> str:
    outer = json.loads(content)
    text: str = outer["Data"]
    if zlib.crc32(text.encode()) != outer["Checksum"]:
        raise ValueError("checkpoint is corrupted")
    return text


def _entry(info: ClaimInfo) -> dict[str, Any]:
    return {
        "ClaimUID": info.claim.uid,
        "ClaimName": info.claim.name,
        "Namespace": info.claim.namespace,
        "PodUIDs": sorted(info.pods),
        "DriverState": {
            driver: {
                "Devices": [
                    {
                        "PoolName": device.pool_name,
                        "DeviceName": device.device_name,
                        "ShareID": device.share_id,
                        "RequestNames": list(device.request_names),
                        "CDIDeviceIDs": list(device.cdi_device_ids),
                    }
                    for device in devices
                ],
                **({"skipNodeOperations": list(info.skipped[driver])} if driver in info.skipped else {}),
            }
            for driver, devices in info.drivers.items()
        },
    }


def _claim_info(entry: Mapping[str, Any]) -> ClaimInfo:
    return ClaimInfo(
        claim=ClaimReference(entry["Namespace"], entry["ClaimName"], entry["ClaimUID"]),
        pods=set(entry["PodUIDs"]),
        drivers={
            driver: tuple(
                Device(
                    request_names=tuple(device["RequestNames"]),
                    pool_name=device["PoolName"],
                    device_name=device["DeviceName"],
                    cdi_device_ids=tuple(device["CDIDeviceIDs"]),
                    share_id=device["ShareID"],
                )
                for device in state["Devices"]
            )
            for driver, state in entry["DriverState"].items()
        },
        skipped={
            driver: tuple(state["skipNodeOperations"])
            for driver, state in entry["DriverState"].items()
            if "skipNodeOperations" in state
        },
    )
