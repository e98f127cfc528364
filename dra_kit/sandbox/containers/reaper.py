"""The parent of all processes of containers: run by its path, with the standard library only.

It takes orders on a socket and reports when processes exit. It makes sure that nothing is left over: when the other
side of the socket is closed, for any reason, it kills all its descendants and removes their working directory. The
descendants include processes that left their process group or lost their parent. If the reaper itself is killed, the
kernel kills the processes that it started.

Messages are JSON objects, one per packet. To the reaper: ``{"run": id, "argv", "executable", "env", "directory",
"mounts", "devices", "image", "own_devices", "shares", "unmounted", "network", "join", "terminal"}`` with the file
descriptors for input, output and errors, ``{"signal": id, "number"}`` to the main process, ``{"kill": id}`` to all of
them. From it: ``{"started": id, "mounted", "stand_ins"}``, ``{"failed": id, "errno", "mount"}``, ``{"ended": id,
"status"}`` with the status of waitpid(2).

``network`` is the path of a network namespace that the process enters; empty for that of the reaper. ``join`` is the
process whose namespaces it enters instead; empty for none. With ``terminal``, its input is a terminal, which becomes
its controlling one.

``mounts`` and the other things that :func:`dra_kit.sandbox.containers.mounts.enter_container` takes are for the process
alone. Where this machine does not let the reaper mount, the process starts without them, and with the variables
``unmounted`` in addition.

A reaper that is given the mounts of a node enters namespaces of its own first, so that all of its processes are in
them. It says ``{"ready": error}`` then, with an empty text if it is there. In them, what cannot be mounted is an error;
``{"socket": id, "family", "kind", "network"}`` asks for a socket in the network, and ``{"look": id, "path", "create",
"mode"}`` for the ``{"looked": id, "mode", "errno"}`` of a file, which is created if ``create`` says ``file`` or
``directory`` and it does not exist.

``{"network": id, "path"}`` asks for the ``{"network": id, "path", "interfaces", "errno"}`` of a network namespace,
which is a new one if ``path`` is empty; ``{"leave": path}`` lets it end with the last process in it.
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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from dra_kit.sandbox.containers.mounts import (
    NEW_NETWORK,
    MountError,
    MountNamespace,
    check,
    enter_container,
    enter_namespaces,
    enter_node,
    interface_names,
    probe,
    raise_loopback,
    run_in,
)

LARGEST_MESSAGE: Final = 1 << 20
STREAMS: Final = 3
"""Descriptors of an order to run: input, output, errors."""
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


class Reaper:
    """Starts processes and waits for them."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._node: MountNamespace | None = None
        self._ids: dict[int, str] = {}  # by process ID of the main process, which is that of its group
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._networks: dict[str, int] = {}  # descriptors of network namespaces, by their path
        self._wakeup, signal_end = socket.socketpair()
        self._wakeup.setblocking(False)
        signal_end.setblocking(False)
        self._signal_end = signal_end

    def enter_node(self, order: dict[str, Any]) -> bool:
        """Enter the namespaces of a node; return whether it was possible."""
        try:
            self._node = enter_node(self._libc, order)
        except OSError as error:
            where = f": {error.filename}" if error.filename else ""
            self._send({"ready": f"{(error.strerror or str(error)).lower()}{where}"})
            return False
        self._send({"ready": ""})
        return True

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
        if "socket" in order:
            self._open_socket(order)
            return
        if "network" in order:
            self._look_into_network(order)
            return
        if "leave" in order:
            descriptor = self._networks.pop(order["leave"], None)
            if descriptor is not None:
                os.close(descriptor)
            return
        if "look" in order:
            self._look(order)
            return
        wanted = order.get("signal") or order["kill"]
        for process, identity in self._ids.items():
            if identity == wanted:
                # not reaped yet, so the process ID is still its own
                if "kill" in order:
                    _kill_group(process)
                else:
                    os.kill(process, order["number"])

    def _open_socket(self, order: dict[str, Any]) -> None:
        answer, made = json.dumps({"socket": order["socket"]}).encode(), None
        with suppress(OSError), self._network(order["network"]):  # without a socket, the answer says that it failed
            made = socket.socket(order["family"], order["kind"])
        if made is None:
            self._control.send(answer)
            return
        with made:
            socket.send_fds(self._control, [answer], [made.fileno()])

    def _look_into_network(self, order: dict[str, Any]) -> None:
        path, names, number = order["path"], [], 0
        try:
            if not path:
                path = self._make_network()
            with self._network(path):
                names = interface_names()
        except OSError as error:
            number = error.errno or errno.EINVAL
        self._send({"network": order["network"], "path": path, "interfaces": names, "errno": number})

    def _make_network(self) -> str:
        """Make a network namespace, in which the loopback interface is up, as in a pod; return its path."""
        with self._network("/proc/self/ns/net"):  # to return from the new one
            check(self._libc.unshare(NEW_NETWORK))
            raise_loopback()
            descriptor = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        # programs of the node are of the same user namespace, so that they may follow it
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
        self._networks[path] = descriptor
        return path

    @contextmanager
    def _network(self, path: str) -> Iterator[None]:
        """Be in a network namespace, given by its path; empty for that of this process."""
        if not path:
            yield
            return
        before = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            there = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                check(self._libc.setns(there, NEW_NETWORK))
            finally:
                os.close(there)
            yield
        finally:
            check(self._libc.setns(before, NEW_NETWORK))
            os.close(before)

    def _look(self, order: dict[str, Any]) -> None:
        path, mode, number = order["path"], 0, 0
        try:
            if order["create"] and self._node is not None:
                self._node.make(path, folder=order["create"] == "directory", mode=order["mode"])
            mode = Path(path).stat().st_mode
        except OSError as error:
            number = error.errno or errno.EINVAL
        except ValueError:  # a NUL byte in the path
            number = errno.EINVAL
        self._send({"looked": order["look"], "mode": mode, "errno": number})

    def _start(self, order: dict[str, Any], streams: list[int]) -> None:
        mounts = _has_own_mounts(order)
        environment, without = order["env"], {**order["env"], **order["unmounted"]}
        answer: dict[str, Any] = {}
        try:
            try:
                process = self._popen(order, environment if mounts else without, answer, streams)
            except subprocess.SubprocessError:  # what came before exec(2) failed: the mounts
                if self._node is not None or not mounts:
                    raise
                mounts, order = False, {**order, "mounts": [], "image": ""}
                process = self._popen(order, without, {}, streams)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            number = getattr(error, "errno", None) or answer.get("errno") or errno.EINVAL
            self._send({"failed": order["run"], "errno": number, "mount": answer.get("mount")})
            return
        self._ids[process.pid] = order["run"]
        self._processes[process.pid] = process
        stand_ins = answer.get("stand_ins") or []
        self._send({"started": order["run"], "mounted": bool(mounts), "stand_ins": stand_ins})

    def _popen(
        self, order: dict[str, Any], environment: dict[str, str], answer: dict[str, Any], streams: list[int]
    ) -> subprocess.Popen[bytes]:
        """Start a process; fill ``answer`` with what its preparation says."""
        reaper = os.getpid()
        joined = self._process_of(order["join"]) if order["join"] else 0
        reading, writing = os.pipe2(os.O_CLOEXEC)

        def prepare() -> None:
            network = order["network"]  # before the mounts: they may need a user namespace, which has fewer rights
            if network:
                check(self._libc.setns(os.open(network, os.O_RDONLY | os.O_CLOEXEC), NEW_NETWORK))
            if _has_own_mounts(order):
                try:
                    found: dict[str, Any] = {"stand_ins": enter_container(self._libc, order)}
                except MountError as error:
                    failed = (error.source, error.target, error.is_device)
                    os.write(writing, json.dumps({"errno": error.errno, "mount": failed}).encode())
                    raise
                except OSError as error:
                    os.write(writing, json.dumps({"errno": error.errno}).encode())
                    raise
                os.write(writing, json.dumps(found).encode())
            if joined:
                enter_namespaces(self._libc, joined)
                os.chdir(order["directory"])
            if order["terminal"]:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            # after it: a process that enters a user namespace loses this setting
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != reaper:
                os._exit(128 + signal.SIGKILL)

        try:
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
        finally:
            os.close(writing)
            with os.fdopen(reading, "rb") as said:
                answer.update(json.loads(said.read() or b"{}"))

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


def _has_own_mounts(order: dict[str, Any]) -> bool:
    return bool(order["mounts"] or order["image"] or order["own_devices"] or order["hostname"])


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


def main(arguments: list[str]) -> None:
    """Run a reaper: the descriptor of its socket, the working directory to remove, and the mounts of a node, if any.

    With ``enter``, a process and a command, become that command in the namespaces of the process. With ``probe``, enter
    namespaces, and fail if it is not possible.
    """
    if arguments[0] == "probe":
        try:
            probe(ctypes.CDLL(None, use_errno=True))
        except OSError as error:
            sys.exit((error.strerror or str(error)).lower())
        return
    if arguments[0] == "enter":
        try:
            run_in(int(arguments[1]), arguments[2:])
        except OSError as error:
            sys.exit(f"{arguments[2]}: {(error.strerror or str(error)).lower()}")
    reaper = Reaper(socket.socket(fileno=int(arguments[0])))
    if arguments[2:] and not reaper.enter_node(json.loads(arguments[2])):
        return
    reaper.run()
    shutil.rmtree(arguments[1], ignore_errors=True)
