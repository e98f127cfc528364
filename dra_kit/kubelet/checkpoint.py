"""The kubelet's checkpoint of claims, ``dra_manager_state`` in its root directory."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import Any, Final, TypedDict, TypeVar

from dra_kit.kubernetes.resource.objects import ClaimReference

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
