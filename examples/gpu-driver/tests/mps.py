"""Claims with MPS as the tests look at them: what they ask for, their daemon, and the folder that may be left."""

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dra_kit as dra

from gpu_driver.doubles.nvidia_cuda_mps_control import PID_FILE
from gpu_driver.effects.mps.control import PROGRAM, MpsControl
from gpu_driver.effects.mps.paths import MpsFolder
from gpu_driver.host.folders import unmount
from tests.conftest import Node

SOON = 60.0
"""Seconds that a daemon gets: far more than it needs."""
HOUR = 3600.0


@contextmanager
def mps_root() -> Iterator[Path]:
    """Make a folder for those of MPS daemons: with a short path, since pytest's are too long for sockets."""
    with tempfile.TemporaryDirectory(prefix="mps-") as made:
        root = Path(made)
        try:
            yield root
        finally:
            for path in root.iterdir():
                unmount(path)


def config(kind: str = "GpuConfig", **mps: object) -> dict[str, Any]:
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": kind,
        "sharing": {"strategy": "MPS", "mpsConfig": mps},
    }


def prepare(
    node: Node, claim: str = "serve", gpu: str = "gpu-0", *, kind: str = "GpuConfig", within: float = SOON, **mps: Any
) -> dra.Prepared:
    """Prepare a claim of one device with MPS."""
    [prepared] = node.bench.prepare(claim, [node.devices[gpu]], config=config(kind, **mps), within=within)
    return prepared


def pipe(prepared: dra.Prepared) -> Path:
    return Path(prepared.env["CUDA_MPS_PIPE_DIRECTORY"])


def pid_in(pipe: Path) -> int:
    """Of the daemon with these sockets."""
    return int((pipe / PID_FILE).read_text())


def pid(prepared: dra.Prepared) -> int:
    return pid_in(pipe(prepared))


def runs(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ask(node: Node, prepared: dra.Prepared, command: str) -> str:
    """As a client of the container would."""
    environment = {**node.hardware.environment, "CUDA_MPS_PIPE_DIRECTORY": str(pipe(prepared))}
    return MpsControl([node.hardware.needed(PROGRAM)], environment).ask(command)


def root_of(node: Node) -> Path:
    assert node.settings.mps_root is not None
    return node.settings.mps_root


def nothing_left(node: Node) -> bool:
    return not list(root_of(node).iterdir()) and node.bench.effects == []


def left_by_a_daemon(root: Path, name: str = "0123456789ab", *, seconds_ago: float = HOUR) -> MpsFolder:
    """A folder with what a daemon that was killed leaves: sockets, a PID file and a log."""
    folder = MpsFolder(path=root / name)
    folder.make()
    for name in ("control", "control_privileged"):
        with socket.socket(socket.AF_UNIX) as ended:
            ended.bind(str(folder.pipe / name))
    (folder.pipe / PID_FILE).write_text("4194303\n")
    (folder.log / "control.log").write_text("Exit\n")
    return age(folder, seconds_ago)


def age(folder: MpsFolder, seconds: float) -> MpsFolder:
    then = time.time() - seconds
    for path in (folder.path, folder.pipe, folder.log):
        os.utime(path, (then, then))
    return folder
