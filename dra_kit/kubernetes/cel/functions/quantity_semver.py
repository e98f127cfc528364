"""Semantic versions in expressions."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from dra_kit.cel import types
from dra_kit.cel.declarations import Library
from dra_kit.cel.failure import Failure, no_such_overload
from dra_kit.cel.values import RUNTIME_TYPES, UINT_MAX
from dra_kit.values.semver import Version

LIBRARY: Final = Library()
_Key: TypeAlias = "tuple[int, int, int, bool, tuple[tuple[int, int, str], ...]]"


class Semver:
    """A version whose order is known, and whose equality ignores build metadata.

    Args:
        version: the version.

    Raises:
        Failure: a number does not fit 64 bits.
    """

    __slots__ = ("key", "version")

    def __init__(self, version: Version) -> None:
        self.version: Version = version
        identifiers = tuple((0, int(i), "") if i.isdigit() else (1, 0, i) for i in version.prerelease)
        numbers = [version.major, version.minor, version.patch, *(number for _, number, _ in identifiers)]
        if max(numbers) > UINT_MAX:
            raise Failure("a number of the version is out of range", "conversion")
        self.key: _Key = (version.major, version.minor, version.patch, not identifiers, identifiers)

    def equals(self, other: Any) -> bool:
        """Return ``self == other``."""
        if type(other) is not Semver:
            raise no_such_overload()
        return self.key == other.key


RUNTIME_TYPES[Semver] = types.SEMVER


def parse(text: str) -> Semver:
    """Read a version strictly.

    Raises:
        Failure: it is none.
    """
    try:
        return Semver(Version(text))
    except ValueError as error:
        raise Failure(str(error), "conversion") from None


def _normalized(text: str) -> str:
    parts = text.removeprefix("v").split(".", 2)
    for position, part in enumerate(parts):
        if len(part) > 1:
            stripped = part.lstrip("0")
            parts[position] = stripped if stripped[:1] in set("123456789") else f"0{stripped}"
    if len(parts) < 3:
        if "+" in parts[-1] or "-" in parts[-1]:
            raise Failure("short version cannot contain PreRelease/Build meta data", "conversion")
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts)


@LIBRARY.function("string_bool_to_semver", "semver(string, bool) -> semver")
@LIBRARY.function("string_to_semver", "semver(string) -> semver")
def _semver(text: str, normalize: bool = False) -> Semver:
    return parse(_normalized(text) if normalize else text)


@LIBRARY.function("is_semver_string_bool", "isSemver(string, bool) -> bool")
@LIBRARY.function("is_semver_string", "isSemver(string) -> bool")
def _is_semver(text: str, normalize: bool = False) -> bool:
    try:
        _semver(text, normalize)
    except Failure:
        return False
    return True


@LIBRARY.method("semver_is_greater_than", "isGreaterThan(semver, semver) -> bool")
def _is_greater(value: Semver, other: Semver) -> bool:
    return value.key > other.key


@LIBRARY.method("semver_is_less_than", "isLessThan(semver, semver) -> bool")
def _is_less(value: Semver, other: Semver) -> bool:
    return value.key < other.key


@LIBRARY.method("semver_compare_to", "compareTo(semver, semver) -> int")
def _compare(value: Semver, other: Semver) -> int:
    return (value.key > other.key) - (value.key < other.key)


def _int64(number: int) -> int:
    return number if number < 2**63 else number - 2**64


@LIBRARY.method("semver_major", "major(semver) -> int")
def _major(value: Semver) -> int:
    return _int64(value.version.major)


@LIBRARY.method("semver_minor", "minor(semver) -> int")
def _minor(value: Semver) -> int:
    return _int64(value.version.minor)


@LIBRARY.method("semver_patch", "patch(semver) -> int")
def _patch(value: Semver) -> int:
    return _int64(value.version.patch)
