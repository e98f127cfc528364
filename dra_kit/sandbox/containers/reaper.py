"""The parent of all processes of containers: run by its path, with the standard library only.

It takes orders on a socket and reports when processes exit. It makes sure that nothing is left over: when the other
side of the socket is closed, for any reason, it kills all its descendants and removes their working directory. The
descendants include processes that left their process group or lost their parent. If the reaper itself is killed, the
kernel kills the processes that it started.

Messages are JSON objects, one per packet. To the reaper: ``{"run": id, "argv", "executable", "env", "directory",
"mounts", "unmounted", "network", "join", "terminal"}`` with the file descriptors for input, output and errors,
``{"signal": id, "number"}`` to the main process, ``{"kill": id}`` to all of them. From it: ``{"started": id,
"mounted"}``, ``{"failed": id, "errno"}``, ``{"ended": id, "status"}`` with the status of waitpid(2).

``network`` is the path of a network namespace that the process enters; empty for that of the reaper. ``join`` is the
process whose namespaces it enters instead; empty for none. With ``terminal``, its input is a terminal, which becomes
its controlling one.

``mounts`` are folders by the path at which the process sees them, read-only. Where this machine does not let the reaper
mount, the process starts without them, and with the variables ``unmounted`` in addition.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

LARGEST_MESSAGE: Final = 1 << 20
STREAMS: Final = 3
"""Descriptors of an order to run: input, output, errors."""
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_CLONE_NEWNS: Final = 0x20000
_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000
_MS_REMOUNT: Final = 1 << 5
_MS_BIND: Final = 1 << 12
_MS_REC: Final = 1 << 14
_MS_SLAVE: Final = 1 << 19


class Reaper:
    """Starts processes and waits for them."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._libc = ctypes.CDLL(None, use_errno=True)
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
                data, descriptors, _, _ = socket.recv_fds(self._control, LARGEST_MESSAGE, STREAMS)
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
            self._start(order, descriptors)
            return
        wanted = order.get("signal") or order["kill"]
        for process, identity in self._ids.items():
            if identity == wanted:
                # not reaped yet, so the process ID is still its own
                if "kill" in order:
                    _kill_group(process)
                else:
                    os.kill(process, order["number"])

    def _start(self, order: dict[str, Any], streams: list[int]) -> None:
        mounts, without = order["mounts"], {**order["env"], **order["unmounted"]}
        try:
            try:
                process = self._popen(order, order["env"] if mounts else without, mounts, streams)
            except subprocess.SubprocessError:  # what came before exec(2) failed: the mounts
                if not mounts:
                    raise
                mounts = {}
                process = self._popen(order, without, mounts, streams)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._send({"failed": order["run"], "errno": getattr(error, "errno", None) or errno.EINVAL})
            return
        self._ids[process.pid] = order["run"]
        self._processes[process.pid] = process
        self._send({"started": order["run"], "mounted": bool(mounts)})

    def _popen(
        self, order: dict[str, Any], environment: dict[str, str], mounts: dict[str, str], streams: list[int]
    ) -> subprocess.Popen[bytes]:
        reaper = os.getpid()
        joined = self._process_of(order["join"]) if order["join"] else 0

        def prepare() -> None:
            network = order["network"]  # before the mounts: they may need a user namespace, which has fewer rights
            if network and self._libc.setns(os.open(network, os.O_RDONLY | os.O_CLOEXEC), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "network namespace not entered")
            if mounts:
                MountNamespace(self._libc).enter(mounts)
            if joined:
                enter_namespaces(self._libc, joined)
                os.chdir(order["directory"])
            if order["terminal"]:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            # after it: a process that enters a user namespace loses this setting
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != reaper:
                os._exit(128 + signal.SIGKILL)

        return subprocess.Popen(
            order["argv"],
            executable=order["executable"],
            env=environment,
            cwd=order["directory"],
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509 - this process has one thread
        )

    def _process_of(self, identity: str) -> int:
        """Return the process of an order that is carried out; it is not reaped before the next one is read.

        Raises:
            ProcessLookupError: it has exited.
        """
        for process, known in self._ids.items():
            if known == identity:
                return process
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))

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


def enter_namespaces(libc: ctypes.CDLL, process: int) -> None:
    """Enter the user, mount and network namespaces of a process, where they are others than the own ones.

    Raises:
        OSError: the process is gone, or the kernel forbids it.
    """
    # the user namespace first: it gives the right to enter the others
    for name, kind in (("user", _CLONE_NEWUSER), ("mnt", _CLONE_NEWNS), ("net", _CLONE_NEWNET)):
        descriptor = os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        is_own = os.fstat(descriptor).st_ino == Path("/proc/self/ns", name).stat().st_ino
        if not is_own and libc.setns(descriptor, kind):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        os.close(descriptor)


class MountNamespace:
    """A mount namespace for this process: what is mounted in it is seen by the process and its children alone.

    A user without the right to mount enters a user namespace in which it is the same user. root does not: there, it
    would lose its rights over other users' files.
    """

    def __init__(self, libc: ctypes.CDLL) -> None:
        self._libc = libc

    def enter(self, mounts: dict[str, str]) -> None:
        """Enter it, and mount folders by path in it, read-only.

        A path that does not exist is made: its nearest folder becomes one in memory, with all that is in it today, so
        that what the process creates in that very folder is its own. Nothing is made in the root folder.

        Raises:
            OSError: the kernel forbids it, or a path leads nowhere.
        """
        user, group = os.getuid(), os.getgid()
        if self._libc.unshare(_CLONE_NEWNS):
            if user == 0:
                self._check(-1)
            self._check(self._libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS))
            for name, text in (
                ("setgroups", "deny"),
                ("uid_map", f"{user} {user} 1"),
                ("gid_map", f"{group} {group} 1"),
            ):
                Path("/proc/self", name).write_text(text)
        self._mount("none", "/", "", _MS_REC | _MS_SLAVE)
        # a folder before those that are in it, as container runtimes do
        for target, source in sorted(mounts.items(), key=lambda item: Path(item[0]).parts):
            path = Path(os.path.realpath(target))
            self._make(path)
            self._mount(source, path, "", _MS_BIND)
            # flags of the file system that a user namespace must not drop
            kept = os.statvfs(path).f_flag & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC)
            self._mount("none", path, "", _MS_REMOUNT | _MS_BIND | os.ST_RDONLY | kept)

    def _make(self, path: Path) -> None:
        if path.is_dir():
            return
        parent = next(folder for folder in path.parents if folder.exists())
        if path.exists() or parent == Path("/"):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        before, mode = os.open(parent, os.O_PATH | os.O_DIRECTORY), parent.stat().st_mode & 0o7777
        entries = []
        for entry in parent.iterdir():
            with suppress(FileNotFoundError):  # another process has just removed it
                entries.append((entry, entry.is_dir(), entry.readlink() if entry.is_symlink() else None))
        self._mount("tmpfs", parent, "tmpfs", os.ST_NOSUID | os.ST_NODEV, f"mode={mode:o}")
        for entry, is_folder, link in entries:
            if link is not None:
                entry.symlink_to(link)
                continue
            if is_folder:
                entry.mkdir()
            else:
                entry.touch()
            try:
                self._mount(f"/proc/self/fd/{before}/{entry.name}", entry, "", _MS_BIND | _MS_REC)
            except FileNotFoundError:
                entry.rmdir() if is_folder else entry.unlink()
        os.close(before)
        path.mkdir(parents=True)

    def _mount(self, source: str, target: str | Path, kind: str, flags: int, options: str = "") -> None:
        encoded = [os.fsencode(text) for text in (source, target, kind)]
        self._check(self._libc.mount(*encoded, ctypes.c_ulong(flags), os.fsencode(options)))

    def _check(self, result: int) -> None:
        if result:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


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
