"""The folder of an MPS control daemon, with its sockets and logs."""

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import dra_kit as dra
from pydantic import BaseModel, ConfigDict

from gpu_driver.hardware import Hardware
from gpu_driver.settings import Settings

_LONGEST_PATH = 107
"""Bytes of a socket's path (sun_path of unix(7), without its NUL)."""
_LONGEST_NAME = "control_privileged"
_DIGITS = 12


def root_of(settings: Settings, hardware: Hardware) -> Path:
    """Return the folder of all daemons' folders."""
    return settings.mps_root or hardware.mps_root


def identity(claim_uid: str, entry: int, devices: Sequence[str]) -> str:
    """Return a short name for the daemon of an entry of a claim and the devices that it is for.

    Devices are part of it: a partition that is made anew gets another daemon beside the old one's remains.
    """
    text = "\n".join([claim_uid, str(entry), *devices])
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def is_name(name: str) -> bool:
    """Return whether a folder can be one of :func:`identity`'s."""
    return re.fullmatch(rf"[0-9a-f]{{{_DIGITS}}}", name) is not None


@contextmanager
def lock_folders(root: Path) -> Iterator[None]:
    """Let nobody else make or remove folders below ``root`` meanwhile, in whatever process.

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
        """``/dev/shm`` of a daemon in a pod, and of its clients."""
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
        longest = self.pipe / _LONGEST_NAME
        if len(bytes(longest)) > _LONGEST_PATH:
            raise dra.PermanentError(
                f"{longest} has {len(bytes(longest))} bytes, and the path of a socket has {_LONGEST_PATH} at most; "
                "set --mps-root (node.settings.mps_root of the chart) to a shorter one"
            )

    def make(self) -> None:
        """Make it, such that clients of every user reach the sockets; what is there stays.

        Raises:
            TransientError: it cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with lock_folders(self.path.parent):
                for part in (self.pipe, self.log, self.shm):
                    part.mkdir(parents=True, exist_ok=True)
            for folder in (self.path.parent, self.path, self.pipe, self.log):
                folder.chmod(0o755)
            self.shm.chmod(0o1777)
        except OSError as error:
            raise dra.TransientError(
                f"{self.path} cannot be made: {error.strerror}; let the driver write to --mps-root"
            ) from None

    def empty(self) -> None:
        """Remove the sockets and files of a daemon that was killed."""
        for left in self.pipe.glob("*"):
            left.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder; nothing to do where there is none."""
        shutil.rmtree(self.path, ignore_errors=True)


class MakeMpsFolder(dra.Effect[None], id="mps-folder"):
    """Make the folder of a daemon, and remove it when the daemon has gone."""

    folder: MpsFolder

    def keys(self) -> list[str]:
        return [f"mps/{self.folder.path.name}"]

    def title(self) -> str:
        return f"MPS folder {self.folder.path}"

    def apply(self, previous: None) -> None:
        self.folder.make()

    def holds(self, outcome: None) -> bool:
        return self.folder.pipe.is_dir() and self.folder.shm.is_dir()

    def revert(self, outcome: None) -> None:
        self.folder.remove()
