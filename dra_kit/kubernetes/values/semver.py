"""Semantic versions (semver 2.0.0), the values of version attributes."""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

from pydantic_core import CoreSchema

from dra_kit.kubernetes.values.json import text_schema

_SYNTAX: Final = re.compile(
    r"(?P<major>0|[1-9][0-9]*)\.(?P<minor>0|[1-9][0-9]*)\.(?P<patch>0|[1-9][0-9]*)"
    r"(?:-(?P<prerelease>[0-9A-Za-z.-]+))?(?:\+(?P<build>[0-9A-Za-z.-]+))?"
)
# Python converts a few more digits; more than 20 exceed the 64 bits of Kubernetes
_MAX_DIGITS: Final = 4000


class Version:
    """A semantic version by semver.org 2.0.0, parsed strictly: three numbers, no ``v``, no leading zeros. Immutable.

    Equality and hash compare the text. Precedence ignores build metadata: ``1.0.0+a`` and ``1.0.0+b`` differ, but
    neither precedes the other. Therefore precedence has a method, ``compare``, and no operators. To sort, use
    ``functools.cmp_to_key(Version.compare)``.

    Fields of pydantic models accept a Version or a string and are dumped as the string in every mode.

    Args:
        value: a text like ``"1.2.3-rc.1+b7"``.

    Raises:
        ValueError: the text is not a semantic version.
    """

    __slots__ = ("_build", "_major", "_minor", "_patch", "_prerelease", "_text")

    _text: str
    _major: int
    _minor: int
    _patch: int
    _prerelease: tuple[str, ...]
    _build: tuple[str, ...]

    def __init__(self, value: Version | str) -> None:
        self._text = text = _text_of(value)
        self._major, self._minor, self._patch, self._prerelease, self._build = _parse(text)

    @property
    def major(self) -> int:
        """The first number."""
        return self._major

    @property
    def minor(self) -> int:
        """The second number."""
        return self._minor

    @property
    def patch(self) -> int:
        """The third number."""
        return self._patch

    @property
    def prerelease(self) -> tuple[str, ...]:
        """The dot-separated identifiers after ``-``; empty for a release."""
        return self._prerelease

    @property
    def build(self) -> tuple[str, ...]:
        """The dot-separated identifiers after ``+``; precedence ignores them."""
        return self._build

    def compare(self, other: Version) -> int:
        """Return -1 if this version precedes the other, 1 if the other precedes this one, else 0 (semver.org, 11)."""
        mine, theirs = precedence_key(self), precedence_key(other)
        return (mine > theirs) - (mine < theirs)

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Version) else NotImplemented

    def __hash__(self) -> int:
        return hash((Version, self._text))

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Version({self._text!r})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        return text_schema(cls)


PrecedenceKey: TypeAlias = tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]


def precedence_key(version: Version) -> PrecedenceKey:
    """Return the sort key by semver.org: a release after its prereleases, numbers before words."""
    identifiers = tuple((False, int(i), "") if i.isdigit() else (True, 0, i) for i in version.prerelease)
    return version.major, version.minor, version.patch, not identifiers, identifiers


def _text_of(value: object) -> str:
    if not isinstance(value, (str, Version)):
        # pydantic turns a ValueError into its own error, a TypeError not
        raise ValueError(f"a version is a string, not {type(value).__name__}")  # noqa: TRY004
    return str(value)


def _parse(text: str) -> tuple[int, int, int, tuple[str, ...], tuple[str, ...]]:
    syntax = _SYNTAX.fullmatch(text)
    if syntax is None:
        raise ValueError(
            f"{_shown(text)} is not a semantic version: it must look like 1.2.3, 1.2.3-rc.1 or 1.2.3+build"
        )
    major, minor, patch, prerelease, build = syntax.groups()
    before, after = _identifiers(text, prerelease), _identifiers(text, build)
    for identifier in before:
        if identifier.isdigit() and identifier[0] == "0" and identifier != "0":
            raise ValueError(f"{_shown(text)} is not a semantic version: {identifier!r} has a leading zero")
    numbers = [major, minor, patch, *filter(str.isdigit, before)]
    if max(map(len, numbers)) > _MAX_DIGITS:
        raise ValueError(f"{_shown(text)} is not a semantic version: a number is out of range")
    return int(major), int(minor), int(patch), before, after


def _identifiers(text: str, joined: str | None) -> tuple[str, ...]:
    if joined is None:
        return ()
    identifiers = tuple(joined.split("."))
    if not all(identifiers):
        raise ValueError(f"{_shown(text)} is not a semantic version: an identifier is empty")
    return identifiers


def _shown(text: str) -> str:
    return repr(text if len(text) <= 64 else f"{text[:64]}...")
