"""The folder of an MPS control daemon, with its sockets, its logs, and the memory that it shares with its clients."""

import errno
import fcntl
import hashlib
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import dra_kit as dra
from pydantic import BaseModel, ConfigDict

from gpu_driver.effects.mps.control import SOCKETS
from gpu_driver.hardware import Hardware
from gpu_driver.host import folders
from gpu_driver.settings import DEFAULT_SHM_SIZE, Settings

log = logging.getLogger(__name__)

_OWN_SIZE = 16 * 2**20
"""Bytes for sockets and logs: a daemon of driver 580 leaves some KiB in a day of claims that come and go."""
_LONGEST_PATH = 107
"""Bytes of a socket's path (sun_path of unix(7), without its NUL)."""
_DIGITS = 12


def root_of(settings: Settings, hardware: Hardware) -> Path:
    """Return the folder of all daemons' folders."""
    return settings.mps_root or hardware.mps_root


def identity(claim_uid: str, entry: int, devices: Sequence[str]) -> str:
    """Return a short name for the daemon of an entry of a claim and the devices that it is for.

    Devices are part of it: a partition that is created again gets another daemon, next to the old one's leftovers.
    """
    text = "\n".join([claim_uid, str(entry), *devices])
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def is_name(name: str) -> bool:
    """Return whether a folder can be one of :func:`identity`'s."""
    return re.fullmatch(rf"[0-9a-f]{{{_DIGITS}}}", name) is not None


@contextmanager
def lock_folders(root: Path) -> Iterator[None]:
    """Lock ``root``: no other process creates or removes folders below it meanwhile.

    Raises:
        OSError: it cannot be opened.
    """
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


class MpsFolder(BaseModel):
    """The folder of one daemon, at the same path on the host, in the daemon's container and in its clients'."""

    model_config = ConfigDict(frozen=True)

    path: Path

    @property
    def pipe(self) -> Path:
        """Where the sockets are: ``CUDA_MPS_PIPE_DIRECTORY``."""
        return self.path / "pipe"

    @property
    def log(self) -> Path:
        """Where the daemon writes its log: ``CUDA_MPS_LOG_DIRECTORY``."""
        return self.path / "log"

    @property
    def shm(self) -> Path:
        """``/dev/shm`` of the daemon and of its clients."""
        return self.path / "shm"

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables by which NVIDIA's programs find it."""
        return {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(self.log)}

    def check(self) -> None:
        """Refuse a path that is too long for a client to connect.

        Raises:
            PermanentError: the sockets' paths are too long.
        """
        longest = self.pipe / max(SOCKETS, key=len)
        if len(bytes(longest)) > _LONGEST_PATH:
            raise dra.PermanentError(
                f"{longest} has {len(bytes(longest))} bytes, and the path of a socket has {_LONGEST_PATH} at most; "
                "set --mps-root (node.settings.mps_root of the chart) to a shorter one"
            )

    def make(self) -> None:
        """Make it, such that clients of every user reach the sockets; what is there stays.

        Raises:
            OSError: it cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with lock_folders(self.path.parent):
            for part in (self.pipe, self.log, self.shm):
                part.mkdir(parents=True, exist_ok=True)
        for folder in (self.path.parent, self.path, self.pipe, self.log):
            folder.chmod(0o755)
        self.shm.chmod(0o1777)

    def make_with_size(self, size: int) -> None:
        """Make it of two file systems in memory: one for sockets and logs, one for what daemon and clients share.

        Clients that fill theirs take nothing from the daemon, and neither takes anything from the host's ``/run``.

        Args:
            size: of the shared memory, in bytes.

        Raises:
            OSError: it cannot be made; ``PermissionError`` without the right to mount.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with lock_folders(self.path.parent):
            self.path.mkdir(exist_ok=True)
        # no link that a container puts between the sockets leads the daemon, or the driver, anywhere
        folders.mount_memory(self.path, _OWN_SIZE, follow_links=False)
        self.shm.mkdir(exist_ok=True)
        folders.mount_memory(self.shm, size)
        self.make()

    @property
    def has_shared_memory(self) -> bool:
        """Whether a file system of its own is mounted for what daemon and clients share."""
        return os.path.ismount(self.shm)

    def is_complete(self) -> bool:
        """Return whether all of it is there."""
        return self.pipe.is_dir() and self.log.is_dir() and self.shm.is_dir()

    def empty(self) -> None:
        """Remove the sockets and files of a daemon that was killed.

        A daemon that finds something in their place does not come up, and says so.
        """
        try:
            left = folders.empty(self.pipe)
        except OSError as error:
            if self.pipe.exists():
                log.warning("MPS folder %s cannot be emptied: %s", self.pipe, error.strerror)
            return
        if left:
            log.warning("MPS folder %s: %d entries cannot be removed, such as %.64r", self.pipe, len(left), left[0])

    def remove(self) -> None:
        """Remove the folder; nothing to do where there is none.

        What is in a file system of its own goes with that, whatever it is. Where it has none, what cannot be removed is
        logged and stays: a claim is released all the same.
        """
        try:
            folders.remove(self.path)
        except OSError as error:
            log.warning("MPS folder %s cannot be removed: %s", self.path, error.strerror)


class MakeMpsFolder(dra.Effect[None, Hardware], id="mps-folder"):
    """Make the folder of a daemon, and remove it when the daemon has gone.

    A folder that is complete stays as it is: that of a claim which an older release has prepared is a plain one until
    the claim is released.

    Attributes:
        folder: of the daemon.
        size: of the memory that daemon and clients share, in bytes; 0 for a plain folder.
        unlimited: a plain folder will do where this process may not mount file systems, as with fake GPUs.
    """

    folder: MpsFolder
    size: int = DEFAULT_SHM_SIZE
    unlimited: bool = False

    def keys(self) -> list[str]:
        return [f"mps/{self.folder.path.name}"]

    def title(self) -> str:
        return f"MPS folder {self.folder.path}"

    def apply(self, previous: None) -> None:
        if self.folder.is_complete():
            return
        try:
            if self.size:
                self._make_with_size()
            else:
                self.folder.make()
        except OSError as error:
            raise dra.TransientError(
                f"{self.folder.path} cannot be made: {error.strerror}; let the driver write to --mps-root"
            ) from None

    def _make_with_size(self) -> None:
        try:
            self.folder.make_with_size(self.size)
        except PermissionError as error:
            if error.errno != errno.EPERM:  # it may not even make a folder there
                raise
            if not (self.unlimited or self.hardware.fake):
                raise dra.PermanentError(
                    f"{self.folder.path} cannot be made: the driver may not mount file systems, and without one of its "
                    "own a claim can fill the node's /run; run the driver as root (in a container: privileged), or "
                    "set --mps-unlimited (node.settings.mps_unlimited of the chart)"
                ) from None
            log.warning(
                "MPS folder %s is a plain one: the driver may not mount file systems. Nothing limits what its claim "
                "writes there",
                self.folder.path,
            )
            self.folder.make()

    def holds(self, outcome: None) -> bool:
        return self.folder.is_complete()

    def revert(self, outcome: None) -> None:
        self.folder.remove()
