"""Values of attributes, as they are on a node; whatever cannot be read or published is no value, and never an error."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dra_kit.globs.matching import DeviceFile, resolved
from dra_kit.globs.model import READABLE, AttributeSource, ValueType
from dra_kit.globs.templates import filled
from dra_kit.kubernetes.values.semver import Version

Value = bool | int | str | Version

_MOST_BYTES: Final = 1 << 14  # of a file; one of sysfs has at most a page
_LONGEST: Final = 64  # bytes of a text or version that is published
_TRUTHS: Final = {
    **dict.fromkeys(("1", "y", "yes", "true", "on"), True),
    **dict.fromkeys(("0", "n", "no", "false", "off"), False),
}


class NoValueError(ValueError):
    """There is no value; the text says why."""


def value_of(source: AttributeSource, file: DeviceFile, values: Mapping[str, str], root: Path) -> Value:
    """Return the value of an attribute of a device.

    Args:
        source: where it comes from.
        file: the device node.
        values: what placeholders stand for.
        root: where the node's / is.

    Raises:
        NoValueError: there is none that could be published.
    """
    if source.value is not None and not isinstance(source.value, str):
        return source.value
    text = filled(source.value, values) if source.value is not None else _found(source, file, values, root)
    if source.match is not None:
        found = re.search(source.match, text, re.MULTILINE)
        if found is None:
            raise NoValueError(f"{source.match!r} does not match {_short(text)}")
        text = (found[1] if found.re.groups else found[0]) or ""
    return converted(text.strip(), source.as_)


def default_of(source: AttributeSource) -> Value | None:
    """Return the value of an attribute that has no other one.

    Raises:
        NoValueError: it is not what the others are.
    """
    default = source.default
    if isinstance(default, str):
        return converted(default, source.as_)
    if default is not None and source.as_ != ("bool" if isinstance(default, bool) else "int"):
        raise NoValueError(f"the default {default} is no {source.as_}, as the other values are")
    return default


def converted(text: str, kind: ValueType) -> Value:
    """Return the text as a value of the type of the attribute.

    Raises:
        NoValueError: it is none, or cannot be published.
    """
    try:
        match kind:
            case "int":
                return _number(text)
            case "bool":
                return _TRUTHS[text.lower()]
            case "version":
                if len(text) <= _LONGEST:
                    return Version(text)
    except NoValueError:
        raise
    except (ValueError, KeyError):
        raise NoValueError(f"{_short(text)} is no {kind}") from None
    if not text:
        raise NoValueError("it is empty")
    if len(text.encode()) > _LONGEST:
        raise NoValueError(f"{_short(text)} has more than {_LONGEST} bytes")
    if not text.isprintable():
        raise NoValueError(f"{_short(text)} has characters that cannot be printed")
    return text


def _number(text: str) -> int:
    number = int(text, 16) if re.fullmatch(r"[+-]?0[xX].*", text, re.DOTALL) else int(text)
    if not -(2**63) <= number < 2**63:
        raise NoValueError(f"{_short(text)} does not fit into 64 bits")
    return number


def _found(source: AttributeSource, file: DeviceFile, values: Mapping[str, str], root: Path) -> str:
    if source.read is not None:
        return _read(filled(source.read, values), READABLE, root)
    if file.kind == "p":
        raise NoValueError("udev knows no FIFOs")
    entry = f"/run/udev/data/{file.kind}{os.major(file.number)}:{os.minor(file.number)}"
    mark = f"E:{source.udev}="
    lines = _read(entry, ("/run/udev/data/",), root).splitlines()
    text = next((line.removeprefix(mark) for line in lines if line.startswith(mark)), None)
    if text is None:
        raise NoValueError(f"{entry} has no {source.udev}")
    return text


def _read(path: str, below: tuple[str, ...], root: Path) -> str:
    """Return the content of a file, if it may be read; never wait for it."""
    try:
        leads_to = resolved(path, root)
        if not leads_to.startswith(below):
            raise NoValueError(f"{path} leads to {leads_to}, which is not below {' or '.join(below)}")
        real = f"{os.path.realpath(root, strict=True).rstrip('/')}{leads_to}"
        if not stat.S_ISREG(Path(real).stat().st_mode):
            raise NoValueError(f"{path} is no regular file")
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as stream:
            return stream.read(_MOST_BYTES).decode().strip("\0\r\n\t ")
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise NoValueError(
                f"{path} leads out of the node's files, which is not below {' or '.join(below)}"
            ) from None
        raise NoValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise NoValueError(f"{path} is no text") from None


def _short(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
