"""The kubelet's own memory of claims, ``dra_manager_state`` in its root directory.

Which claims the kubelet has to release still. The format is that of Kubernetes 1.37 (``pkg/kubelet/cm/dra/state``): the
claims as JSON text, and the text's CRC32. The file is the kubelet's, and it may change its form: a driver may let it
hold back what it would do otherwise, and nothing more.
"""

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


class DeviceEntry(TypedDict):
    """One prepared device of a claim."""

    PoolName: str
    DeviceName: str
    ShareID: str | None
    RequestNames: Sequence[str] | None
    CDIDeviceIDs: Sequence[str] | None


class ClaimEntry(TypedDict):
    """One claim; ``PodUIDs`` is a set as Go writes it, ``DriverState`` has an entry for each driver with a result."""

    ClaimUID: str
    ClaimName: str
    Namespace: str
    PodUIDs: Mapping[str, Mapping[str, Any]] | None
    DriverState: Mapping[str, Mapping[str, Any]] | None


def encode(claims: Iterable[ClaimEntry]) -> str:
    """Return the content of the file."""
    data = {"kind": _KIND, "apiVersion": _API_VERSION, "ClaimInfoStateList": list(claims) or None}
    text = json.dumps(data, separators=(",", ":"))
    return json.dumps({"Data": text, "Checksum": zlib.crc32(text.encode())})


def decode(content: bytes) -> list[ClaimEntry]:
    """Return the claims of a file.

    Raises:
        ValueError: it is damaged, or of another form.
    """
    try:
        outer = json.loads(content)
        text = outer["Data"]
        if zlib.crc32(text.encode()) != outer["Checksum"]:
            raise ValueError("checkpoint is corrupted")
        data = json.loads(text)
        if data["apiVersion"] != _API_VERSION:
            raise ValueError(f"its form is {data['apiVersion']}, not {_API_VERSION}")
        return list(data["ClaimInfoStateList"] or ())
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def pods_of_kubelet(kubelet_dir: Path) -> dict[str, frozenset[str]]:
    """Return UIDs of the claims that the kubelet knows of, and will release when their containers have ended.

    Args:
        kubelet_dir: the kubelet's root directory.

    Returns:
        By claim, the UIDs of its pods whose containers have not all ended.

    Raises:
        OSError: the file is not there, or cannot be read from here.
        ValueError: it is damaged, or of another form.
    """
    entries = decode((kubelet_dir / FILE_NAME).read_bytes())
    try:
        return {entry["ClaimUID"]: frozenset(entry.get("PodUIDs") or ()) for entry in entries}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def claims_of_kubelet(kubelet_dir: Path, driver: str) -> set[ClaimReference]:
    """Return claims that the kubelet will ask a driver to release: those with an entry of it in ``DriverState``.

    Args:
        kubelet_dir: the kubelet's root directory.
        driver: its name.

    Raises:
        OSError: the file is not there, or cannot be read from here.
        ValueError: it is damaged, or of another form.
    """
    try:
        return {
            ClaimReference(entry["Namespace"], entry["ClaimName"], entry["ClaimUID"])
            for entry in decode((kubelet_dir / FILE_NAME).read_bytes())
            if driver in (entry.get("DriverState") or ())
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


class KubeletCheckpoint:
    """What can be read of it now; reading blocks for the moment of one small file.

    Args:
        kubelet_dir: the kubelet's root directory.
    """

    def __init__(self, kubelet_dir: Path) -> None:
        self._kubelet_dir = kubelet_dir
        self._logged = ""

    def pods(self) -> Mapping[str, frozenset[str]]:
        """Return what :func:`pods_of_kubelet` returns; nothing where it cannot be read, which is logged."""
        return self._read(
            partial(pods_of_kubelet, self._kubelet_dir), {}, "checkpoint of the kubelet not read, time alone decides"
        )

    def claims(self, driver: str) -> AbstractSet[ClaimReference]:
        """Return what :func:`claims_of_kubelet` returns; none where it cannot be read, which is logged."""
        return self._read(
            partial(claims_of_kubelet, self._kubelet_dir, driver),
            set(),
            "checkpoint of the kubelet not read, the state alone tells",
        )

    def _read(self, read: Callable[[], _T], otherwise: _T, message: str) -> _T:
        try:
            return read()
        except (OSError, ValueError) as error:
            if str(error) != self._logged:
                self._logged = str(error)
                logger.info(message, extra={"error": str(error)})
            return otherwise
