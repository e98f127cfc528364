"""Mounts, network and host name of each simulated node, and where its files and ports are for the sandbox."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import shutil
import socket
import stat
import subprocess
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

from msgspec import Struct, field

from dra_kit.errors import ConfigurationError, KubeletError, SandboxError
from dra_kit.kubelet.sockets import SOCKET_PATH_MAX
from dra_kit.process.connections import relay
from dra_kit.sandbox.containers.processes import (
    NetworkFile,
    NetworkNamespace,
    PodNetwork,
    ReaperClient,
    enter_arguments,
    probe_arguments,
    socket_in,
)
from dra_kit.text import did_you_mean

logger: logging.Logger = logging.getLogger(__name__)
EVERY_NODE: Final = "*"
"""Stands for every node where files are given by the name of the node."""
KUBELET: Final = "/var/lib/kubelet"
"""The kubelet's directory, as programs on a node know it."""
CDI: Final = "/var/run/cdi"
_NRI: Final = "/var/run/nri"
_STATIC_CDI: Final = "/etc/cdi"
_BLOCK: Final = 1 << 16
SYSFS: Final = "/sys"
LOCALHOST: Final = "127.0.0.1"
"""The address of nodes that share the network of this machine."""
_ALIASES: Final = {"/run": "/var/run"}
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
"""Both directions of a connection."""
Connect = Callable[[], Awaitable[Streams]]
"""Opens a connection."""


class NodePlaces(Struct, frozen=True):
    """Where the directories of a node are on this machine.

    Attributes:
        directory: what its programs know as /var/lib/kubelet.
        cdi: what they know as /var/run/cdi.
    """

    directory: Path
    cdi: Path

    @property
    def static_cdi(self) -> Path:
        """What programs of the node know as /etc/cdi: CDI files that survive a boot."""
        return self.directory / "etc-cdi"

    def outside(self, path: str | Path) -> Path:
        """Return the path on this machine of a file that a program of the node names; others are the same."""
        found = PurePosixPath(os.path.normpath(path))
        if found.is_relative_to(self.directory) or found.is_relative_to(self.cdi):
            return Path(path)
        for alias, name in _ALIASES.items():
            if found.is_relative_to(alias):
                found = PurePosixPath(name) / found.relative_to(alias)
        for inside, place in ((KUBELET, self.directory), (CDI, self.cdi), (_STATIC_CDI, self.static_cdi)):
            if found.is_relative_to(inside):
                return place / found.relative_to(inside)
        return Path(path)


class NodeNamespace:
    """A node's own mounts, network and host name, which its programs have; they end with the node's runtime.

    There, the node's directories are at /var/lib/kubelet, /var/run/cdi and /etc/cdi, and its NRI socket is at
    /var/run/nri/nri.sock. They are the same files as outside. The network has a loopback interface only; ports of
    this machine that are forwarded can be reached at 127.0.0.1.

    Ports of its pods can be reached from this machine at the address of the node.

    Args:
        places: the directories of the node.
        name: of the node, and its host name.
        address: an address of this machine's loopback interface, which no other node has.
        files: folders with files of the node, by the path at which its programs see them. The node gets copies: see
            :meth:`dra_kit.sandbox.containers.mounts.MountNamespace.lay` for what is different in /dev and /proc.
        containers: a runtime of containers runs in it.
        ports: ports of this machine that the node's programs reach, such as that of the API server.
    """

    def __init__(
        self,
        places: NodePlaces,
        files: Mapping[str, Path],
        ports: Sequence[int] = (),
        *,
        name: str,
        address: str = LOCALHOST,
        containers: bool = False,
    ) -> None:
        self._name = name
        self.address: str = address
        self._containers = containers
        self._places = places
        self._files = dict(files)
        self._ports = tuple(ports)
        self._processes: ReaperClient | None = None
        self._servers: list[asyncio.Server] = []
        self._connections = RelayedConnections()
        self._forwarding: asyncio.Task[None] | None = None
        self._exposed: dict[int, asyncio.Server | None] = {}
        self._exposing: set[asyncio.Task[None]] = set()
        self._root: int | None = None

    @property
    def order(self) -> Mapping[str, Any]:
        """What the node's reaper mounts: see :func:`dra_kit.sandbox.containers.mounts.enter_node`."""
        directory = self._places.directory
        return {
            "directory": str(directory / "root"),
            "hostname": self._name,
            "trees": [[str(self._copy(path)), path] for path in sorted(self._files)],
            "binds": [
                [str(directory), KUBELET],
                [str(self._places.cdi), CDI],
                [str(self._places.static_cdi), _STATIC_CDI],
                [str(directory / "nri"), _NRI],
            ],
            "shared": [KUBELET],
            "containers": self._containers,
        }

    def prepare(self) -> None:
        """Create what is mounted.

        Raises:
            ConfigurationError: the node's files cannot be copied.
        """
        directory = self._places.directory
        for place in (directory / "root", directory / "nri", self._places.static_cdi):
            place.mkdir(exist_ok=True)
        with suppress(FileExistsError):
            (directory / "nri" / "nri.sock").symlink_to(f"{KUBELET}/nri.sock")
        for path, folder in self._files.items():
            try:
                shutil.copytree(folder, self._copy(path), symlinks=True, copy_function=_copy_file)
            except (OSError, shutil.Error) as error:
                raise ConfigurationError(
                    f"--node-files {path}={folder}: the files cannot be copied: {error}; make them readable"
                ) from None

    async def open(self, processes: ReaperClient) -> None:
        """Enter the namespaces with a reaper, whose processes are in them from now on.

        Raises:
            SandboxError: this machine does not allow it.
        """
        self._processes = processes
        self._root = os.open(self._places.directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            await processes.enter()
        except SandboxError as error:
            raise namespaces_impossible(str(error)) from None
        if self._forwarding is not None:
            await self._forwarding

    def entered(self) -> None:
        """Forward ports into the namespaces, which are new."""
        former = self._forwarding
        self._forwarding = asyncio.get_running_loop().create_task(self._forward(former))

    async def close(self) -> None:
        """Stop forwarding; the namespaces end with the reaper."""
        tasks = [*self._exposing, *([self._forwarding] if self._forwarding else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._connections.close()
        for server in (*self._servers, *self._exposed.values()):
            if server is not None:
                server.close()
        self._servers.clear()
        self._exposed.clear()
        root, self._root = self._root, None
        if root is not None:
            os.close(root)

    def enter(self, arguments: Sequence[str]) -> list[str]:
        """Return a command that runs another one in the namespaces of the node.

        Raises:
            SandboxError: there are none, because their holder was killed.
        """
        process = self._processes.process if self._processes else None
        if process is None:
            raise SandboxError("the namespaces of the node are gone: the process that held them was killed; try again")
        return enter_arguments(process, arguments)

    def outside(self, path: str | Path) -> Path:
        """Return a path on this machine that leads to a file which a program of the node names.

        The path of a socket below the node's directory is short enough for its address, if it is so inside.
        """
        found = self._places.outside(path)
        if len(os.fsencode(found)) > SOCKET_PATH_MAX and self._root is not None:
            with suppress(ValueError):
                return Path(f"/proc/self/fd/{self._root}") / found.relative_to(self._places.directory)
        is_shared = any(found.is_relative_to(place) for place in (self._places.directory, self._places.cdi))
        if not is_shared and found.is_absolute() and self._processes is not None and self._processes.process:
            return Path(f"/proc/{self._processes.process}/root{os.path.realpath(found)}")
        return found

    async def connect(self, port: int, host: str = LOCALHOST, *, network: str = "") -> socket.socket:
        """Return a connection to a port in the network of the node, or in that of a pod, given by its path.

        Raises:
            OSError: no program listens there.
        """
        found = await self._open_socket(network)
        try:
            await asyncio.get_running_loop().sock_connect(found, (host, port))
        except BaseException:
            found.close()
            raise
        return found

    async def open_network(self) -> PodNamespace:
        """Return a new network for a pod, in which its containers reach the same ports of this machine.

        Raises:
            OSError: the kernel forbids it.
        """
        if self._processes is None:
            raise OSError(errno.EIO, "the namespaces of the node are not open yet")
        path, names = await self._processes.network()
        return PodNamespace(self, self._processes, path, names)

    def expose(self, ports: Collection[int], dial: Callable[[int], Awaitable[Streams]]) -> None:
        """Let clients of this machine reach these ports at the address of the node, and no others.

        Args:
            ports: those of pods.
            dial: connects with a port of a pod.
        """
        for port in self._exposed.keys() - set(ports):
            server = self._exposed.pop(port)
            if server is not None:
                server.close()
        for port in set(ports) - self._exposed.keys():
            self._exposed[port] = None
            task = asyncio.get_running_loop().create_task(self._expose(port, partial(dial, port)))
            self._exposing.add(task)
            task.add_done_callback(self._exposing.discard)

    async def _expose(self, port: int, connect: Connect) -> None:
        try:
            server = await asyncio.start_server(self._connections.to(connect), self.address, port, limit=_BLOCK)
        except OSError as error:
            logger.warning(
                "port %s of pods cannot be reached from this machine at %s: %s",
                port, self.address, (error.strerror or str(error)).lower(),
            )  # fmt: skip
            return
        if port in self._exposed:
            self._exposed[port] = server
        else:  # its pod is gone already
            server.close()

    async def forward(self, network: str = "") -> list[asyncio.Server]:
        """Forward the ports of this machine into the network of the node, or into that of a pod.

        Raises:
            OSError: a program listens at one already, or the network is gone.
        """
        servers: list[asyncio.Server] = []
        try:
            for port in self._ports:
                listening = await self._open_socket(network)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind((LOCALHOST, port))
                connect = partial(asyncio.open_connection, LOCALHOST, port, limit=_BLOCK)
                servers.append(await asyncio.start_server(self._connections.to(connect), sock=listening, limit=_BLOCK))
        except BaseException:
            for server in servers:
                server.close()
            raise
        return servers

    async def look(self, path: str, create: str, mode: int) -> int:
        """Return the mode of a path of the node; see :meth:`dra_kit.sandbox.containers.processes.ReaperClient.look`."""
        if self._processes is None:
            raise SandboxError("the namespaces of the node are not open yet")
        return await self._processes.look(path, create, mode)

    def _copy(self, path: str) -> Path:
        return self._places.directory / "files" / path.strip("/").replace("/", "-")

    async def _open_socket(self, network: str = "") -> socket.socket:
        if self._processes is None:
            raise SandboxError("the namespaces of the node are not open yet")
        return await self._processes.open_socket(socket.AF_INET, socket.SOCK_STREAM, network)

    async def _forward(self, former: asyncio.Task[None] | None) -> None:
        if former is not None:
            await asyncio.wait([former])
        for server in self._servers:
            server.close()
        self._servers.clear()
        self._servers.extend(await self.forward())


class PodNamespace:
    """A network namespace of a pod, in the namespaces of its node; with them, it ends."""

    is_real = True

    def __init__(self, node: NodeNamespace, processes: ReaperClient, path: str, interfaces: tuple[str, ...]) -> None:
        self.path: Path = Path(path)
        self._node, self._processes = node, processes
        self._from_start, self._now = interfaces, interfaces
        self._holder = processes.process
        self._servers: list[asyncio.Server] = []
        self._refreshing = asyncio.Lock()

    @property
    def is_lost(self) -> bool:
        """See :class:`dra_kit.sandbox.containers.processes.PodNetwork`."""
        return self._processes.process != self._holder

    async def refresh(self) -> None:
        """See :class:`dra_kit.sandbox.containers.processes.PodNetwork`.

        Raises:
            OSError: it is gone, because the process that held it was killed.
        """
        async with self._refreshing:
            _, self._now = await self._processes.network(str(self.path))
            if self.interfaces() and not self._servers:
                self._servers = await self._node.forward(str(self.path))

    def interfaces(self) -> tuple[str, ...]:
        """See :class:`dra_kit.sandbox.containers.processes.PodNetwork`."""
        return tuple(name for name in self._now if name not in self._from_start)

    def close(self) -> None:
        """See :class:`dra_kit.sandbox.containers.processes.PodNetwork`."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        self._processes.leave_network(str(self.path))


class PodNetworks:
    """The networks of the pods of a node, by the ID of their sandbox.

    Args:
        directory: for files that stand for networks.
        namespace: of the node; None if its containers share the network of this machine.
        real: give each pod a network namespace, instead of a file that stands for it.
    """

    def __init__(self, directory: Path, namespace: NodeNamespace | None, *, real: bool) -> None:
        self._directory, self._namespace, self._real = directory, namespace, real
        self._networks: dict[str, PodNetwork] = {}

    async def open(self, sandbox: str, *, is_used: bool) -> Path:
        """Give a pod's sandbox a network, and return what hooks get as its network namespace.

        Args:
            sandbox: its ID.
            is_used: there are hooks that may move interfaces; without them, a file will do.

        Raises:
            KubeletError: the kernel forbids it.
        """
        try:
            if not self._real or not is_used:
                network: PodNetwork = NetworkFile(self._directory / sandbox)
            elif self._namespace is None:
                network = NetworkNamespace()
            else:
                network = await self._namespace.open_network()
        except (OSError, SandboxError) as error:
            reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
            raise KubeletError(
                f"failed to setup network for sandbox: failed to create network namespace: {reason}"
            ) from None
        self._networks[sandbox] = network
        return network.path

    async def refresh(self, sandbox: str) -> None:
        """Find out which interfaces hooks have moved into the network of a sandbox.

        Raises:
            OSError: the network is gone.
        """
        if network := self._networks.get(sandbox):
            await network.refresh()

    def interfaces(self, sandbox: str) -> tuple[str, ...]:
        """Return the names of the interfaces that hooks moved into the network of a sandbox."""
        network = self._networks.get(sandbox)
        return network.interfaces() if network else ()

    def is_lost(self, sandbox: str) -> bool:
        """Return whether the network of a sandbox is gone, because the process that held it was killed."""
        network = self._networks.get(sandbox)
        return network is not None and network.is_lost

    def path(self, sandbox: str) -> str:
        """Return the network namespace in which containers run; empty for that of their node."""
        network = self._networks.get(sandbox)
        return str(network.path) if network and network.is_real and network.interfaces() else ""

    async def dial(self, sandbox: str, port: int, others: Iterable[str] = ()) -> Streams:
        """Connect to a port in the network of a sandbox, or in the first of others that accepts.

        Args:
            sandbox: its ID.
            port: where a container listens.
            others: networks in which containers of the sandbox run, as :meth:`path` returned them then: an interface
                may have come after a container had started.

        Raises:
            OSError: the connection is refused.
        """
        refusals: list[OSError] = []
        for path in dict.fromkeys((self.path(sandbox), *others)):
            try:
                return await self._dial(path, port)
            except OSError as error:
                refusals.append(error)
        raise refusals[0]

    async def _dial(self, path: str, port: int) -> Streams:
        if self._namespace is not None:
            return await asyncio.open_connection(sock=await self._namespace.connect(port, network=path))
        connection = socket_in(path)
        try:
            await asyncio.get_running_loop().sock_connect(connection, (LOCALHOST, port))
            return await asyncio.open_connection(sock=connection)
        except BaseException:
            connection.close()
            raise

    def close(self, sandbox: str = "") -> None:
        """Remove the network of a sandbox; all of them, if it is not given."""
        for name in [sandbox] if sandbox else list(self._networks):
            if network := self._networks.pop(name, None):
                network.close()


_ACCEPTS: Final = 3
"""Iterations of the event loop from the arrival of a connection until its server has set it up; asyncio never closes a
connection whose server is closed meanwhile."""


class RelayedConnections:
    """Connections that are passed on to others, until they are closed."""

    def __init__(self) -> None:
        self._open: set[asyncio.Task[None]] = set()
        self._closed = False

    def to(self, connect: Connect) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        """Return what a server calls for each connection, which is passed on to one that ``connect`` opens."""

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self._closed:
                writer.transport.abort()
                return
            task = asyncio.get_running_loop().create_task(self._pass_on(connect, reader, writer))
            self._open.add(task)
            task.add_done_callback(partial(self._ended, writer))

        return accept

    def _ended(self, writer: asyncio.StreamWriter, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        writer.transport.abort()  # the task may have been cancelled before it began

    async def close(self) -> None:
        """Break all of them, and those that still come; before their server is closed."""
        self._closed = True
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)
        for _ in range(_ACCEPTS):
            await asyncio.sleep(0)

    async def _pass_on(self, connect: Connect, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one on until both sides have closed it."""
        try:
            there, away = await connect()
        except (OSError, SandboxError):  # as if nothing listened here
            return
        try:
            await relay((reader, writer), (there, away))
        finally:
            away.transport.abort()


def namespaces_impossible(reason: str) -> SandboxError:
    """Return the error of a machine that does not let this user create namespaces."""
    return SandboxError(
        f"nodes cannot have namespaces of their own here: {reason}; run the sandbox as root, allow user namespaces "
        "(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
        "kernel.apparmor_restrict_unprivileged_userns), or use --no-node-namespaces and give programs the paths of "
        "the node's directories as arguments"
    )


def node_addresses(number: int) -> list[str]:
    """Return an address of the loopback interface for each node of a sandbox, which others hardly use."""
    second, third = 1 + secrets.randbelow(254), secrets.randbelow(256)
    return [f"127.{second}.{third}.{node}" for node in range(1, number + 1)]


async def namespaces_refused() -> SandboxError | None:
    """Return why this machine does not let this user create namespaces of nodes; None if it does."""
    probe = await asyncio.create_subprocess_exec(
        *probe_arguments(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await probe.communicate()
    if probe.returncode == 0:
        return None
    return namespaces_impossible(output.decode(errors="replace").strip() or f"exit code {probe.returncode}")


def _copy_file(source: str, target: str) -> None:
    """Copy a file of a node; a named pipe stands for a device file, an empty file for all that is not regular."""
    mode = Path(source).stat().st_mode
    if stat.S_ISREG(mode):
        shutil.copy2(source, target)
    elif stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        os.mkfifo(target)
    else:
        Path(target).touch()


class NodeFiles(Struct, frozen=True):
    """Folders with files of nodes, by the name of the node and the path at which programs see them."""

    folders: Mapping[str, Mapping[str, Path]] = field(default_factory=dict)

    def of(self, node: str) -> dict[str, Path]:
        """Return those of a node; ``{node}`` in the path of a folder is its name."""
        given = {**self.folders.get(EVERY_NODE, {}), **self.folders.get(node, {})}
        return {path: Path(str(folder).replace("{node}", node)) for path, folder in given.items()}

    def sysfs(self, node: str) -> str:
        """Return what stands for /sys on a node without namespaces: the folder itself, or that of this machine."""
        return str(self.of(node).get(SYSFS, SYSFS))

    def check_without_namespaces(self) -> None:
        """Check that programs without namespaces can be given the files: as ``{sysfs}``.

        Raises:
            ConfigurationError: there are others.
        """
        for path, folder in (item for given in self.folders.values() for item in given.items()):
            if path != SYSFS:
                raise ConfigurationError(
                    f"--node-files {path}={folder}: without node namespaces, programs see the files of this machine at "
                    f"{path}; leave out --no-node-namespaces. Only that of /sys can be given to --plugin, by {{sysfs}}"
                )

    def check(self, nodes: Sequence[str]) -> None:
        """Check them.

        Raises:
            ConfigurationError: a node or a folder does not exist.
        """
        for node in self.folders:
            if node != EVERY_NODE and node not in nodes:
                hint = did_you_mean(node, nodes) or ";"
                raise ConfigurationError(
                    f"--node-files: unknown node {node!r}{hint} nodes of the sandbox: {', '.join(nodes)}"
                )
        for node in nodes:
            for path, folder in self.of(node).items():
                if not folder.is_dir():
                    raise ConfigurationError(
                        f"--node-files {path}={folder}: {folder} is not a directory; name a directory with the files "
                        f"that programs of {node} see in {path}"
                    )


def parse_node_files(texts: Sequence[str]) -> NodeFiles:
    """Return the folders of ``[NODE:]PATH=DIR`` each.

    Raises:
        ConfigurationError: a text is not of that form.
    """
    found: dict[str, dict[str, Path]] = {}
    for text in texts:
        name, equals, folder = text.partition("=")
        node, colon, path = name.rpartition(":")
        path = os.path.normpath(path) if path else ""
        if not equals or not folder or (colon and not node) or not path.startswith("/") or path in {"/", "//"}:
            raise ConfigurationError(
                f"--node-files {text}: it is not of the form [NODE:]PATH=DIR with an absolute path; write it as "
                "/sys=fixtures/sys or node-1:/dev=fixtures/dev"
            )
        found.setdefault(node or EVERY_NODE, {})[path] = Path(folder).absolute()
    return NodeFiles(found)
