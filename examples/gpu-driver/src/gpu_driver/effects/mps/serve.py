"""The program of :class:`~gpu_driver.effects.mps.pod.MpsPod`: it runs the daemon, sets its limits and ends it in order.

``python -m gpu_driver.effects.mps.serve`` runs it, ``… serve ask`` succeeds when it answers and has its limits.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import dra_kit as dra

from gpu_driver.doubles import nvidia_cuda_mps_control
from gpu_driver.effects.mps.control import PROGRAM, MpsControl, MpsError
from gpu_driver.effects.mps.limits import Limits
from gpu_driver.effects.mps.paths import MpsFolder
from gpu_driver.host.driver_root import LIBRARIES, program_folders

_COME_UP = 60.0
_QUIT_WITHIN = 20.0


def main() -> int:
    """Run it; the exit code."""
    folder = MpsFolder(path=Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]).parent)
    command, environment = _program(Path(os.environ.get("MPS_DRIVER_ROOT", "/")))
    control = MpsControl(command, environment)
    done = Path(os.environ.get("MPS_READY_FILE", folder.log / "limits-are-set"))
    if sys.argv[1:] == ["ask"]:
        return 0 if done.exists() and control.answers() else 1
    done.unlink(missing_ok=True)
    folder.empty()
    more = ["-M"] if os.environ.get("MPS_MULTI_USER") else []
    # set when the daemon has ended, or is asked to
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    try:
        daemon = subprocess.Popen([*command, "-f", *more], env=environment)
    except OSError as error:
        print(
            f"{command[0]} cannot be run: {error.strerror}; set driver_root of the driver's settings to where "
            f"NVIDIA's driver has {PROGRAM}",
            file=sys.stderr,
        )
        return 1
    threading.Thread(target=_wait_for_end, args=[daemon, ending], daemon=True).start()
    try:
        if _comes_up(control, ending):
            Limits.model_validate_json(os.environ.get("MPS_LIMITS", "{}")).set_in(control)
            done.touch()
            ending.wait()
    except (MpsError, dra.PrepareError) as error:
        print(error, file=sys.stderr)
        daemon.kill()
        return 1
    if daemon.poll() is None:
        return _quit(control, daemon)
    print(f"{PROGRAM} ended with exit code {daemon.returncode}", file=sys.stderr)
    return 1


def _wait_for_end(daemon: "subprocess.Popen[bytes]", ending: threading.Event) -> None:
    daemon.wait()
    ending.set()


def _comes_up(control: MpsControl, ending: threading.Event) -> bool:
    """Whether it answers; not when it has ended, or is to end, before it does."""
    until, pause = time.monotonic() + _COME_UP, 0.01  # a real daemon answers after some 20 ms
    while not control.answers():
        if ending.wait(pause):
            return False
        pause = min(pause * 2, 0.2)
        if time.monotonic() > until:
            raise MpsError(f"{PROGRAM} does not answer after {_COME_UP:.0f} s")
    return True


def _quit(control: MpsControl, daemon: "subprocess.Popen[bytes]") -> int:
    try:
        control.ask("quit -t 10", patience=_QUIT_WITHIN)
        return daemon.wait(_QUIT_WITHIN)
    except (MpsError, subprocess.TimeoutExpired):
        daemon.kill()
        return 0


def _program(root: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts the daemon and its clients, and its environment variables.

    NVIDIA's programs and the libraries of the host's C library belong together: they run in the driver's root where it
    is a whole system, and with the libraries beside them where it is a folder of NVIDIA's files alone.
    """
    environment = {**os.environ}
    if os.environ.get("MPS_DOUBLE"):
        return [sys.executable, "-P", "-m", nvidia_cuda_mps_control.__name__], environment
    if root != Path("/") and os.path.lexists(root / "bin/sh"):
        return ["chroot", str(root), PROGRAM], environment
    environment["PATH"] = ":".join([*map(str, program_folders(root)), environment.get("PATH", os.defpath)])
    if root != Path("/"):
        environment["LD_LIBRARY_PATH"] = ":".join(str(root / folder) for folder in LIBRARIES)
    return [PROGRAM], environment


if __name__ == "__main__":
    sys.exit(main())
