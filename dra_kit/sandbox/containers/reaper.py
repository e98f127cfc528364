"""The parent of all processes of containers: run by its path, with the standard library only.

It takes orders on a socket and reports when processes exit. It makes sure that nothing is left over: when the other
side of the socket is closed, for any reason, it kills all its descendants and removes their working directory. The
descendants include processes that left their process group or lost their parent. If the reaper itself is killed, the
kernel kills the processes that it started.

Messages are JSON objects, one per packet. To the reaper: ``{"run": id, "argv", "executable", "env", "directory"}`` with
the file descriptor for the output, ``{"signal": id, "number"}`` to the main process, ``{"kill": id}`` to all of them.
From it: ``{"started": id}``, ``{"failed": id, "errno"}``, ``{"ended": id, "status"}`` with the status of waitpid(2).
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

LARGEST_MESSAGE: Final = 1 << 20
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


class Reaper:
    """Starts processes and waits for them."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._libc = ctypes.CDLL(None)
        self._ids: dict[int, str] = {}  # by process ID of the main process, which is that of its group
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._wakeup, signal_end = socket.socketpair()
        self._wakeup.setblocking(False)
        signal_end.setblocking(False)
        self._signal_end = signal_end

    def run(self) -> None:
        """Work until the other side is gone; then nothing is left."""
        # orphans become children of this process, so that they can be found
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        signal.set_wakeup_fd(self._signal_end.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            while self._serve():
                pass
        except BrokenPipeError:
            pass
        finally:
            self._kill_everything()

    def _serve(self) -> bool:
        ready, _, _ = select.select([self._control, self._wakeup], [], [])
        if self._wakeup in ready:
            with suppress(BlockingIOError):
                self._wakeup.recv(4096)
        self._reap()
        if self._control in ready:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._control, LARGEST_MESSAGE, 1)
            except ConnectionResetError:
                return False
            if not data:
                return False
            try:
                self._obey(json.loads(data), descriptors)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
        return True

    def _obey(self, order: dict[str, Any], descriptors: list[int]) -> None:
        if "run" in order:
            self._start(order, descriptors[0])
            return
        wanted = order.get("signal") or order["kill"]
        for process, identity in self._ids.items():
            if identity == wanted:
                # not reaped yet, so the process ID is still its own
                if "kill" in order:
                    _kill_group(process)
                else:
                    os.kill(process, order["number"])

    def _start(self, order: dict[str, Any], output: int) -> None:
        reaper = os.getpid()

        def die_with_reaper() -> None:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != reaper:
                os._exit(128 + signal.SIGKILL)

        try:
            process = subprocess.Popen(
                order["argv"],
                executable=order["executable"],
                env=order["env"],
                cwd=order["directory"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=die_with_reaper,  # noqa: PLW1509 - this process has one thread
            )
        except (OSError, ValueError) as error:
            self._send({"failed": order["run"], "errno": getattr(error, "errno", None) or 0})
            return
        self._ids[process.pid] = order["run"]
        self._processes[process.pid] = process
        self._send({"started": order["run"]})

    def _reap(self) -> None:
        """Reap all exited children; kill the rest of the group of a main process that exited, as in a container."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            if ended.si_pid in self._ids:
                _kill_group(ended.si_pid)
            _, status = os.waitpid(ended.si_pid, 0)
            process = self._processes.pop(ended.si_pid, None)
            if process is not None:
                process.returncode = os.waitstatus_to_exitcode(status)
                self._send({"ended": self._ids.pop(ended.si_pid), "status": status})

    def _send(self, message: dict[str, Any]) -> None:
        self._control.send(json.dumps(message).encode())

    def _kill_everything(self) -> None:
        """Kill descendants until none are left: a process that loses its parent meanwhile becomes a child."""
        for process in self._ids:
            _kill_group(process)
        while True:
            for child in _children():
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return


def _kill_group(process: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)


def _children() -> list[int]:
    """Return process IDs of this process's children."""
    parent = str(os.getpid())
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            with suppress(OSError):
                # the name of the program, in parentheses, may contain anything
                fields = (directory / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[1] == parent:
                    found.append(int(directory.name))
    return found


if __name__ == "__main__":
    Reaper(socket.socket(fileno=int(sys.argv[1]))).run()
    shutil.rmtree(sys.argv[2], ignore_errors=True)
