"""Device metadata (KEP-5304, Kubernetes 1.37): facts about its devices that a container reads from a file."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import quote, unquote

from dra_kit.author.device import attributes_v1
from dra_kit.author.prepared import DeviceMetadata, Mount, Prepared
from dra_kit.errors import PermanentError, StoreError
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.config import base_request
from dra_kit.kubernetes.resource.names import dns_label, dns_subdomain
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.state.records import ClaimRecord

API_VERSION: Final = "metadata.resource.k8s.io/v1beta1"
_PREFIX: Final = "claim-"
IN_CONTAINER: Final = PurePosixPath("/var/run/kubernetes.io/dra-device-attributes")


class MetadataFiles:
    """The metadata files of one driver; ``directory`` has the same path for this process and the container runtime.

    The methods raise a StoreError if it cannot be read or written.
    """

    def __init__(self, directory: Path, driver: str) -> None:
        self._directory = directory
        self._driver = driver

    def mounts(
        self,
        claim: ClaimReference,
        pod_claim_name: str | None,
        items: Sequence[tuple[v1.DeviceRequestAllocationResult, Prepared]],
    ) -> list[Mount | None]:
        """Return the mounts of each device: the file of a request is mounted by the first device of that request.

        Raises:
            PermanentError: a name cannot be part of a path; the API server accepts no such name.
        """
        wanted = {base_request(result.request) for result, prepared in items if prepared.metadata is not None}
        mounts: list[Mount | None] = []
        for result, _ in items:
            request = base_request(result.request)
            if request not in wanted:
                mounts.append(None)
                continue
            wanted.remove(request)
            if dns_label(request) or dns_subdomain(claim.name) or (pod_claim_name and dns_label(pod_claim_name)):
                raise PermanentError(
                    f"claim {claim}, request {request!r}: its device metadata cannot be mounted: a name is not "
                    "valid in the Kubernetes API; create the claim again"
                )
            origin = ("resourceclaimtemplates", pod_claim_name) if pod_claim_name else ("resourceclaims", claim.name)
            inside = IN_CONTAINER.joinpath(*origin, request, f"{self._driver}-metadata.json")
            mounts.append(
                Mount(
                    host_path=str(self._file(claim.uid, request)),
                    container_path=str(inside),
                    options=["ro", "bind"],
                )
            )
        return mounts

    def write(self, record: ClaimRecord) -> None:
        """Write the files of a claim; new content gets a higher generation and is visible to running containers."""
        requests = {device.request for device in record.devices if device.metadata is not None}
        try:
            for request in sorted(requests):
                _write(self._file(record.uid, request), self._document(record, request))
        except OSError as error:
            raise StoreError(
                f"device metadata of claim {record.reference} cannot be written below {self._directory}: "
                f"{error.strerror or error}; check that the disk is writable and not full (--state-dir)"
            ) from error

    def intact(self, record: ClaimRecord) -> bool:
        """Return whether every file exists."""
        return all(
            self._file(record.uid, device.request).exists() for device in record.devices if device.metadata is not None
        )

    def remove(self, uid: str) -> None:
        """Remove the files of a claim, if any."""
        try:
            shutil.rmtree(self._folder(uid))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StoreError(
                f"device metadata {self._folder(uid)} cannot be removed: {error.strerror or error}; check that the "
                "disk is writable (--state-dir)"
            ) from error

    def exists(self, uid: str) -> bool:
        """Return whether the claim has files."""
        return os.path.lexists(self._folder(uid))

    def uids(self) -> set[str]:
        """Return the UIDs of the claims that have files."""
        try:
            names = [item.name for item in self._directory.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return set()
        except OSError as error:
            raise StoreError(
                f"device metadata directory {self._directory} cannot be read: {error.strerror or error}; check its "
                "file system (--state-dir)"
            ) from error
        return {unquote(name.removeprefix(_PREFIX)) for name in names if name.startswith(_PREFIX)}

    def _folder(self, uid: str) -> str:
        # any UID becomes a single name that is neither "." nor ".."
        return f"{self._directory}/{_PREFIX}{quote(uid, safe='')}"

    def _file(self, uid: str, request: str) -> Path:
        return Path(self._folder(uid), request, "metadata.json")

    def _document(self, record: ClaimRecord, request: str) -> str:
        identity = {
            "name": record.name,
            "namespace": record.namespace,
            "uid": record.uid,
            "generation": record.metadata_generation,
        }
        devices = [
            {"driver": self._driver, "pool": device.pool, "name": device.device, **(device.metadata or {})}
            for device in record.devices
            if device.request == request
        ]
        document: dict[str, Any] = {"kind": "DeviceMetadata", "apiVersion": API_VERSION, "metadata": identity}
        if record.pod_claim_name:
            document["podClaimName"] = record.pod_claim_name
        document["requests"] = [{"name": request, "devices": devices}]
        return json.dumps(document, indent=2) + "\n"


def metadata_json(metadata: DeviceMetadata | None) -> dict[str, Any] | None:
    """Return metadata in the form in which it is stored and written."""
    if metadata is None:
        return None
    result: dict[str, Any] = {"attributes": attributes_v1(metadata.attributes)} if metadata.attributes else {}
    if metadata.network_data is not None:
        result["networkData"] = network_json(metadata.network_data.model_dump())
    return result


def network_json(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return network data in the API's form."""
    names = {"interface_name": "interfaceName", "ips": "ips", "hardware_address": "hardwareAddress"}
    return {names[key]: list(value) if key == "ips" else value for key, value in data.items() if value}


def _write(path: Path, text: str) -> None:
    """Write a file, in place if it exists: containers have it mounted and would not see a replacement.

    The whole document is written with a single call, padded with blanks to the length of the former one, so that a
    reader finds valid JSON before and after.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.ELOOP}:  # ELOOP: the path is a symbolic link
            raise
        _create(path, text)
        return
    try:
        content = text.encode().ljust(os.fstat(descriptor).st_size)
        if os.pread(descriptor, len(content), 0) == content:
            return
        if os.pwrite(descriptor, content, 0) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)


def _create(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    # one name is enough: only the holder of the claim's lock writes it, over any leftover of a killed process
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    temporary.chmod(0o644)
    temporary.replace(path)
