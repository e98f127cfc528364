"""Input and output of processes in containers, for clients of ``exec`` and ``attach``; connections to their ports.

For one event loop. The streams are pipes, or a pseudo-terminal.

Sources: Kubernetes 1.37 ``pkg/kubelet/server`` and ``pkg/kubelet/kubelet_pods.go``; containerd 2 and runc 1.3 for the
messages of commands that cannot be started.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import pty
import secrets
import struct
import termios
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from dra_kit.apiserver.pod_streams import CommandResult, PodStreamUnavailable, StreamOptions
from dra_kit.errors import KubeletError
from dra_kit.kubernetes.values.json import Object, ObjectView
from dra_kit.sandbox.containers.log import ContainerLog, LogTap, OutputPipe, OutputReader
from dra_kit.sandbox.containers.processes import START_LAYERS, ReaperClient, start_failure
from dra_kit.sandbox.containers.runtime import ContainerConfig, ContainerStatus

_AT_ONCE: Final = 1 << 16
_SIZE_MAX: Final = (1 << 16) - 1


class StreamEnd:
    """Our end of a pipe or of a terminal."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor

    async def read(self, ended: asyncio.Future[int]) -> bytes:
        """Return what has arrived; nothing at the end, or when the process has ended and everything was read."""
        while self._descriptor is not None:
            is_last = ended.done()
            try:
                return os.read(self._descriptor, _AT_ONCE)
            except BlockingIOError:
                if is_last:
                    return b""
                await self._ready(self._descriptor, asyncio.get_running_loop().add_reader, ended)
            except OSError as error:
                if error.errno != errno.EIO:  # a terminal that no process has open any longer
                    raise
                return b""
        return b""

    async def write(self, data: bytes) -> None:
        """Write all of it; a reader that is gone does not get the rest."""
        while data and self._descriptor is not None:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:
                await self._ready(self._descriptor, asyncio.get_running_loop().add_writer)
            except OSError:
                return

    def resize(self, width: int, height: int) -> None:
        """Set the size of a terminal; its foreground process learns it by a signal."""
        if self._descriptor is not None and 0 < width <= _SIZE_MAX and 0 < height <= _SIZE_MAX:
            fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def close(self) -> None:
        """Close it; a no-op if it is closed."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(descriptor)
            loop.remove_writer(descriptor)
            os.close(descriptor)

    async def _ready(
        self,
        descriptor: int,
        listen: Callable[[int, Callable[[], None]], None],
        ended: asyncio.Future[int] | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        listen(descriptor, wake)
        try:
            await asyncio.wait((ready,) if ended is None else (ready, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._descriptor is not None:
                (loop.remove_reader if listen == loop.add_reader else loop.remove_writer)(descriptor)


class ProcessEnds(Struct):
    """Both ends of the streams of a process; without a terminal, the streams that are not wanted lead nowhere.

    Attributes:
        child: input, output and errors, for the process; the opener closes them once it has them.
        input: our end of the input; None for none.
        output: our end of the output; None for none. It is that of the input if they are a terminal.
        errors: our end of the errors; None for none.
        spare: leads nowhere; closed with the ends of the process.
    """

    child: tuple[int, int, int]
    input: StreamEnd | None = None
    output: StreamEnd | None = None
    errors: StreamEnd | None = None
    spare: int | None = None

    def close_child(self) -> None:
        """Close the ends of the process."""
        for descriptor in {*self.child, *(() if self.spare is None else (self.spare,))}:
            os.close(descriptor)

    def close(self) -> None:
        """Close our ends."""
        for end in (self.input, self.output, self.errors):
            if end is not None:
                end.close()


def open_command(options: StreamOptions) -> ProcessEnds:
    """Open the streams of a command."""
    if options.tty:
        ours, theirs = pty.openpty()
        terminal = StreamEnd(ours)
        return ProcessEnds((theirs, theirs, theirs), terminal, terminal)
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    ends = ProcessEnds((nothing, nothing, nothing), spare=nothing)
    child = list(ends.child)
    if options.stdin:
        child[0], writing = os.pipe()
        ends.input = StreamEnd(writing)
    if options.stdout:
        reading, child[1] = os.pipe()
        ends.output = StreamEnd(reading)
    if options.stderr:
        reading, child[2] = os.pipe()
        ends.errors = StreamEnd(reading)
    ends.child = (child[0], child[1], child[2])
    return ends


class MainStreams(Struct):
    """The streams of the main process of a container: what it writes goes into its log.

    Attributes:
        child: input, output and errors, for the process; the opener closes them once it has them.
        pipe: our end of its output.
        input: our end of its input, or of its terminal; None for a container without input.
    """

    child: tuple[int, int, int]
    pipe: OutputPipe
    input: StreamEnd | None = None

    def close_child(self) -> None:
        """Close the ends of the process."""
        for descriptor in set(self.child):
            os.close(descriptor)


def open_main(config: ContainerConfig, intake: OutputReader, log: ContainerLog) -> MainStreams:
    """Open the streams of the main process of a container."""
    if config.terminal:
        ours, theirs = pty.openpty()
        return MainStreams((theirs, theirs, theirs), intake.follow(ours, log), StreamEnd(os.dup(ours)))
    pipe, output = intake.open(log)
    if not config.stdin:
        return MainStreams((os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), output, output), pipe)
    reading, writing = os.pipe()
    return MainStreams((reading, output, output), pipe, StreamEnd(writing))


class ExecStreams:
    """A command that runs in a container: :class:`dra_kit.apiserver.pod_streams.CommandStreams`."""

    def __init__(self, ends: ProcessEnds, ended: asyncio.Future[int]) -> None:
        self._ends, self._ended = ends, ended

    async def read_output(self) -> bytes:
        """See :class:`dra_kit.apiserver.pod_streams.CommandStreams`."""
        return await self._ends.output.read(self._ended) if self._ends.output else b""

    async def read_errors(self) -> bytes:
        """See :class:`dra_kit.apiserver.pod_streams.CommandStreams`."""
        return await self._ends.errors.read(self._ended) if self._ends.errors else b""

    async def write(self, data: bytes) -> None:
        """See :class:`dra_kit.apiserver.pod_streams.CommandStreams`."""
        if self._ends.input is not None:
            await self._ends.input.write(data)

    def close_input(self) -> None:
        """See :class:`dra_kit.apiserver.pod_streams.CommandStreams`."""
        if self._ends.input is not None and self._ends.input is not self._ends.output:
            self._ends.input.close()

    def resize(self, width: int, height: int) -> None:
        """See :class:`dra_kit.apiserver.pod_streams.CommandStreams`."""
        if self._ends.output is not None:
            self._ends.output.resize(width, height)

    async def result(self) -> CommandResult:
        """See :class:`dra_kit.apiserver.pod_streams.CommandStreams`."""
        code = await asyncio.shield(self._ended)
        return CommandResult(128 - code if code < 0 else code)

    def close(self) -> None:
        """See :class:`dra_kit.apiserver.pod_streams.CommandStreams`."""
        self._ends.close()


class FailedCommand:
    """A command that could not be started: :class:`dra_kit.apiserver.pod_streams.CommandStreams`."""

    def __init__(self, message: str) -> None:
        self._message = message

    async def read_output(self) -> bytes:
        """See :class:`dra_kit.apiserver.pod_streams.CommandStreams`."""
        return b""

    async def read_errors(self) -> bytes:
        """See :class:`dra_kit.apiserver.pod_streams.CommandStreams`."""
        return b""

    async def write(self, data: bytes) -> None:
        """See :class:`dra_kit.apiserver.pod_streams.CommandStreams`."""

    def close_input(self) -> None:
        """See :class:`dra_kit.apiserver.pod_streams.CommandStreams`."""

    def resize(self, width: int, height: int) -> None:
        """See :class:`dra_kit.apiserver.pod_streams.CommandStreams`."""

    async def result(self) -> CommandResult:
        """See :class:`dra_kit.apiserver.pod_streams.CommandStreams`."""
        return CommandResult(None, self._message)

    def close(self) -> None:
        """See :class:`dra_kit.apiserver.pod_streams.CommandStreams`."""


class AttachedStreams:
    """The process of a container: :class:`dra_kit.apiserver.pod_streams.CommandStreams`.

    Its errors are part of its output, as they are in its log. A client that ends the input is detached, or ends the
    input of the process if that is for one client (``once``).
    """

    def __init__(self, log: ContainerLog, end: StreamEnd | None, *, once: bool) -> None:
        self._stack = ExitStack()
        self._tap: LogTap = self._stack.enter_context(log.tapped())
        self._input = end
        self._once = once
        self._ended = asyncio.Event()

    async def read_output(self) -> bytes:
        """See :class:`dra_kit.apiserver.pod_streams.CommandStreams`."""
        data = await self._tap.read()
        if not data:
            self._ended.set()
        return data

    async def read_errors(self) -> bytes:
        """See :class:`dra_kit.apiserver.pod_streams.CommandStreams`."""
        return b""

    async def write(self, data: bytes) -> None:
        """See :class:`dra_kit.apiserver.pod_streams.CommandStreams`."""
        if self._input is not None:
            await self._input.write(data)

    def close_input(self) -> None:
        """See :class:`dra_kit.apiserver.pod_streams.CommandStreams`."""
        if self._once and self._input is not None:
            self._input.close()
        else:
            self._tap.add(b"")

    def resize(self, width: int, height: int) -> None:
        """See :class:`dra_kit.apiserver.pod_streams.CommandStreams`."""
        if self._input is not None:
            self._input.resize(width, height)

    async def result(self) -> CommandResult:
        """See :class:`dra_kit.apiserver.pod_streams.CommandStreams`."""
        await self._ended.wait()
        return CommandResult()

    def close(self) -> None:
        """See :class:`dra_kit.apiserver.pod_streams.CommandStreams`."""
        self._stack.close()
        if self._once and self._input is not None:
            self._input.close()


class CommandPlace(Struct, frozen=True):
    """Where a command of a client runs.

    Attributes:
        join: the process whose namespaces it enters; empty for those of this process.
        environment: its environment.
        directory: its working directory.
    """

    join: str
    environment: Mapping[str, str]
    directory: Path


class ContainerCommands:
    """Commands of clients that run in the containers of one runtime.

    Args:
        processes: starts them; its callback has to call :meth:`ended`.
    """

    def __init__(self, processes: ReaperClient) -> None:
        self._processes = processes
        self._running: dict[str, tuple[str, asyncio.Future[int]]] = {}  # container and exit code, by identity

    async def start(
        self,
        container_id: str,
        place: CommandPlace,
        command: Sequence[str],
        streams: Sequence[int],
        *,
        terminal: bool,
    ) -> asyncio.Future[int]:
        """Start a command; return a future of its exit code, or of minus the number of the signal that ended it.

        To cancel the future kills the command.

        Raises:
            KubeletError: it cannot be started; the message is containerd's.
        """
        token = secrets.token_hex(32)
        if not command:
            raise _exec_error(token, "args must not be empty")
        identity, ended = f"exec-{token}", asyncio.get_running_loop().create_future()
        self._running[identity] = container_id, ended
        ended.add_done_callback(lambda done: self._processes.kill(identity) if done.cancelled() else None)
        try:
            result = await self._processes.start(
                identity,
                command,
                executable=command[0],
                environment=place.environment,
                directory=place.directory,
                streams=streams,
                join=place.join,
                terminal=terminal,
            )
        except BaseException:  # such as a client that has left: nothing else ends the command
            self._running.pop(identity, None)
            ended.cancel()
            raise
        if result.number:
            self._running.pop(identity, None)
            cause = start_failure(command[0], result).removeprefix(START_LAYERS)
            raise _exec_error(token, f"unable to start container process: {cause}")
        return ended

    def ended(self, identity: str, code: int) -> None:
        """Note that a process has exited; a no-op if it is not one of these commands."""
        known = self._running.pop(identity, None)
        if known is not None and not known[1].done():
            known[1].set_result(code)

    def kill(self, container_id: str) -> None:
        """Kill the commands in a container that has ended."""
        for identity, (container, _) in self._running.items():
            if container == container_id:
                self._processes.kill(identity)


def _exec_error(token: str, cause: str) -> KubeletError:
    failed = f"OCI runtime exec failed: exec failed: {cause}"
    return KubeletError(f'failed to exec in container: failed to start exec "{token}": {failed}')


class StreamRuntime(Protocol):
    """The runtime of a node, as far as clients of its containers need it."""

    def has_sandbox(self, pod_uid: str) -> bool:
        """Return whether the pod runs."""
        ...

    def containers(self, pod_uid: str) -> Sequence[ContainerStatus]:
        """Return the containers of a pod, oldest first."""
        ...

    async def exec(
        self, container_id: str, command: Sequence[str], streams: Sequence[int], *, terminal: bool
    ) -> asyncio.Future[int]:
        """Start a command in a running container; return a future of its exit code."""
        ...

    def attach(self, container_id: str) -> AttachedStreams:
        """Connect to the process of a running container."""
        ...

    async def dial(self, pod_uid: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a port of a pod."""
        ...


class PodSessions:
    """Clients of all containers of a cluster: :class:`dra_kit.apiserver.pod_streams.PodStreams`.

    Args:
        runtimes: returns those of the nodes that there are now.
    """

    def __init__(self, runtimes: Callable[[], Iterable[StreamRuntime]]) -> None:
        self._runtimes = runtimes

    def find(self, pod: ObjectView, container: str = "", *, attach: bool = False) -> None:
        """See :class:`dra_kit.apiserver.pod_streams.PodStreams`."""
        if container:
            self._running(pod, container, attach=attach)
        else:
            self._runtime(pod)

    async def exec(self, pod: Object, options: StreamOptions) -> ExecStreams | FailedCommand:
        """See :class:`dra_kit.apiserver.pod_streams.PodStreams`."""
        runtime, status = self._running(pod, options.container)
        ends = open_command(options)
        try:
            ended = await runtime.exec(status.id, options.command, ends.child, terminal=options.tty)
        except KubeletError as error:
            ends.close()
            return FailedCommand(str(error))
        except BaseException:
            ends.close()
            raise
        finally:
            ends.close_child()
        return ExecStreams(ends, ended)

    async def attach(self, pod: Object, options: StreamOptions) -> AttachedStreams:
        """See :class:`dra_kit.apiserver.pod_streams.PodStreams`."""
        runtime, status = self._running(pod, options.container, attach=True)
        return runtime.attach(status.id)

    async def dial(self, pod: Object, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """See :class:`dra_kit.apiserver.pod_streams.PodStreams`."""
        return await self._runtime(pod).dial(pod["metadata"]["uid"], port)

    def _runtime(self, pod: ObjectView) -> StreamRuntime:
        metadata = pod["metadata"]
        for runtime in self._runtimes():
            if runtime.has_sandbox(metadata["uid"]):
                return runtime
        raise PodStreamUnavailable(f'pod not found ("{metadata["name"]}_{metadata["namespace"]}")')

    def _running(
        self, pod: ObjectView, container: str, *, attach: bool = False
    ) -> tuple[StreamRuntime, ContainerStatus]:
        metadata = pod["metadata"]
        for runtime in self._runtimes():
            for status in reversed(runtime.containers(metadata["uid"])):
                if status.name == container and status.running:
                    return runtime, status
        missing = f'container not found ("{container}")'
        if attach:
            missing = f"container {container} not found in pod {metadata['name']}_{metadata['namespace']}"
        raise PodStreamUnavailable(missing)
