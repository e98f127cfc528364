"""Named formats of strings: ``format.dns1123Label().validate(text)``."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from typing import Any, Final

from dra_kit.cel import types
from dra_kit.cel.declarations import Library
from dra_kit.cel.failure import Failure, no_such_overload
from dra_kit.cel.functions.time import parse_timestamp
from dra_kit.cel.functions.urls import is_request_uri
from dra_kit.cel.values import NONE, RUNTIME_TYPES, Optional

LIBRARY: Final = Library()

_DNS1123: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_DNS1035: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL_VALUE: Final = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_QUALIFIED: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

_Check = Callable[[str], list[str]]


class Format:
    """A format.

    Args:
        name: its name.
        check: tells what is wrong with a text; nothing if it has the format.
        regex_size: how long a pattern is assumed for the cost of a check.
    """

    __slots__ = ("check", "name", "regex_size")

    def __init__(self, name: str, check: _Check, regex_size: int) -> None:
        self.name: str = name
        self.check: _Check = check
        self.regex_size: int = regex_size

    def equals(self, other: Any) -> bool:
        """Return ``self == other``."""
        if type(other) is not Format:
            raise no_such_overload()
        return self.name == other.name


RUNTIME_TYPES[Format] = types.FORMAT


def _pattern(pattern: re.Pattern[str], limit: int, what: str, *, prefix: bool = False) -> _Check:
    def check(text: str) -> list[str]:
        if prefix and len(text) > 1 and text.endswith("-"):
            text = f"{text[:-2]}a"
        problems = [f"must be no more than {limit} bytes"] if len(text.encode()) > limit else []
        return problems if pattern.fullmatch(text) else [*problems, f"must be {what}"]

    return check


def _qualified_name(text: str) -> list[str]:
    prefix, slash, name = text.rpartition("/")
    problems: list[str] = []
    if slash:
        if "/" in prefix:
            return ["must be a name, with an optional DNS subdomain and '/' before it"]
        problems = ["prefix part must be non-empty"] if not prefix else _SUBDOMAIN_CHECK(prefix)
    if not name:
        problems.append("name part must be non-empty")
    elif len(name) > 63:
        problems.append("name part must be no more than 63 bytes")
    if not _QUALIFIED.fullmatch(name):
        problems.append("name part must be alphanumeric characters, '-', '_' or '.', with an alphanumeric at both ends")
    return problems


_SUBDOMAIN_CHECK: Final = _pattern(_SUBDOMAIN, 253, "a lowercase RFC 1123 subdomain")


def _holds(condition: Callable[[str], bool], problem: str) -> _Check:
    return lambda text: [] if condition(text) else [problem]


def _is_date(text: str) -> bool:
    try:
        return _DATE.fullmatch(text) is not None and bool(date.fromisoformat(text))
    except ValueError:
        return False


def _is_datetime(text: str) -> bool:
    try:
        parse_timestamp(text.upper())
    except Failure:
        return False
    return True


_LABEL: Final = "a lowercase RFC 1123 label"
_DNS1035_LABEL: Final = "a DNS-1035 label"
_FORMATS: Final = {
    "dns1123Label": Format("DNS1123Label", _pattern(_DNS1123, 63, _LABEL), 30),
    "dns1123Subdomain": Format("DNS1123Subdomain", _SUBDOMAIN_CHECK, 60),
    "dns1035Label": Format("DNS1035Label", _pattern(_DNS1035, 63, _DNS1035_LABEL), 30),
    "qualifiedName": Format("QualifiedName", _qualified_name, 60),
    "dns1123LabelPrefix": Format("DNS1123LabelPrefix", _pattern(_DNS1123, 63, _LABEL, prefix=True), 30),
    "dns1123SubdomainPrefix": Format(
        "DNS1123SubdomainPrefix", _pattern(_SUBDOMAIN, 253, "a lowercase RFC 1123 subdomain", prefix=True), 60
    ),
    "dns1035LabelPrefix": Format("DNS1035LabelPrefix", _pattern(_DNS1035, 63, _DNS1035_LABEL, prefix=True), 30),
    "labelValue": Format("LabelValue", _pattern(_LABEL_VALUE, 63, "a valid label value"), 40),
    "uri": Format("URI", _holds(is_request_uri, "must be a URI"), 1103),
    "uuid": Format("uuid", _holds(lambda text: bool(_UUID.fullmatch(text)), "must be a UUID"), 70),
    "byte": Format("byte", _holds(lambda text: bool(_BASE64.fullmatch(text)), "must be base64"), 84),
    "date": Format("date", _holds(_is_date, "must be a date"), 71),
    "datetime": Format("datetime", _holds(_is_datetime, "must be a date and time"), 71),
}


def _constant(value: Format) -> Callable[[], Format]:
    return lambda: value


for _name, _format in _FORMATS.items():
    LIBRARY.declare(f"format.{_name}", f"format.{_name}() -> format", _constant(_format))


@LIBRARY.function("format-named", "format.named(string) -> optional(format)")
def _named(name: str) -> Optional:
    found = _FORMATS.get(name)
    return NONE if found is None else Optional(found)


@LIBRARY.method("format-validate", "validate(format, string) -> optional(list(string))")
def _validate(value: Format, text: str) -> Optional:
    problems = value.check(text)
    return Optional(problems) if problems else NONE
