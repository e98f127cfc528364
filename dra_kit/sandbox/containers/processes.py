"""Processes of containers, started by a reaper that kills them all, even if this process crashes; pods' networks.

If the reaper itself is killed, the kernel kills the main processes of the containers, but not their children. All
processes have the mark of their sandbox in their environment, which does not depend on their group, session or parent.
The network of a pod is a network namespace that they can enter, or a file that stands for one.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeVar

from msgspec import Struct

from dra_kit.errors import SandboxError
from dra_kit.kubelet.cdi.spec import DeviceNode, SpecEdits
from dra_kit.sandbox.containers import reaper
from dra_kit.sandbox.containers.mounts import NEW_NETWORK, check, interface_names, raise_loopback
from dra_kit.sandbox.containers.runtime import VolumeMount

_ABOVE: Final = Path(reaper.__file__).parents[len(reaper.__name__.split(".")) - 1]
# neither the environment nor the site packages of this process concern it
_REAPER: Final = (
    sys.executable, "-I", "-S", "-c",
    f"import sys; sys.path.append({str(_ABOVE)!r}); from {reaper.__name__} import main; main(sys.argv[1:])",
)  # fmt: skip
_CLOSE_SECONDS: Final = 10.0
T = TypeVar("T")


class StartResult(Struct, frozen=True):
    """How the start of a process went.

    Attributes:
        number: 0, or the ``errno`` that says why it could not be started.
        mounted: it sees what was to be mounted.
        mount: source and target of the mount that failed, and whether it is a device file; None for another failure.
        stand_ins: device files for which empty files stand, because this user may not make device files.
    """

    number: int = 0
    mounted: bool = False
    mount: tuple[str, str, bool] | None = None
    stand_ins: tuple[str, ...] = ()


class ReaperClient:
    """Processes that do not outlive this one, even if this one is killed; for one event loop.

    Args:
        root: their working directory; removed when they have exited together with this process.
        ended: called with the identity and the exit code of each process that exits. For a signal, the code is minus
            the signal's number.
        node: what :func:`dra_kit.sandbox.containers.mounts.enter_node` mounts: all processes are in namespaces of their
            own; None for those of this process.
        entered: called when there are such namespaces; again when others replace them, because the reaper was killed.
    """

    def __init__(
        self,
        root: Path,
        ended: Callable[[str, int], None],
        *,
        node: Mapping[str, Any] | None = None,
        entered: Callable[[], None] = lambda: None,
    ) -> None:
        self._root = root
        self._ended = ended
        self._node = node
        self._entered = entered
        self._reaper: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._starting: dict[str, asyncio.Future[StartResult]] = {}
        self._asked: dict[str, asyncio.Future[tuple[Mapping[str, Any], int | None]]] = {}
        self._running: set[str] = set()

    @property
    def process(self) -> int | None:
        """The ID of the reaper's process, whose namespaces all processes share; None while there is none."""
        return None if self._reaper is None else self._reaper.pid

    async def enter(self) -> None:
        """Have the reaper start in its namespaces, if it has not.

        Raises:
            SandboxError: this machine does not allow it; the text is the reason alone.
        """
        if self._control is None:
            ready = self._ask("ready")
            self._start_reaper()
            message, _ = await ready
            if reason := message["ready"]:
                raise SandboxError(reason)

    async def open_socket(self, family: int, kind: int, network: str = "") -> socket.socket:
        """Return a new socket in the network of the processes, or in one of :meth:`network`.

        Raises:
            OSError: the reaper is gone.
        """
        if self._control is None:
            raise OSError(errno.EIO, "the namespaces of the node are gone")
        identity = secrets.token_hex(8)
        answer = self._ask(identity)
        self._order({"socket": identity, "family": int(family), "kind": int(kind), "network": network})
        _, descriptor = await answer
        if descriptor is None:
            raise OSError(errno.EIO, "the namespaces of the node are gone")
        found = socket.socket(fileno=descriptor)
        found.setblocking(False)
        return found

    async def network(self, path: str = "") -> tuple[str, tuple[str, ...]]:
        """Return the path of a network namespace for a pod, and the names of the interfaces in it.

        Args:
            path: what an earlier call has returned; empty for a new one.

        Raises:
            OSError: the kernel forbids it, or the reaper that made it is gone.
        """
        if self._control is None:  # it was killed
            self._start_reaper()
        identity = secrets.token_hex(8)
        answer = self._ask(identity)
        self._order({"network": identity, "path": path})
        message, _ = await answer
        if number := message.get("errno", errno.EIO):
            raise OSError(number, os.strerror(number), path or None)
        return message["path"], tuple(message["interfaces"])

    def leave_network(self, path: str) -> None:
        """Let a network namespace end with the last process in it."""
        self._order({"leave": path})

    async def look(self, path: str, create: str = "", mode: int = 0o755) -> int:
        """Return the mode of a file as the processes see it, with its type.

        Args:
            path: where.
            create: ``file`` or ``directory``, to create it if it does not exist.
            mode: permissions of a file that is created.

        Raises:
            OSError: it does not exist, or cannot be created.
        """
        if self._control is None:  # it was killed
            self._start_reaper()
        identity = secrets.token_hex(8)
        answer = self._ask(identity)
        self._order({"look": identity, "path": path, "create": create, "mode": mode})
        message, _ = await answer
        if number := message.get("errno", errno.EIO):
            raise OSError(number, os.strerror(number), path)
        return int(message["mode"])

    def _ask(self, identity: str) -> asyncio.Future[tuple[Mapping[str, Any], int | None]]:
        answer: asyncio.Future[tuple[Mapping[str, Any], int | None]] = asyncio.get_running_loop().create_future()
        self._asked[identity] = answer
        return answer

    def expect(self) -> None:
        """Have the reaper start: it takes as long as a driver takes to prepare a claim."""
        if self._control is None:
            with suppress(OSError):  # the start of the first process reports it
                self._start_reaper()

    async def start(
        self,
        identity: str,
        arguments: Sequence[str],
        *,
        executable: str,
        environment: Mapping[str, str],
        directory: Path,
        streams: Sequence[int],
        mounts: Sequence[Mapping[str, Any]] = (),
        devices: Sequence[Mapping[str, Any]] = (),
        image: str = "",
        own_devices: bool = False,
        shares: bool = False,
        hostname: str = "",
        unmounted: Mapping[str, str] | None = None,
        network: str = "",
        join: str = "",
        terminal: bool = False,
    ) -> StartResult:
        """Start a process in a separate session.

        Args:
            identity: identifies the process in later calls.
            arguments: the first one is the name of the program.
            executable: the path of the program; a name without a slash is looked for in the environment's ``PATH``.
            environment: the complete environment.
            directory: the working directory.
            streams: the file descriptors for its input, output and errors; the caller closes them.
            mounts: what the process sees at other paths, if this machine allows the user to mount; these and the next
                five as :func:`dra_kit.sandbox.containers.mounts.enter_container` takes them.
            devices: device files.
            image: a folder whose files it sees at their paths in it; empty for none.
            own_devices: it has those device files alone.
            shares: others see what it mounts in the directories of the node.
            hostname: its host name; empty for that of this process.
            unmounted: variables in addition, if it does not allow it.
            network: the path of its network namespace; empty for that of this process.
            join: the identity of a running process whose namespaces it enters; empty for none.
            terminal: ``streams`` are a terminal, which becomes its controlling one.
        """
        order = {
            "run": identity,
            "argv": list(arguments),
            "executable": executable,
            "env": dict(environment),
            "directory": str(directory),
            "mounts": list(mounts),
            "devices": list(devices),
            "image": image,
            "own_devices": own_devices,
            "shares": shares,
            "hostname": hostname,
            "unmounted": dict(unmounted or {}),
            "network": network,
            "join": join,
            "terminal": terminal,
        }
        control = self._control or self._start_reaper()
        data = json.dumps(order).encode()
        if len(data) > reaper.LARGEST_MESSAGE:
            return StartResult(errno.E2BIG)
        answer: asyncio.Future[StartResult] = asyncio.get_running_loop().create_future()
        self._starting[identity] = answer
        try:
            while True:
                try:
                    socket.send_fds(control, [data], streams)
                    break
                except BlockingIOError:
                    await asyncio.sleep(0.005)
            return await answer
        except OSError as error:
            return StartResult(error.errno or errno.EIO)
        finally:
            self._starting.pop(identity, None)

    def signal(self, identity: str, number: int) -> None:
        """Send a signal to the process; a no-op if it has exited."""
        self._order({"signal": identity, "number": int(number)})

    def kill(self, identity: str) -> None:
        """Kill the process and what it started in its group."""
        self._order({"kill": identity})

    async def close(self) -> None:
        """Kill everything, and return when it is gone."""
        self._disconnect()
        started, self._reaper = self._reaper, None
        if started is not None:
            await asyncio.to_thread(started.wait, _CLOSE_SECONDS)

    def _start_reaper(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, reaper.LARGEST_MESSAGE)
            self._reaper = subprocess.Popen(
                [*_REAPER, str(theirs.fileno()), str(self._root), *([json.dumps(self._node)] if self._node else [])],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd="/",
                start_new_session=True,  # a Ctrl-C at the terminal is for us alone
            )
        ours.setblocking(False)
        self._control = ours
        asyncio.get_running_loop().add_reader(ours, self._hear)
        return ours

    def _disconnect(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            asyncio.get_running_loop().remove_reader(control)
            control.close()

    def _order(self, order: Mapping[str, Any]) -> None:
        if self._control is None:
            return
        try:
            self._control.send(json.dumps(order).encode())
        except BlockingIOError:
            asyncio.get_running_loop().call_later(0.005, self._order, order)
        except OSError:
            pass  # the reaper and its processes are gone: the next read of the socket reports it

    def _hear(self) -> None:
        control = self._control
        while control is not None:
            descriptors: list[int] = []
            try:
                data, descriptors, _, _ = socket.recv_fds(control, reaper.LARGEST_MESSAGE, 1)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._lose_reaper()
                return
            self._learn(json.loads(data), *descriptors)
            control = self._control

    def _learn(self, message: Mapping[str, Any], descriptor: int | None = None) -> None:
        if (identity := message.get("started")) is not None:
            self._running.add(identity)
            self._answer(identity, StartResult(mounted=message["mounted"], stand_ins=tuple(message["stand_ins"])))
        elif (identity := message.get("failed")) is not None:
            mount = message["mount"]
            self._answer(identity, StartResult(message["errno"], mount=tuple(mount) if mount else None))
        elif (identity := message.get("ended")) is not None:
            self._running.discard(identity)
            self._ended(identity, os.waitstatus_to_exitcode(message["status"]))
        else:
            if message.get("ready") == "":
                self._entered()
            kind = next(name for name in ("ready", "socket", "network", "looked") if name in message)
            asked = self._asked.pop("ready" if kind == "ready" else message[kind], None)
            if asked is not None and not asked.done():
                asked.set_result((message, descriptor))
            elif descriptor is not None:
                os.close(descriptor)

    def _answer(self, identity: str, result: StartResult) -> None:
        answer = self._starting.get(identity)
        if answer is not None and not answer.done():
            answer.set_result(result)

    def _lose_reaper(self) -> None:
        """React to the death of the reaper: the kernel has killed what it had started."""
        self._disconnect()
        gone, self._reaper = self._reaper, None
        if gone is not None:
            gone.wait()
        for answer in self._starting.values():
            if not answer.done():
                answer.set_result(StartResult(errno.EIO))
        for asked in self._asked.values():
            if not asked.done():
                asked.set_result(({"ready": "its reaper has ended"}, None))
        self._asked.clear()
        lost, self._running = self._running, set()
        for identity in lost:
            self._ended(identity, -9)


_IMAGE_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START_LAYERS: Final = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
    "unable to start container process: error during container init: "
)
"""What a real message of a container that cannot start comes through: containerd, its shim, runc."""


def image_environment(hostname: str, home: Path) -> dict[str, str]:
    """Return the variables that an image without its own settings gives a process.

    ``PATH`` is that of most images; on a machine that has no shell there it is this machine's.
    """
    path = _IMAGE_PATH if shutil.which("sh", path=_IMAGE_PATH) else os.environ.get("PATH", os.defpath)
    return {"PATH": path, "HOSTNAME": hostname, "HOME": str(home)}


def volume_order(mount: VolumeMount) -> dict[str, Any]:
    """Return a volume as the reaper mounts it."""
    options = ["ro"] if mount.read_only else []
    return {"source": mount.source, "target": mount.path, "type": "bind", "options": options}


def mount_orders(edits: SpecEdits) -> list[dict[str, Any]]:
    """Return mounts of CDI as the reaper makes them."""
    return [
        {"source": item.host_path, "target": item.container_path, "type": item.type, "options": list(item.options)}
        for item in edits.mounts
    ]


def device_order(node: DeviceNode) -> dict[str, Any]:
    """Return a device file of CDI as the reaper makes it."""
    numbers = [node.type or "c", node.major, node.minor] if node.type and node.major else None
    return {"path": node.path, "source": node.host_path or node.path, "numbers": numbers, "mode": node.file_mode}


def start_failure(command: str, result: StartResult) -> str:
    """Return containerd's text for a process that could not be started."""
    if result.mount is None:
        missing = result.number == errno.ENOENT and "/" not in command
        return start_error(command, None if missing else result.number)
    source, target, is_device = result.mount
    reason = os.strerror(result.number).lower()
    if is_device:
        return f'CDI device injection failed: failed to stat CDI host device "{source}": {reason}'
    return mount_error(source, target, reason)


def start_error(command: str, number: int | None) -> str:
    """Return containerd's text for the ``errno`` of a command that cannot be started, None where it was not found."""
    match number:
        case None:
            return f'{START_LAYERS}exec: "{command}": executable file not found in $PATH'
        case errno.ENOENT | errno.ENOTDIR:
            return f'{START_LAYERS}exec: "{command}": stat {command}: no such file or directory'
        case errno.EACCES:
            return f'{START_LAYERS}exec: "{command}": permission denied'
        case errno.ENOEXEC:
            return f"{START_LAYERS}exec {command}: exec format error"
        case _:
            return f'{START_LAYERS}exec: "{command}": {os.strerror(number).lower()}'


def mount_error(source: str, target: str, reason: str = "no such file or directory") -> str:
    """Return containerd's text for a mount that failed, by default because the file does not exist."""
    return (
        f'{START_LAYERS}error mounting "{source}" to rootfs at "{target}": mount src={source}, dst={target}, '
        f"dstFd=/proc/thread-self/fd/8, flags=MS_BIND|MS_REC: {reason}"
    )


def enter_arguments(process: int, arguments: Sequence[str]) -> list[str]:
    """Return a command that runs another one in the namespaces of a process."""
    return [*_REAPER, "enter", str(process), *arguments]


def probe_arguments() -> list[str]:
    """Return a command that fails, and says why, where this user cannot have a reaper with namespaces of its own."""
    return [*_REAPER, "probe"]


MARK_VARIABLE: Final = "DRA_KIT_SANDBOX_MARK"
"""Environment of every container process: a random text that nothing but its sandbox has."""
_PATIENCE_SECONDS: Final = 5.0  # a process that hangs in the kernel does not even heed SIGKILL


def kill_orphans(mark: str) -> int:
    """Kill every process that has a sandbox's mark, wait until they are gone, and return their number."""
    entry = f"{MARK_VARIABLE}={mark}".encode()
    killed: set[int] = set()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    # again until there are none: they may start others meanwhile
    while time.monotonic() < deadline:
        ended = [process for process in _marked(entry) if _kill(process, entry, deadline)]
        if not ended:
            break
        killed.update(ended)
    return len(killed)


def _marked(entry: bytes) -> Iterator[int]:
    own = os.getpid()  # it may have been started in a container of that sandbox
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit() and int(directory.name) != own and _has_mark(int(directory.name), entry):
            yield int(directory.name)


def _has_mark(process: int, entry: bytes) -> bool:
    try:
        environment = Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return False  # another user's, or gone
    return entry in environment.split(b"\0")


def _kill(process: int, entry: bytes, deadline: float) -> bool:
    """Kill a process unless it is another by now, and wait for its end; whether it was killed."""
    with suppress(OSError), ProcessHandle(process) as found:
        if _has_mark(process, entry):
            found.end(signal.SIGKILL, deadline - time.monotonic())
            return True
    return False


class ProcessHandle:
    """A context manager that refers to one process, even if its ID is reused; inspect the process inside.

    Raises:
        ProcessLookupError: the process does not exist.
    """

    def __init__(self, process: int) -> None:
        self._descriptor = os.pidfd_open(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def end(self, number: signal.Signals, seconds: float) -> bool:
        """Send the process a signal, wait up to that many seconds, and return whether it has exited.

        Raises:
            PermissionError: the process belongs to another user.
        """
        try:
            signal.pidfd_send_signal(self._descriptor, number)
        except ProcessLookupError:
            return True
        waiting = select.poll()  # select(2) knows no descriptors beyond 1023
        waiting.register(self._descriptor, select.POLLIN)
        return bool(waiting.poll(max(0.0, seconds) * 1000))


class PodNetwork(Protocol):
    """The network of a pod; ``path`` is what hooks get as its network namespace, ``is_real`` whether it is one."""

    path: Path
    is_real: bool

    @property
    def is_lost(self) -> bool:
        """Whether it is gone, because the process that held it was killed."""
        ...

    async def refresh(self) -> None:
        """Find out which interfaces are in it, where this takes another process."""
        ...

    def interfaces(self) -> tuple[str, ...]:
        """Return the names of the interfaces that hooks moved into it."""
        ...

    def close(self) -> None:
        """Remove it."""
        ...


class NetworkFile:
    """A file that stands for a network namespace: a driver with simulated hardware writes interfaces, a line each."""

    is_real = False
    is_lost = False

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.touch()
        self.path = path

    async def refresh(self) -> None:
        """See :class:`PodNetwork`."""

    def interfaces(self) -> tuple[str, ...]:
        """See :class:`PodNetwork`."""
        try:
            return tuple(self.path.read_text(encoding="utf-8", errors="replace").split())
        except OSError:  # a driver has removed it
            return ()

    def close(self) -> None:
        """See :class:`PodNetwork`."""
        self.path.unlink(missing_ok=True)


class NetworkNamespace:
    """A new network namespace; it ends with this process, and the physical interfaces in it return to the machine.

    Raises:
        SandboxError: this user may not create network namespaces.
    """

    is_real = True
    is_lost = False

    def __init__(self) -> None:
        try:
            self._descriptor = _in_thread(_unshare)
        except OSError as error:
            raise SandboxError(
                f"network namespaces cannot be created: {error.strerror}; run the sandbox as root, or without "
                "--network-namespaces: then a file stands for each"
            ) from None
        self.path: Path = Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")
        self._from_start: tuple[str, ...] = self._names()

    async def refresh(self) -> None:
        """See :class:`PodNetwork`."""

    def interfaces(self) -> tuple[str, ...]:
        """See :class:`PodNetwork`."""
        return tuple(name for name in self._names() if name not in self._from_start)

    def _names(self) -> tuple[str, ...]:
        def enter() -> tuple[str, ...]:
            check(_LIBC.setns(self._descriptor, NEW_NETWORK))
            return tuple(interface_names())

        return _in_thread(enter)

    def close(self) -> None:
        """See :class:`PodNetwork`."""
        os.close(self._descriptor)


_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def socket_in(network: str) -> socket.socket:
    """Return a new socket for TCP in a network namespace, given by its path; empty for that of this process.

    Raises:
        OSError: the namespace is gone.
    """

    def create() -> socket.socket:
        if network:
            descriptor = os.open(network, os.O_RDONLY | os.O_CLOEXEC)
            try:
                check(_LIBC.setns(descriptor, NEW_NETWORK))
            finally:
                os.close(descriptor)
        found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        found.setblocking(False)
        return found

    return _in_thread(create) if network else create()


def _unshare() -> int:
    """Return a descriptor of a new namespace, in which the loopback interface is up, as in a pod."""
    check(_LIBC.unshare(NEW_NETWORK))
    raise_loopback()
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def _in_thread(work: Callable[[], T]) -> T:
    """Do something that changes the namespaces of its thread, in a thread that ends then."""
    with ThreadPoolExecutor(1, "network-namespace") as threads:
        return threads.submit(work).result()
