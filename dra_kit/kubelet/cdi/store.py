"""The CDI spec files of one driver on one node, a file per claim, and their names."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import threading
from collections.abc import Collection
from itertools import count
from pathlib import Path
from urllib.parse import quote, unquote

from dra_kit.errors import ConfigurationError, PermanentError, StoreError
from dra_kit.kubelet.cdi.spec import Spec, load_errors, valid_vendor

_ATTEMPTS = 5
_REMEDIES = {
    errno.ENOSPC: "free space on that file system",
    errno.EDQUOT: "raise the quota of that file system",
    errno.EROFS: "mount the directory writable",
    errno.EACCES: "let the driver's user write there",
    errno.EPERM: "let the driver's user write there",
    errno.ENOTDIR: "let the setting name a directory",
}
_Signature = tuple[int, int, int]


class SpecStore:
    """Writes, reads and removes a driver's spec files. The methods block; they may be called from several threads.

    Two processes of a driver may use one directory, as they do during a rolling update. Other files in the directory
    are never touched.

    Args:
        directory: where runtimes look for generated specs, usually ``/var/run/cdi``; created if it is missing.

    Raises:
        ConfigurationError: the name cannot be part of a CDI kind.
    """

    def __init__(self, directory: Path, driver: str) -> None:
        vendor = claim_kind(driver).rpartition("/")[0]
        if not valid_vendor(vendor) or "_" in driver:
            raise ConfigurationError(
                f"driver name {driver!r} gives no CDI vendor: use a DNS subdomain such as gpu.example.com"
            )
        self.directory = directory
        self.driver = driver
        self._lock = threading.Lock()
        self._written: dict[str, _Signature] = {}
        self._directory = str(directory)
        self._token = secrets.token_hex(4)  # distinguishes the temporary files of two processes
        self._number = count()

    def require_writable(self) -> None:
        """Check that files can be written, and create the directory if it is missing; nothing else is changed.

        Raises:
            ConfigurationError: naming the directory, the cause and the remedy.
        """
        try:
            self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            if os.access(self.directory, os.W_OK | os.X_OK, effective_ids=True):
                return
            read_only = os.statvfs(self.directory).f_flag & os.ST_RDONLY
            cause = OSError(code := errno.EROFS if read_only else errno.EACCES, os.strerror(code))
        except FileExistsError:
            cause = OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        except OSError as error:
            cause = error
        if cause.errno in {errno.ENOSPC, errno.EDQUOT}:
            return  # not a configuration problem: reported for each claim until there is space
        text = _store_error(f"CDI directory {self.directory} cannot be written", cause).message
        raise ConfigurationError(f"{text}, or give another one (--cdi-dir)")

    def path(self, claim_uid: str) -> Path:
        """Return the file of a claim's spec, whether it exists or not."""
        return self.directory / spec_file_name(self.driver, claim_uid)

    def write(self, claim_uid: str, spec: Spec) -> None:
        """Write ``spec`` as the claim's spec; a runtime sees either the old file or the new one.

        A file that already has this content is not rewritten, so that runtimes need not load it again. The content is
        not validated here: the caller must call ``validate`` before it stores a claim's record with the spec.

        Raises:
            PermanentError: the UID cannot be part of a file name (code ``invalid-claim-uid``); nothing is written.
            StoreError: the file cannot be written; the previous file is still there, and no other.
        """
        name = spec_file_name(self.driver, claim_uid)
        path = f"{self._directory}/{name}"
        content = spec.to_json().encode()
        try:
            with self._lock:
                signature = _same(path, content) or self._replace(name, content)
                self._written[claim_uid] = signature
        except OSError as error:
            raise _store_error(f"CDI spec file {path} of claim {claim_uid} cannot be written", error) from error

    def intact(self, claim_uid: str) -> bool:
        """Return whether the file is the last one that this store wrote, by its attributes; it is not read."""
        try:
            found = os.stat(f"{self._directory}/{spec_file_name(self.driver, claim_uid)}")  # noqa: PTH116 - with each call
        except OSError:
            return False
        return self._written.get(claim_uid) == _signature(found)

    def _replace(self, name: str, content: bytes) -> _Signature:
        for attempt in range(1, _ATTEMPTS + 1):
            # Renamed inside the directory, because runtimes watch it: older ones ignore the event of a file linked in
            # from elsewhere.
            token = f"{self._token}-{next(self._number)}"
            temporary = f"{self._directory}/{temporary_file_name(name, token)}"
            try:
                signature = _write_new(temporary, content)
                os.replace(temporary, f"{self._directory}/{name}")  # noqa: PTH105 - with each claim
            except BaseException as error:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)  # noqa: PTH108 - as above
                # the directory was deleted, or another process removed the temporary file
                if not isinstance(error, FileNotFoundError) or attempt == _ATTEMPTS:
                    raise
                self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            else:
                return signature
        raise AssertionError  # the last attempt returns or raises

    def read(self, claim_uid: str) -> Spec | None:
        """Return the claim's spec; None if the file is missing or a runtime would reject it.

        Raises:
            PermanentError: the UID cannot be part of a file name.
            StoreError: the file exists but cannot be read.
        """
        path = self.path(claim_uid)
        try:
            content = _content(path)
        except OSError as error:
            raise _store_error(f"CDI spec file {path} of claim {claim_uid} cannot be read", error) from error
        if content is None:
            return None
        try:
            spec = Spec.from_json(content)
        except ValueError:
            return None
        return None if load_errors(spec) else spec

    def remove(self, claim_uid: str) -> None:
        """Remove the claim's spec file; it may be missing.

        Raises:
            PermanentError: the UID cannot be part of a file name.
            StoreError: the file exists but cannot be removed.
        """
        self._written.pop(claim_uid, None)
        path = f"{self._directory}/{spec_file_name(self.driver, claim_uid)}"
        try:
            with self._lock:
                os.unlink(path)  # noqa: PTH108 - with each claim
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise _store_error(f"CDI spec file {path} of claim {claim_uid} cannot be removed", error) from error

    def exists(self, claim_uid: str) -> bool:
        """Return whether the claim has a spec file, which may be corrupt.

        Raises:
            PermanentError: the UID cannot be part of a file name.
        """
        return os.path.lexists(self.path(claim_uid))

    def uids(self) -> set[str]:
        """Return the UIDs of all claims that have a spec file, including corrupt files.

        Raises:
            StoreError: the directory exists but cannot be read.
        """
        found = (claim_uid_of(self.driver, name) for name in self._file_names())
        return {uid for uid in found if uid is not None}

    def sweep(self, keep: Collection[str] | None) -> list[Path]:
        """Remove this driver's spec files of claims not in ``keep``, and temporary files left by a crash.

        A claim prepared after ``keep`` was determined loses its file: call this while no claim is being prepared,
        or with None, which retains all spec files.

        Returns:
            The removed files.

        Raises:
            StoreError: the directory cannot be read, or some files cannot be removed; the others are.
        """
        removed: list[Path] = []
        failures: list[tuple[Path, OSError]] = []
        with self._lock:
            for name in sorted(self._file_names()):
                if not self._is_orphan(name, keep):
                    continue
                path = self.directory / name
                try:
                    path.unlink()
                    removed.append(path)
                except FileNotFoundError:
                    pass  # another process was quicker
                except OSError as error:
                    failures.append((path, error))
        if failures:
            first, cause = failures[0]
            raise _store_error(f"{len(failures)} orphaned CDI files cannot be removed, first {first}", cause) from cause
        return removed

    def _is_orphan(self, file_name: str, keep: Collection[str] | None) -> bool:
        if is_temporary_file(self.driver, file_name):
            return True
        if keep is None:
            return False
        uid = claim_uid_of(self.driver, file_name)
        return uid is not None and uid not in keep

    def _file_names(self) -> list[str]:
        try:
            with os.scandir(self.directory) as entries:
                return [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _store_error(f"CDI directory {self.directory} cannot be read", error) from error


def _content(path: str | Path) -> bytes | None:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - with each claim
            return file.readall()
    except FileNotFoundError:
        return None


def _same(path: str, content: bytes) -> _Signature | None:
    """Return the signature of a file with exactly this content; None if there is none."""
    return _signature(os.stat(path)) if _content(path) == content else None  # noqa: PTH116 - with each claim


def _signature(status: os.stat_result) -> _Signature:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _write_new(path: str, content: bytes) -> _Signature:
    # only root and the driver may read it: environment variables can contain secrets
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        return _signature(os.fstat(descriptor))
    finally:
        os.close(descriptor)


def _store_error(what: str, error: OSError) -> StoreError:
    cause = error.strerror or type(error).__name__
    remedy = _REMEDIES.get(error.errno or 0, "check the directory and its file system")
    return StoreError(f"{what}: {cause}; {remedy}")


CLAIM_CLASS = "claim"
"""CDI class of the devices created for a claim."""
# leaves room for the affixes of a temporary file within the 255 bytes of a file name
_FILE_NAME_LIMIT = 240


def claim_kind(driver: str) -> str:
    """Return the CDI kind of the devices that a driver creates for claims.

    The prefix turns every valid driver name into a valid vendor: driver names may start with a digit, vendors may not.
    Case is preserved, because Kubernetes driver names are case-sensitive.
    """
    return f"k8s.{driver}/{CLAIM_CLASS}"


def claim_device_name(claim_uid: str, *, request: str, pool: str, device: str, share_id: str = "") -> str:
    """Return the CDI name of one allocation result, unique among all results of all claims of a driver.

    Runtimes may cache the edits of a name, so a name must never be reused for something else. The claim's UID comes
    first, and the request distinguishes an admin's access to a device from its allocation in the same claim.
    ``request`` may be ``request/subrequest`` and ``pool`` several DNS subdomains with slashes between them.
    """
    parts = [claim_uid, request, pool, device]
    if share_id:
        parts.append(share_id)
    # none of the parts contains ':' or '_' in the resource.k8s.io API
    return ":".join(parts).replace("/", "_")


def _prefix(driver: str) -> str:
    # driver names contain no '_', so the first one ends the driver's part and no driver's prefix starts another's
    return f"k8s.{driver}-{CLAIM_CLASS}_"


def _encode(driver: str, claim_uid: str) -> str:
    return f"{_prefix(driver)}{quote(claim_uid, safe='', errors='surrogatepass')}.json"


def spec_file_name(driver: str, claim_uid: str) -> str:
    """Return the file name of a claim's spec: unique, and safe as a file name for any UID.

    Raises:
        PermanentError: the UID is empty or too long for a file name, with code ``invalid-claim-uid``. The UIDs of an
            API server are 36 characters.
    """
    name = _encode(driver, claim_uid)
    if not claim_uid or len(name) > _FILE_NAME_LIMIT:
        raise PermanentError(
            f"claim UID {claim_uid[:64]!r} ({len(claim_uid)} characters) cannot be part of a CDI file name: "
            f"it must have at least one character and the name {name[:64]}... at most {_FILE_NAME_LIMIT}",
            code="invalid-claim-uid",
        )
    return name


def claim_uid_of(driver: str, file_name: str) -> str | None:
    """Return the claim UID of a spec file of this driver; None for any other file name."""
    prefix = _prefix(driver)
    if not (file_name.startswith(prefix) and file_name.endswith(".json")):
        return None
    try:
        uid = unquote(file_name[len(prefix) : -len(".json")], errors="surrogatepass")
    except UnicodeDecodeError:
        return None
    # another spelling of the same UID is a foreign file
    return uid if uid and _encode(driver, uid) == file_name else None


def temporary_file_name(spec_file: str, token: str) -> str:
    """Return a name for a temporary file next to the spec file; runtimes ignore it: they load .json and .yaml."""
    return f".{spec_file}.{token}.tmp"


def is_temporary_file(driver: str, file_name: str) -> bool:
    """Return whether a file name is one of this driver's ``temporary_file_name``."""
    return file_name.startswith(f".{_prefix(driver)}") and file_name.endswith(".tmp")
