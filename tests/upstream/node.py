"""Run a driver with built-in paths where they are those of a node.

``python -m tests.upstream.node CDI [PATH=DIR …] -- CMD``: CDI is seen at /var/run/cdi, each DIR at its PATH, and a
container runtime without containers serves NRI at /var/run/nri/nri.sock. All of it is for CMD alone, and ends with it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dra_kit.kubelet.nri import messages as pb
from dra_kit.sandbox.containers.mounts import NEW_MOUNTS, MountNamespace, unshare
from dra_kit.sandbox.containers.nri import NriServer

_SET_DEATH_SIGNAL: Final = 1  # prctl(2), PR_SET_PDEATHSIG
_START_SECONDS: Final = 30.0


class NoContainers:
    """A runtime without pods."""

    def nri_pods(self) -> Sequence[pb.PodSandbox]:
        return []

    def nri_containers(self) -> Sequence[pb.Container]:
        return []

    def nri_update(self, container_id: str, resources: pb.LinuxResources) -> None:
        """There is none to update."""


async def serve(socket: Path) -> None:
    async with NriServer(socket, NoContainers(), runtime=("no-containers", "1")):
        await asyncio.Event().wait()


def enter(cdi: str, places: Sequence[str]) -> None:
    """Enter a mount namespace, mount what a node has, and start its runtime."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder = Path(tempfile.mkdtemp(prefix="dra-"))
    unshare(libc, NEW_MOUNTS)
    namespace = MountNamespace(libc, folder)
    for place in places:
        path, _, source = place.partition("=")
        namespace.bind(source, path)
    namespace.bind(cdi, "/var/run/cdi")
    namespace.file_system("tmpfs", "/var/run/nri")
    socket = Path("/var/run/nri/nri.sock")
    parent = os.getpid()

    def end_with_parent() -> None:
        libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    words = [sys.executable, "-m", "tests.upstream.node", "--serve", str(socket)]
    # signals to the driver's group are not for the runtime, whose end would end the driver in another way
    runtime = subprocess.Popen(words, start_new_session=True, preexec_fn=end_with_parent)  # noqa: PLW1509 - one thread
    wait_for_runtime(runtime, socket, _START_SECONDS)
    folder.rmdir()


def wait_for_runtime(runtime: subprocess.Popen[bytes], socket: Path, seconds: float) -> None:
    """Wait until a container runtime serves NRI.

    Raises:
        SystemExit: it has ended, or does not serve in time, and is ended.
    """
    deadline = time.monotonic() + seconds
    while not socket.exists():
        if (code := runtime.poll()) is not None:
            sys.exit(f"the container runtime of the node has ended with exit code {code}; see its error above")
        if time.monotonic() > deadline:
            runtime.kill()
            sys.exit(f"the container runtime of the node does not serve NRI within {seconds:g} s at {socket}")
        time.sleep(0.02)


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[0] == "--serve":
        asyncio.run(serve(Path(arguments[1])))
        return
    end = arguments.index("--")
    enter(arguments[0], arguments[1:end])
    os.execvp(arguments[end + 1], arguments[end + 1 :])  # noqa: S606 - the caller names the program


if __name__ == "__main__":
    main()
