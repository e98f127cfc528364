"""Mount, network and UTS namespaces, made and filled in the process that enters them: the standard library only.

The reaper uses it, which has nothing else of dra-kit in its process. What a process mounts here is seen by it and by
the processes that it starts; it ends with the last of them.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

NEW_NETWORK: Final = 0x40000000
NEW_MOUNTS: Final = 0x20000
NEW_HOSTNAME: Final = 0x4000000
"""A UTS namespace."""
_NEW_USERS: Final = 0x10000000
_REMOUNT: Final = 1 << 5
_BIND: Final = 1 << 12
_MOVE: Final = 1 << 13
_RECURSIVE: Final = 1 << 14
_UNBINDABLE: Final = 1 << 17
_PRIVATE: Final = 1 << 18
_SLAVE: Final = 1 << 19
_SHARED: Final = 1 << 20
_FLAGS: Final[Mapping[str, int]] = {
    "ro": os.ST_RDONLY,
    "nosuid": os.ST_NOSUID,
    "nodev": os.ST_NODEV,
    "noexec": os.ST_NOEXEC,
    "noatime": os.ST_NOATIME,
    "nodiratime": os.ST_NODIRATIME,
    "relatime": os.ST_RELATIME,
}
_NOT_DATA: Final = frozenset(
    ("bind", "rbind", "rw", "suid", "dev", "exec", "atime", "diratime", "norelatime", "defaults", "private", "rprivate",
     "slave", "rslave", "shared", "rshared", "unbindable", "runbindable")
)  # fmt: skip
"""Options that have no text for a file system."""
_KEPT: Final = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC
"""Flags of a file system that a user namespace must not drop."""
_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS: Final[Mapping[str, str]] = {
    "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}  # fmt: skip
_IN_DEVICES: Final = ("pts", "shm", "mqueue")
_ROOT: Final = Path("/")
_DEV: Final = Path("/dev")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_PROC: Final = Path("/proc")
_GET_FLAGS: Final = 0x8913  # SIOCGIFFLAGS
_SET_FLAGS: Final = 0x8914
_UP: Final = 1
_HOSTNAME_MAX: Final = 64  # bytes, <linux/utsname.h>
_LOOPBACK: Final = b"lo"
_MOST_INTERFACES: Final = 1000


class MountError(OSError):
    """A mount that failed; ``source`` and ``target`` are its paths, ``is_device`` says whether it is a device file."""

    def __init__(self, number: int, source: str, target: str, *, is_device: bool = False) -> None:
        super().__init__(number, os.strerror(number), target)
        self.source = source
        self.target = target
        self.is_device = is_device


def check(result: int) -> None:
    """Raise the error of a call of the C library, if it failed."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def unshare(libc: ctypes.CDLL, kinds: int, *, user: int | None = None, group: int | None = None) -> None:
    """Enter new namespaces.

    A user without the right to it enters a user namespace, in which it is ``user`` and ``group``; by default the same.
    root does not: there, it would lose its rights over other users' files.

    Raises:
        OSError: the kernel forbids it.
    """
    own_user, own_group = os.getuid(), os.getgid()
    if not libc.unshare(kinds):
        return
    if own_user == 0:
        check(-1)
    check(libc.unshare(_NEW_USERS | kinds))
    user, group = own_user if user is None else user, own_group if group is None else group
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {own_user} 1"),
        ("gid_map", f"{group} {own_group} 1"),
    ):
        Path("/proc/self", name).write_text(text)


def enter_namespaces(libc: ctypes.CDLL, process: int) -> None:
    """Enter the user, mount, network and UTS namespaces of a process, where they are others than the own ones.

    Raises:
        OSError: the process is gone, or the kernel forbids it.
    """
    opened = {}
    kinds = (("user", _NEW_USERS), ("mnt", NEW_MOUNTS), ("net", NEW_NETWORK), ("uts", NEW_HOSTNAME))
    for name, kind in kinds:
        descriptor = os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        if os.fstat(descriptor).st_ino != Path("/proc/self/ns", name).stat().st_ino:
            opened[descriptor] = kind
    for descriptor, kind in opened.items():  # that of users first: it gives the right to enter the others
        check(libc.setns(descriptor, kind))
        os.close(descriptor)


def raise_loopback() -> None:
    """Switch the loopback interface of the network namespace on.

    Raises:
        OSError: the kernel forbids it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        flags = struct.unpack("16sh14x", fcntl.ioctl(control, _GET_FLAGS, struct.pack("16sh14x", _LOOPBACK, 0)))[1]
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sh14x", _LOOPBACK, flags | _UP))


def interface_names() -> list[str]:
    """Return the names of interfaces in the network namespace, a thousand at most, in readable characters."""
    return [os.fsencode(name).decode(errors="replace") for _, name in socket.if_nameindex()[:_MOST_INTERFACES]]


def set_hostname(name: str) -> None:
    """Set the host name of the UTS namespace; what is too long for it is cut off.

    Raises:
        OSError: the kernel forbids it.
    """
    socket.sethostname(name[:_HOSTNAME_MAX])


class MountNamespace:
    """The mounts of this process, which is in a mount namespace that it has just entered.

    A path that does not exist is made: its nearest folder becomes one in memory, with all that is in it today, so that
    what the process creates in that very folder is its own.

    Args:
        place: an existing folder, on which a new root folder is put together if it is needed.
        shares: what is mounted below a folder that is shared is seen in the namespace from which this one was copied.
    """

    def __init__(self, libc: ctypes.CDLL, place: str | Path, *, shares: bool = False) -> None:
        self._libc = libc
        self._place = place
        self._own: set[int] = set()  # device numbers of the folders in memory
        if not shares:
            self._mount("none", "/", "", _RECURSIVE | _SLAVE)

    def bind(self, source: str | Path, target: str | Path, options: Iterable[str] = ()) -> None:
        """Mount a file or folder with all that is mounted in it.

        Raises:
            OSError: the kernel forbids it, or a path leads nowhere.
        """
        options = tuple(options)
        path = Path(os.path.realpath(target))
        # the source may be below a folder that is replaced to make the path
        descriptor = os.open(source, os.O_PATH | os.O_CLOEXEC)
        try:
            self._make(path, folder=stat.S_ISDIR(os.fstat(descriptor).st_mode))
            self._mount(f"/proc/self/fd/{descriptor}", path, "", _BIND | _RECURSIVE)
        finally:
            os.close(descriptor)
        flags = sum({_FLAGS[option] for option in options if option in _FLAGS})
        if flags:
            kept = os.statvfs(path).f_flag & _KEPT
            self._mount("none", path, "", _REMOUNT | _BIND | flags | kept)

    def file_system(self, kind: str, target: str | Path, options: Iterable[str] = ()) -> None:
        """Mount a new file system, such as a ``tmpfs``.

        Raises:
            OSError: the kernel forbids it, or does not know it.
        """
        options = tuple(options)
        path = Path(os.path.realpath(target))
        self._make(path, folder=True)
        data = ",".join(option for option in options if option not in _FLAGS and option not in _NOT_DATA)
        self._mount(kind, path, kind, sum({_FLAGS[option] for option in options if option in _FLAGS}), data)

    def share(self, target: str) -> None:
        """Let mounts below a folder reach those that mount this folder."""
        self._mount("none", target, "", _SHARED)

    def make(self, target: str, *, folder: bool, mode: int) -> None:
        """Create a file or folder with a mode, unless it exists.

        Raises:
            OSError: it cannot be created there.
        """
        path = Path(os.path.realpath(target))
        if not path.exists():
            self._make(path, folder=folder)
            path.chmod(mode)

    def lay(self, tree: Path, target: Path) -> None:
        """Show a tree of files at a path.

        It replaces what is there, except that /dev keeps the devices that every program needs, and that the files of
        /proc, whose processes change, are replaced one by one. A named pipe becomes a device that is like /dev/null,
        which needs no right to make device files; in /dev, an empty file does, too.

        Raises:
            OSError: the kernel forbids it; in /proc, nothing can be created.
        """
        self._make_null_devices(tree, empty_files=target == _DEV or _DEV in target.parents)
        if target == _DEV:
            self._fill_devices(tree)
            self.bind(tree, target)
        elif target == _PROC or _PROC in target.parents:
            self.lay_over(tree, target)
        else:
            self.bind(tree, target)

    def suit_containers(self) -> None:
        """Give a runtime of containers its own shared memory, for its locks, and cgroups that it understands.

        Raises:
            OSError: the kernel forbids it.
        """
        self.file_system("tmpfs", "/dev/shm", ("mode=1777",))  # noqa: S108 - a new one
        if not (_CGROUPS / "cgroup.controllers").exists():  # those of version 1, or of both
            try:
                self.file_system("cgroup2", _CGROUPS)
            except OSError:  # only root may
                self.file_system("tmpfs", _CGROUPS, ("mode=755",))

    def own_devices(self) -> None:
        """Give /dev those devices alone that every program needs.

        Raises:
            OSError: the kernel forbids it.
        """
        before = os.open(_DEV, os.O_PATH | os.O_DIRECTORY)
        self._mount("tmpfs", _DEV, "tmpfs", os.ST_NOSUID, "mode=755")
        self._own.add(_DEV.stat().st_dev)
        self._fill_devices(_DEV, Path(f"/proc/self/fd/{before}"))
        os.close(before)

    def device(self, path: str, source: str, numbers: tuple[str, int, int] | None, mode: int | None) -> bool:
        """Put a device file at a path; return whether it is one, and not an empty file that stands for it.

        Args:
            path: where.
            source: the device file of this machine, which may be at the path already.
            numbers: type, major and minor number, if that file does not exist; root can make it.
            mode: permissions; None for those of the source, or 0o666.

        Raises:
            OSError: that file does not exist, and numbers are not given; or the kernel forbids it.
        """
        if Path(source).exists():
            if not _is_same(source, path):
                self.bind(source, path)
            return True
        if numbers is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        target = Path(os.path.realpath(path))
        self._make(target.parent, folder=True)
        if target.parent.stat().st_dev not in self._own:
            self._hollow(target.parent)
        kind, major, minor = numbers
        kinds = {"b": stat.S_IFBLK, "p": stat.S_IFIFO}
        permissions = 0o666 if mode is None else mode
        try:
            os.mknod(target, kinds.get(kind, stat.S_IFCHR) | permissions, os.makedev(major, minor))
        except PermissionError:
            target.touch()
            target.chmod(permissions)
            return False
        target.chmod(permissions)
        return True

    def _make_null_devices(self, tree: Path, *, empty_files: bool) -> None:
        for folder, _, names in os.walk(tree):
            for path in (Path(folder) / name for name in names):
                status = path.lstat()
                is_empty = stat.S_ISREG(status.st_mode) and not status.st_size
                if stat.S_ISFIFO(status.st_mode) or (empty_files and is_empty):
                    self._mount(_DEV / "null", path, "", _BIND)

    def _fill_devices(self, folder: Path, source: Path = _DEV) -> None:
        for name in _DEVICES:
            if (source / name).exists():
                (folder / name).touch()
                self._mount(source / name, folder / name, "", _BIND)
        for name in _IN_DEVICES:
            if (source / name).is_dir():
                (folder / name).mkdir(exist_ok=True)
                self._mount(source / name, folder / name, "", _BIND | _RECURSIVE)
        for name, leads_to in _LINKS.items():
            with suppress(FileExistsError):
                (folder / name).symlink_to(leads_to)

    def lay_over(self, tree: Path, target: Path) -> None:
        """Show the files of a tree in a folder, in addition to what is there.

        Raises:
            OSError: the kernel forbids it.
        """
        for entry in sorted(tree.iterdir()):
            there = target / entry.name
            if entry.is_dir() and there.is_dir():
                self.lay_over(entry, there)
            elif entry.is_symlink() and not os.path.lexists(there):
                self._make(there, folder=False)
                there.unlink()
                there.symlink_to(entry.readlink())
            elif entry.exists():
                self.bind(entry, there)

    def _make(self, path: Path, *, folder: bool) -> None:
        if path.exists():
            return
        parent = next(found for found in path.parents if found.exists())
        if not parent.is_dir():
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        if parent == _PROC:
            raise OSError(errno.EPERM, "nothing can be created in /proc", str(path))
        if parent.stat().st_dev not in self._own:
            self._hollow(parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if folder else path.touch()

    def _hollow(self, folder: Path) -> None:
        """Make a folder one in memory that has the same entries."""
        before, mode = os.open(folder, os.O_PATH | os.O_DIRECTORY), folder.stat().st_mode & 0o7777
        entries = []
        for entry in folder.iterdir():
            with suppress(FileNotFoundError):  # another process has just removed it
                entries.append((entry.name, entry.is_dir(), entry.readlink() if entry.is_symlink() else None))
        new = Path(self._place) if folder == _ROOT else folder
        flags = os.ST_NOSUID | (0 if folder == _DEV or _DEV in folder.parents else os.ST_NODEV)
        self._mount("tmpfs", new, "tmpfs", flags, f"mode={mode:o}")
        if folder == _ROOT:  # so that it is not in itself, when the folder around it is bound
            self._mount("none", new, "", _UNBINDABLE)
        self._own.add(new.stat().st_dev)
        for name, is_folder, link in entries:
            entry = new / name
            if link is not None:
                entry.symlink_to(link)
                continue
            entry.mkdir() if is_folder else entry.touch()
            try:
                self._mount(f"/proc/self/fd/{before}/{name}", entry, "", _BIND | _RECURSIVE)
            except FileNotFoundError:
                entry.rmdir() if is_folder else entry.unlink()
        os.close(before)
        if folder == _ROOT:
            where = Path.cwd()
            os.chdir(new)
            self._mount(".", "/", "", _MOVE)
            os.chroot(".")
            self._mount("none", "/", "", _PRIVATE)
            os.chdir(where)

    def _mount(self, source: str | Path, target: str | Path, kind: str, flags: int, options: str = "") -> None:
        encoded = [os.fsencode(text) for text in (source, target, kind)]
        check(self._libc.mount(*encoded, ctypes.c_ulong(flags), os.fsencode(options)))


def enter_container(libc: ctypes.CDLL, order: Mapping[str, Any]) -> list[str]:
    """Enter a mount namespace for a container, and mount what an order asks for.

    Return the paths of device files for which empty files stand.

    Args:
        libc: the C library.
        order: ``{"directory", "image", "mounts", "devices", "own_devices", "shares", "hostname"}``; ``image`` is a
            folder whose files are at their paths in it, ``mounts`` a list of ``{"source", "target", "type",
            "options"}``, ``devices`` one of ``{"path", "source", "numbers", "mode"}``; ``hostname`` is empty for that
            of the parent process.

    Raises:
        MountError: one of them failed.
        OSError: the kernel forbids mount namespaces.
    """
    unshare(libc, NEW_MOUNTS | (NEW_HOSTNAME if order["hostname"] else 0))
    if order["hostname"]:
        set_hostname(order["hostname"])
    namespace = MountNamespace(libc, order["directory"], shares=order["shares"])
    # what is mounted is that of the node, even if something else is mounted there before
    sources = [_open(item["source"], item["target"]) for item in order["mounts"]]
    if order["own_devices"]:
        devices = {item["path"]: _device(item) for item in order["devices"]}
        namespace.own_devices()
    else:
        devices = {item["path"]: item["source"] for item in order["devices"]}
    if order["image"]:
        namespace.lay_over(Path(order["image"]), Path("/"))
    # a folder before those that are in it, as container runtimes do
    for item, source in sorted(zip(order["mounts"], sources, strict=True), key=lambda pair: _parts(pair[0]["target"])):
        try:
            if order["shares"] and source and not item["options"] and _is_same(source, item["target"]):
                continue  # a further mount there would be seen by the node, too, and stay
            if source:
                namespace.bind(source, item["target"], item["options"])
            else:
                namespace.file_system(item["type"], item["target"], item["options"])
        except OSError as error:
            raise MountError(error.errno or errno.EINVAL, item["source"], item["target"]) from error
    stand_ins = []
    for item in order["devices"]:
        numbers = tuple(item["numbers"]) if item["numbers"] else None
        try:
            if not namespace.device(item["path"], devices[item["path"]], numbers, item["mode"]):
                stand_ins.append(item["path"])
        except OSError as error:
            raise MountError(error.errno or errno.EINVAL, item["source"], item["path"], is_device=True) from error
    os.chdir(order["directory"])
    return stand_ins


def _open(source: str, target: str) -> str:
    """Return a path that leads to a file even if something else is mounted at its own path; empty if it is none."""
    if not source.startswith("/"):
        return ""  # of a file system, such as tmpfs
    try:
        return f"/proc/self/fd/{os.open(source, os.O_PATH | os.O_CLOEXEC)}"
    except OSError as error:
        raise MountError(error.errno or errno.EINVAL, source, target) from error


def _is_same(path: str, other: str) -> bool:
    return Path(other).exists() and Path(other).samefile(path)


def _device(item: Mapping[str, Any]) -> str:
    try:
        return f"/proc/self/fd/{os.open(item['source'], os.O_PATH | os.O_CLOEXEC)}"
    except OSError:
        return str(item["source"])


def _parts(path: str) -> tuple[str, ...]:
    return Path(path).parts


def enter_node(libc: ctypes.CDLL, order: Mapping[str, Any]) -> MountNamespace:
    """Enter the namespaces of a node, in which this user is root, and mount what an order asks for.

    Args:
        libc: the C library.
        order: ``{"directory", "hostname", "shared", "binds", "trees", "containers"}``: pairs of a folder and the path
            at which it is seen. What is mounted in those of ``shared`` is seen by all; ``trees`` replace what is there
            (:meth:`MountNamespace.lay`). ``containers`` says whether a runtime of containers runs there.

    Raises:
        OSError: the kernel forbids it.
    """
    unshare(libc, NEW_MOUNTS | NEW_NETWORK | NEW_HOSTNAME, user=0, group=0)
    raise_loopback()
    set_hostname(order["hostname"])
    namespace = MountNamespace(libc, order["directory"])
    for source, target in order["trees"]:
        namespace.lay(Path(source), Path(target))
    for source, target in order["binds"]:
        namespace.bind(source, target)
    for target in order["shared"]:
        namespace.share(target)
    if order["containers"]:
        namespace.suit_containers()
    return namespace


def probe(libc: ctypes.CDLL) -> None:
    """Enter the namespaces of a node, and mount something.

    Raises:
        OSError: the kernel forbids it.
    """
    unshare(libc, NEW_MOUNTS | NEW_NETWORK | NEW_HOSTNAME, user=0, group=0)
    raise_loopback()
    MountNamespace(libc, "/").file_system("tmpfs", "/proc", ())


def run_in(process: int, arguments: Sequence[str]) -> None:
    """Become another program in the namespaces of a process; return only with an error.

    Raises:
        OSError: the namespaces cannot be entered, or the program does not exist.
    """
    where = Path.cwd()
    enter_namespaces(ctypes.CDLL(None, use_errno=True), process)
    os.chdir(where)
    os.execvp(arguments[0], list(arguments))  # noqa: S606 - the caller names the program
