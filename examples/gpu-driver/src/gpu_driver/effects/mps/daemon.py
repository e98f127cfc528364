"""``MpsDaemon``: the MPS control daemon of a group of devices, as a program beside the driver."""

import logging
import re

import dra_kit as dra

from gpu_driver.effects.mps.control import PROGRAM, QUIT, MpsControl, MpsError
from gpu_driver.effects.mps.limits import Limits
from gpu_driver.effects.mps.paths import MpsFolder
from gpu_driver.hardware import Hardware

_CHATTER = re.compile(r"\] (Accepting connection\.\.\.|NEW UI|UI closed|Cmd:get_\w+( \S+)?|[\d.]+[MG]?)$")
"""What it writes whenever it is asked something."""
_WITH_SHM = 'mount --bind "$0" /dev/shm && exec "$@"'
"""For a shell in a mount namespace of its own: the daemon replaces it, and has another /dev/shm."""


class MpsDaemon(dra.ChildProcess[Hardware], id="mps-daemon"):
    """Run ``nvidia-cuda-mps-control`` for the devices that one entry of a claim's config is for.

    Its ``/dev/shm`` is the folder's, as its clients' is. It is ready when it answers and its clients' limits are read
    back from it. One that hangs is started again.

    Attributes:
        devices: UUIDs in the order of ``CUDA_VISIBLE_DEVICES``: GPUs, or one partition.
        folder: of its own.
        limits: of each client.
        multi_user: clients of several users may share it.
    """

    devices: tuple[str, ...]
    folder: MpsFolder
    limits: Limits = Limits()
    multi_user: bool = False

    end_within = 5.0

    def keys(self) -> list[str]:
        return sharing_keys(self.devices)

    def title(self) -> str:
        return f"MPS control daemon of {', '.join(self.devices)}"

    def command(self) -> list[str]:
        daemon = [self.hardware.needed(PROGRAM), "-f", *(["-M"] if self.multi_user else [])]
        # a double needs no /dev/shm; it also runs where file systems may not be mounted
        if self.hardware.fake and not self.folder.has_shared_memory:
            return daemon
        # what is unmounted on the host is unmounted there, too
        apart = ["unshare", "--mount", "--propagation", "slave"]
        return [*apart, "sh", "-c", _WITH_SHM, str(self.folder.shm), *daemon]

    def environment(self) -> dict[str, str]:
        return {
            **self.hardware.environment,
            **self.folder.environment,
            "CUDA_VISIBLE_DEVICES": ",".join(self.devices),
        }

    def ready(self) -> bool:
        control = self._control()
        if not control.answers():
            return False
        try:
            self.limits.set_in(control)
        except MpsError:
            return False  # it has ended meanwhile, which the runner reports
        return True

    def alive(self) -> bool:
        return self._control().answers()

    def stop(self) -> bool:
        try:
            self._control().ask(QUIT)
        except MpsError:
            return False  # SIGTERM ends it, too
        return True

    def clear(self) -> None:
        self.folder.empty()

    def log_level(self, line: str) -> int:
        return logging.DEBUG if _CHATTER.search(line) else logging.INFO

    def _control(self) -> MpsControl:
        return MpsControl([self.hardware.needed(PROGRAM)], self.environment())


def sharing_keys(devices: tuple[str, ...]) -> list[str]:
    """Return the keys of a daemon: how each device is shared, which a time slice touches as well."""
    return [f"{'mig' if uuid.startswith('MIG-') else 'gpu'}/{uuid}/sharing" for uuid in devices]
