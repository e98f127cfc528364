"""What a pod of :class:`~gpu_driver.effects.mps.pod.MpsPod` runs: the daemon, its limits, and an orderly end.

``python -m gpu_driver.effects.mps.serve`` runs it, ``… serve ask`` succeeds when it answers and has its limits.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import dra_kit as dra

from gpu_driver.effects.mps.control import PROGRAM, MpsControl, MpsError
from gpu_driver.effects.mps.limits import Limits
from gpu_driver.effects.mps.paths import MpsFolder

_COME_UP = 60.0
_QUIT_WITHIN = 20.0
_SET = "limits-are-set"


def main() -> int:
    """Run it; the exit code."""
    folder = MpsFolder(path=Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]).parent)
    program, environment = _program(Path(os.environ.get("MPS_DRIVER_ROOT", "/")))
    control = MpsControl(program, environment)
    done = folder.log / _SET
    if sys.argv[1:] == ["ask"]:
        return 0 if done.exists() and control.answers() else 1
    done.unlink(missing_ok=True)
    folder.empty()
    more = ["-M"] if os.environ.get("MPS_MULTI_USER") else []
    daemon = subprocess.Popen([program, "-f", *more], env=environment)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _quit(control, daemon))
    try:
        _wait(control, daemon)
        Limits.model_validate_json(os.environ.get("MPS_LIMITS", "{}")).set_in(control)
    except (MpsError, dra.PrepareError) as error:
        print(error, file=sys.stderr)
        daemon.kill()
        return 1
    done.touch()
    return daemon.wait()


def _wait(control: MpsControl, daemon: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + _COME_UP
    while not control.answers():
        if daemon.poll() is not None:
            raise MpsError(f"{PROGRAM} ended with exit code {daemon.returncode} before it was ready")
        if time.monotonic() > until:
            raise MpsError(f"{PROGRAM} does not answer after {_COME_UP:.0f} s")
        time.sleep(0.2)


def _quit(control: MpsControl, daemon: "subprocess.Popen[bytes]") -> None:
    try:
        control.ask("quit -t 10")
        daemon.wait(_QUIT_WITHIN)
    except (MpsError, subprocess.TimeoutExpired):
        daemon.kill()


def _program(root: Path) -> tuple[str, dict[str, str]]:
    """The driver root's program, with the libraries beside it, or that on PATH."""
    libraries = [root / "usr" / part for part in ("lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu")]
    environment = {**os.environ}
    if root != Path("/"):
        environment["LD_LIBRARY_PATH"] = ":".join(map(str, libraries))
    found = root / "usr/bin" / PROGRAM
    return (str(found) if found.exists() else PROGRAM), environment


if __name__ == "__main__":
    sys.exit(main())
