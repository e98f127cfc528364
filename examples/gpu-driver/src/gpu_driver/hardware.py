"""``Hardware``: the node's handle to its GPUs, what effects, provider, preparer and health source share."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import dra_kit as dra

from gpu_driver.host.driver_root import behind
from gpu_driver.host.pci import PciBus, SysfsBus
from gpu_driver.journal import Journal
from gpu_driver.nvml.backend import NvmlBackend
from gpu_driver.nvml.errors import LOST, NvmlError

_SLOW = 20.0
"""Timeout of NVIDIA's programs in seconds; they initialize the GPU if no process has it open."""


@dataclass(frozen=True)
class Hardware:
    """One per node; two nodes in one process never share it.

    Attributes:
        nvml: NVIDIA's library, or the fake.
        host: root of the host's file system as this process sees it: ``/`` on a host, ``/host`` in the DaemonSet's
            container, a folder of the fake's with ``sys``, ``proc`` and ``dev`` in tests and with ``--fake-gpus``.
        programs: folders in which ``nvidia-smi``, ``nvidia-cuda-mps-control`` and ``nvidia-ctk`` are looked for, first
            to last; the doubles' folder with the fake, below the driver root otherwise.
        mps_root: folder of the sockets of MPS, where the settings name none.
        environment: variables for those programs, beside the process's own.
        journal: of what is being made on the GPUs, in the driver's state.
        fake: whether this is a fake; never mixed with real programs.
        bus: the fake's; None: the kernel's.
    """

    nvml: NvmlBackend
    host: Path
    programs: tuple[Path, ...]
    journal: Journal
    mps_root: Path = Path("/run/gpu.nvidia.com/mps")
    environment: Mapping[str, str] = field(default_factory=dict)
    fake: bool = False
    bus: PciBus | None = None

    @property
    def pci(self) -> PciBus:
        """What gives GPUs to kernel drivers."""
        return self.bus or SysfsBus(self.host)

    def is_lost(self, uuid: str) -> bool:
        """Whether a GPU has fallen off the bus, or NVML does not list it: nothing of it can be changed, and if it comes
        back, then by a reset, a reboot or a new binding, which takes all that was changed on it along.
        """
        try:
            self.nvml.recovery_action(uuid)
        except NvmlError as error:
            return error.code in LOST
        return False

    def program(self, name: str) -> str | None:
        """Return the path of one of NVIDIA's programs; None where it is not installed."""
        paths = [behind(folder / name, self.host) for folder in self.programs]
        return next((str(path) for path in paths if shutil.which(path)), None)

    def needed(self, name: str) -> str:
        """Return the path of one of NVIDIA's programs, which must be installed.

        Raises:
            TransientError: it is not installed.
        """
        found = self.program(name)
        if found is None:
            places = ", ".join(map(str, self.programs))
            raise dra.TransientError(f"{name} is in none of {places}; set --driver-root to where NVIDIA's driver is")
        return found

    def run(self, name: str, *arguments: str) -> str:
        """Run a program and return what it prints; blocks.

        Raises:
            TransientError: it is not there, takes too long, or fails, with the last line that it wrote.
        """
        program = self.needed(name)
        command = f"{name} {' '.join(arguments)}"
        try:
            done = subprocess.run(
                [program, *arguments],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SLOW,
                check=False,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise dra.TransientError(f"{command} does not end in {_SLOW:.0f} s; see whether the GPU hangs") from None
        except OSError as error:
            raise dra.TransientError(f"{command} cannot be run: {error.strerror}") from None
        if done.returncode:
            last = (done.stderr + done.stdout).strip().splitlines()[-1:] or ["it wrote nothing"]
            raise ProgramError(f"{command} failed with exit code {done.returncode}: {last[0]}")
        return done.stdout


class ProgramError(dra.TransientError):
    """A program of NVIDIA's ended with an error."""
