"""Finds what is on the node: the device nodes that globs match, and the values of their attributes."""

from __future__ import annotations

import errno
import glob
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_kit.author.no_code.model import (
    READABLE,
    AttributeSource,
    GlobEntry,
    ValueType,
    fill_placeholders,
    placeholders,
)
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.resource.validation.devices import STRING_MAX_LENGTH
from dra_kit.kubernetes.values.semver import Version

MOST: Final = 1024
"""Maximum device nodes of one file on a node; more are probably a glob that is too wide."""
_MOST_LINKS: Final = 40  # the limit of Linux (path_resolution(7))
_SHARED: Final = frozenset({"/dev/shm", "/dev/mqueue"})  # noqa: S108 - containers can have it, regardless of its mode
_KINDS: Final = {stat.S_IFCHR: "c", stat.S_IFBLK: "b", stat.S_IFIFO: "p"}
"""The kinds of device nodes that a container can be given (CDI, DeviceNode.type)."""


class DeviceNodeFile(Struct, frozen=True):
    """A device node: matched path, real location if that is a link, kind ``c``, ``b`` or ``p``, device number."""

    path: str
    host_path: str
    kind: str
    number: int

    @property
    def identity(self) -> tuple[str, object]:
        """Identifies its device: two names of one device have the same value."""
        return self.kind, self.number or self.host_path


class GlobMatch(Struct, frozen=True):
    """A device of the entry with this index: its node, further nodes, and the values of its placeholders."""

    entry: int
    file: DeviceNodeFile
    companions: tuple[DeviceNodeFile, ...]
    values: Mapping[str, str]


class TooManyDevicesError(ConfigurationError):
    """More files match than a node may have devices; ``path`` is that of the entry's globs in the file."""

    default_code = "invalid-globs"

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        self.rule: str = f"{problem}; narrow the globs, or give the entry a pattern"
        super().__init__(f"{path}: {self.rule}")


def find_devices(entries: Sequence[GlobEntry], root: Path) -> list[GlobMatch]:
    """Return the devices that exist; a device node belongs to the first entry that matches it.

    Raises:
        TooManyDevicesError: more than a node may have.
    """
    found: list[GlobMatch] = []
    seen: set[tuple[str, object]] = set()
    for index, entry in enumerate(entries):
        for file in _files(entry.paths, root):
            values = _values(entry, file)
            if values is None or file.identity in seen:
                continue
            companions = _companions(entry, values, root)
            if companions is None:
                continue
            seen.add(file.identity)
            found.append(GlobMatch(index, file, companions, values))
            if len(found) > MOST:
                problem = f"{', '.join(entry.paths)} matches so much that there are more than {MOST} devices"
                raise TooManyDevicesError(f"devices[{index}].paths", f"{problem}, the most of one node")
    return found


def _values(entry: GlobEntry, file: DeviceNodeFile) -> dict[str, str] | None:
    """Return the values of placeholders; None if the pattern does not match."""
    values = {"path": file.path, "name": file.path.rpartition("/")[2]}
    if entry.pattern is None:
        return values
    found = re.search(entry.pattern, file.path)
    return None if found is None else values | {name: text or "" for name, text in found.groupdict().items()}


def _companions(entry: GlobEntry, values: Mapping[str, str], root: Path) -> tuple[DeviceNodeFile, ...] | None:
    """Return the other device nodes; None if one of the globs matches nothing."""
    found: list[DeviceNodeFile] = []
    for pattern in entry.with_:
        # the value of a placeholder is not a glob
        escaped = {name: glob.escape(values[name]) for name in placeholders(pattern)}
        files = list(_files([fill_placeholders(pattern, escaped)], root))
        if not files:
            return None
        found += files
    return tuple(found)


def _files(patterns: Sequence[str], root: Path) -> Iterator[DeviceNodeFile]:
    for pattern in patterns:
        # not Path.glob: in some releases of Python it fails when a folder disappears in the meantime
        for relative in sorted(glob.glob(pattern.lstrip("/"), root_dir=root), key=_natural):  # noqa: PTH207
            file = _file(f"/{relative}", root)
            if file is not None:
                yield file


def _natural(text: str) -> list[tuple[int, str]]:
    """Return a key that sorts ``ttyUSB2`` before ``ttyUSB10``."""
    return [(int(part), "") if part.isdecimal() and part.isascii() else (-1, part) for part in re.split(r"(\d+)", text)]


def _file(path: str, root: Path) -> DeviceNodeFile | None:
    """Return the device node at a path; None if there is none, or only a link to a place outside /dev."""
    try:
        path.encode()  # a name that is not text cannot be passed to a container runtime
        host_path = resolved(path, root)
        status = Path(f"{os.path.realpath(root, strict=True).rstrip('/')}{host_path}").lstat()
    except (OSError, ValueError):  # it has disappeared, or other users may have put it there
        return None
    kind = _KINDS.get(stat.S_IFMT(status.st_mode))
    if kind is None or not host_path.startswith("/dev/"):
        return None
    return DeviceNodeFile(path, host_path, kind, status.st_rdev if kind != "p" else 0)


def resolved(path: str, root: Path) -> str:
    """Resolve all links of a path on the node, through folders that only root may write to.

    Otherwise a container that has the node's ``/dev/shm``, or another folder that all users may write to, could create
    a link there and get the disk as a device.

    Raises:
        OSError: the path does not exist, leaves the node's root, or passes a folder that other users may write to.
    """
    base = os.path.realpath(root, strict=True).rstrip("/")
    waiting = [part for part in reversed(path.split("/")) if part not in {"", "."}]
    at, links = "", 0
    while waiting:
        part = waiting.pop()
        if part == "..":
            if base and not at:
                raise OSError(errno.EXDEV, "it leads out of the node's files", path)
            at = at.rpartition("/")[0]
            continue
        if at:
            _require_own(f"{base}{at}", at)
        place = f"{base}{at}/{part}"
        if not stat.S_ISLNK(os.lstat(place).st_mode):
            at = f"{at}/{part}"
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), place)
        target = os.readlink(place)  # noqa: PTH115 - a Path would drop "." and double slashes by itself
        if target.startswith("/"):
            if target != base and not target.startswith(f"{base}/"):
                raise OSError(errno.EXDEV, "it leads out of the node's files", path)
            at, target = "", target.removeprefix(base)
        waiting += [part for part in reversed(target.split("/")) if part not in {"", "."}]
    return at or "/"


def _require_own(folder: str, on_node: str) -> None:
    """Require a folder in which only root, or the user of this process, creates files."""
    status = Path(folder).lstat()
    mode, own_groups = stat.S_IMODE(status.st_mode), {0, os.getegid()}
    others_write = mode & stat.S_IWOTH or (mode & stat.S_IWGRP and status.st_gid not in own_groups)
    if on_node in _SHARED or others_write or status.st_uid not in {0, os.geteuid()}:
        raise OSError(errno.EPERM, "others may write to a folder on the way", folder)


Value = bool | int | str | Version
_SHOWN: Final = 64  # characters of a value in a message
_MOST_BYTES: Final = 1 << 14  # maximum size of a file; a sysfs file has at most a page
_TRUTHS: Final = {
    **dict.fromkeys(("1", "y", "yes", "true", "on"), True),
    **dict.fromkeys(("0", "n", "no", "false", "off"), False),
}


class AttributeUnavailable(ValueError):
    """A value is missing; the text gives the reason."""


def read_attribute(source: AttributeSource, file: DeviceNodeFile, values: Mapping[str, str], root: Path) -> Value:
    """Return the value of an attribute of a device.

    Raises:
        AttributeUnavailable: no value can be published.
    """
    if source.value is not None and not isinstance(source.value, str):
        return source.value
    text = fill_placeholders(source.value, values) if source.value is not None else _found(source, file, values, root)
    if source.match is not None:
        found = re.search(source.match, text, re.MULTILINE)
        if found is None:
            raise AttributeUnavailable(f"{source.match!r} does not match {_short(text)}")
        text = (found[1] if found.re.groups else found[0]) or ""
    return convert_value(text.strip(), source.as_)


def read_default(source: AttributeSource) -> Value | None:
    """Return the common value of an attribute that must have only one.

    Raises:
        AttributeUnavailable: the values differ.
    """
    default = source.default
    if isinstance(default, str):
        return convert_value(default, source.as_)
    if default is not None and source.as_ != ("bool" if isinstance(default, bool) else "int"):
        raise AttributeUnavailable(f"the default {default} is not a valid {source.as_}, the type of the other values")
    return default


def convert_value(text: str, kind: ValueType) -> Value:
    """Return the text converted to the type of the attribute.

    Raises:
        AttributeUnavailable: it cannot be converted or published.
    """
    try:
        if kind == "int":
            return _number(text)
        if kind == "bool":
            return _TRUTHS[text.lower()]
        if kind == "version" and len(text.encode()) <= STRING_MAX_LENGTH:
            return Version(text)
    except AttributeUnavailable:
        raise
    except (ValueError, KeyError):
        raise AttributeUnavailable(f"{_short(text)} is not a valid {kind}") from None
    if not text:
        raise AttributeUnavailable("it is empty")
    if len(text.encode()) > STRING_MAX_LENGTH:  # of a string or a version
        raise AttributeUnavailable(f"{_short(text)} has more than {STRING_MAX_LENGTH} bytes")
    if not text.isprintable():
        raise AttributeUnavailable(f"{_short(text)} has characters that cannot be printed")
    return text


def _number(text: str) -> int:
    number = int(text, 16) if re.fullmatch(r"[+-]?0[xX].*", text, re.DOTALL) else int(text)
    if not -(2**63) <= number < 2**63:
        raise AttributeUnavailable(f"{_short(text)} does not fit into 64 bits")
    return number


def _found(source: AttributeSource, file: DeviceNodeFile, values: Mapping[str, str], root: Path) -> str:
    if source.read is not None:
        return _read(fill_placeholders(source.read, values), READABLE, root)
    if file.kind == "p":
        raise AttributeUnavailable("udev knows no FIFOs")
    entry = f"/run/udev/data/{file.kind}{os.major(file.number)}:{os.minor(file.number)}"
    mark = f"E:{source.udev}="
    lines = _read(entry, ("/run/udev/data/",), root).splitlines()
    text = next((line.removeprefix(mark) for line in lines if line.startswith(mark)), None)
    if text is None:
        raise AttributeUnavailable(f"{entry} has no {source.udev}")
    return text


def _read(path: str, below: tuple[str, ...], root: Path) -> str:
    """Return the content of a file that may be read, without ever blocking."""
    try:
        leads_to = resolved(path, root)
        if not leads_to.startswith(below):
            raise AttributeUnavailable(f"{path} leads to {leads_to}, which is not below {' or '.join(below)}")
        real = f"{os.path.realpath(root, strict=True).rstrip('/')}{leads_to}"
        if not stat.S_ISREG(Path(real).stat().st_mode):
            raise AttributeUnavailable(f"{path} is not a regular file")
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as stream:
            return stream.read(_MOST_BYTES).decode().strip("\0\r\n\t ")
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise AttributeUnavailable(
                f"{path} leads out of the node's files, which is not below {' or '.join(below)}"
            ) from None
        raise AttributeUnavailable(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise AttributeUnavailable(f"{path} is not UTF-8 text") from None


def _short(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
