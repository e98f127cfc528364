"""Formats of names, as texts (k8s.io/apimachinery 0.37) and as field errors."""

from __future__ import annotations

import re
from typing import Final, Literal

from dra_kit.kubernetes.release import Change, Release
from dra_kit.kubernetes.resource.field_errors import FieldError, check_length, invalid, mark_declarative, required
from dra_kit.kubernetes.values.json import byte_length

LABEL_MAX_LENGTH: Final = 63
"""Bytes of a DNS label, of a label value and of the name part of a label key."""
SUBDOMAIN_MAX_LENGTH: Final = 253
"""Bytes of a DNS subdomain."""
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_C_IDENTIFIER: Final = "[A-Za-z_][A-Za-z0-9_]*"
_LABEL_1035: Final = "[a-z]([-a-z0-9]*[a-z0-9])?"
_LABEL_NAME: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE: Final = f"({_LABEL_NAME})?"
_CONDITION_REASON: Final = "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"
Unit = Literal["bytes", "characters"]
"""The unit in a message about length; the API server uses both for bytes."""


def _rule(text: str, pattern: str, *examples: str) -> str:
    shown = " or ".join(f"'{example}', " for example in examples[:-1])
    shown = f"{shown} or '{examples[-1]}'" if shown else f"'{examples[-1]}'"
    return f"{text} (e.g. {shown}, regex used for validation is '{pattern}')"


_ALPHANUMERIC_ENDS: Final = "must start and end with an alphanumeric character"
_LABEL_RULE: Final = _rule(
    f"a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and {_ALPHANUMERIC_ENDS}",
    _LABEL, "my-name", "123-abc",
)  # fmt: skip
_SUBDOMAIN_RULE: Final = _rule(
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    f"and {_ALPHANUMERIC_ENDS}",
    _SUBDOMAIN, "example.com",
)  # fmt: skip
_LABEL_1035_RULE: Final = _rule(
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character",
    _LABEL_1035,
    "my-name",
    "abc-123",
)
_CASELESS_SUBDOMAIN_RULE: Final = _rule(
    f"an RFC 1123 subdomain must consist of alphanumeric characters, '-' or '.', and {_ALPHANUMERIC_ENDS}",
    _SUBDOMAIN, "Example.com",
)  # fmt: skip
_C_IDENTIFIER_RULE: Final = _rule(
    "a valid C identifier must start with alphabetic character or '_', "
    "followed by a string of alphanumeric characters or '_'",
    _C_IDENTIFIER, "my_name", "MY_NAME", "MyName",
)  # fmt: skip
_LABEL_NAME_RULE: Final = _rule(
    f"must consist of alphanumeric characters, '-', '_' or '.', and {_ALPHANUMERIC_ENDS}",
    _LABEL_NAME, "MyName", "my.name", "123-abc",
)  # fmt: skip
_LABEL_KEY_EXAMPLE: Final = "(e.g. 'example.com/MyName')"
_LABEL_VALUE_RULE: Final = _rule(
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
    f"and {_ALPHANUMERIC_ENDS}",
    _LABEL_VALUE, "MyValue", "my_value", "12345",
)  # fmt: skip
_CONDITION_REASON_RULE: Final = _rule(
    "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric "
    "characters or '_,:', and must end with an alphanumeric character or '_'",
    _CONDITION_REASON, "my_name", "MY_NAME", "MyName", "ReasonA,ReasonB", "ReasonA:ReasonB",
)  # fmt: skip


def dns_label(name: str, *, unit: Unit = "bytes") -> list[str]:
    """Check the name of a device, counter set or counter: an RFC 1123 label in lower case, at most 63 bytes."""
    problems = _length(name, LABEL_MAX_LENGTH, unit)
    if not _matches(_LABEL, name):
        problems.append("must not contain dots" if _matches(_SUBDOMAIN, name) else _LABEL_RULE)
    return problems


def dns_1035_label(name: str, *, unit: Unit = "bytes") -> list[str]:
    """Check a DNS label that begins with a letter."""
    return _length(name, LABEL_MAX_LENGTH, unit) + _mismatch(name, _LABEL_1035, _LABEL_1035_RULE)


def dns_subdomain(name: str, *, unit: Unit = "bytes") -> list[str]:
    """Check labels joined by dots in lower case, at most 253 bytes: names of nodes and of most objects."""
    return _length(name, SUBDOMAIN_MAX_LENGTH, unit) + _mismatch(name, _SUBDOMAIN, _SUBDOMAIN_RULE)


def caseless_subdomain(name: str) -> list[str]:
    """Check a DNS subdomain in which upper case counts as lower case."""
    return _length(name, SUBDOMAIN_MAX_LENGTH) + _mismatch(name.lower(), _SUBDOMAIN, _CASELESS_SUBDOMAIN_RULE)


def c_identifier(name: str) -> list[str]:
    """Check the part of an attribute or capacity name after the domain (its length is limited elsewhere)."""
    return _mismatch(name, _C_IDENTIFIER, _C_IDENTIFIER_RULE)


def path_segment(name: str) -> list[str]:
    """Return the problems of a name that must fit one segment of a path."""
    if name in {".", ".."}:
        return [f"may not be '{name}'"]
    return [f"may not contain '{char}'" for char in "/%" if char in name]


def label_key(name: str) -> list[str]:
    """Check the key of a label or taint, or a condition type: ``name`` or ``domain/name``."""
    prefix, slash, last = name.rpartition("/")
    if "/" in prefix:
        return [
            f"a valid label key {_LABEL_NAME_RULE} with an optional DNS subdomain prefix and '/' {_LABEL_KEY_EXAMPLE}"
        ]
    problems = []
    if slash:
        problems += [f"prefix part {text}" for text in (dns_subdomain(prefix) if prefix else ["must be non-empty"])]
    if not last:
        problems.append("name part must be non-empty")
    of_name = _length(last, LABEL_MAX_LENGTH) + _mismatch(last, _LABEL_NAME, _LABEL_NAME_RULE)
    return problems + [f"name part {text}" for text in of_name]


def label_value(value: str) -> list[str]:
    """Check the value of a label or taint; may be empty."""
    return _length(value, LABEL_MAX_LENGTH) + _mismatch(value, _LABEL_VALUE, _LABEL_VALUE_RULE)


def condition_reason(reason: str) -> list[str]:
    """Check ``reason`` of a condition."""
    return _mismatch(reason, _CONDITION_REASON, _CONDITION_REASON_RULE)


def _matches(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text, re.ASCII) is not None


def _mismatch(text: str, pattern: str, rule: str) -> list[str]:
    return [] if _matches(pattern, text) else [rule]


def _length(text: str, limit: int, unit: Unit = "bytes") -> list[str]:
    return [f"must be no more than {limit} {unit}"] if byte_length(text) > limit else []


DRIVER_NAME_MAX_LENGTH: Final = 63
POOL_NAME_MAX_LENGTH: Final = 253
DOMAIN_MAX_LENGTH: Final = 63
IDENTIFIER_MAX_LENGTH: Final = 32
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_KEY_MAX_LENGTH: Final = DOMAIN_MAX_LENGTH + 1 + IDENTIFIER_MAX_LENGTH


def driver_name(name: str, path: str) -> list[FieldError]:
    """Check a DNS subdomain of at most 63 bytes. Upper case passes: the API server only warns about it."""
    if not name:
        return [required(path)]
    errors = check_length(name, DRIVER_NAME_MAX_LENGTH, path)
    return errors + [invalid(path, name, text) for text in dns_subdomain(name.lower())]


def pool_name(name: str, path: str) -> list[FieldError]:
    """Check DNS subdomains joined by slashes, at most 253 bytes."""
    if not name:
        return [required(path)]
    errors = check_length(name, POOL_NAME_MAX_LENGTH, path)
    for segment in name.split("/"):
        errors += [invalid(path, segment, text) for text in dns_subdomain(segment)]
    return errors


def declared_driver_name(name: str, path: str, max_length: int | None = DRIVER_NAME_MAX_LENGTH) -> list[FieldError]:
    """Check a :func:`driver_name` by the declarative rule for configuration and allocations."""
    if not name:
        return mark_declarative([required(path)])
    errors = [invalid(path, name, text) for text in caseless_subdomain(name)]
    if max_length is not None:
        errors += check_length(name, max_length, path, unit="characters")
    return mark_declarative(errors)


def declared_pool_name(name: str, path: str) -> list[FieldError]:
    """Check a :func:`pool_name` by the declarative rule for allocations."""
    errors = check_length(name, POOL_NAME_MAX_LENGTH, path)
    for i, segment in enumerate(name.split("/")):
        if segment:
            errors += [invalid(path, segment, f"segment {i}: {text}") for text in dns_subdomain(segment)]
        else:
            errors.append(invalid(path, name, f"segment {i}: must not be empty"))
    return mark_declarative(errors)


def share_id(identifier: str, path: str) -> list[FieldError]:
    """Check a UUID in lower case."""
    if _UUID.fullmatch(identifier):
        return []
    return mark_declarative([invalid(path, identifier, "must be a lowercase UUID in 8-4-4-4-12 format")])


def label_errors(name: str, path: str) -> list[FieldError]:
    """Check the name of a device or request: a DNS label."""
    return [invalid(path, name, text) for text in dns_label(name, unit="characters")]


def qualified_name(name: str, path: str, release: Release) -> list[FieldError]:
    """Check the key of an attribute or capacity: a C identifier, optionally after ``domain/``."""
    match name.split("/"):
        case [identifier]:
            return _identifier(identifier, path)
        case [domain, identifier]:
            errors = driver_name(domain, path) if domain else [invalid(path, "", "the domain must not be empty")]
            return errors + (_identifier(identifier, path) if identifier else [_no_name(path, "the name")])
        case _:
            return _several_slashes(name, path, release)


def full_name(name: str, path: str, release: Release) -> list[FieldError]:
    """Check an attribute name outside of a driver's devices: ``domain/identifier``, with a lower-case domain."""
    match name.split("/"):
        case [identifier]:
            detail = "a fully qualified name must be a domain and a name separated by a slash"
            return [*_identifier(identifier, path), invalid(path, name, detail)]
        case [domain, identifier]:
            shown = domain if release.has(Change.FULL_NAMES_HAVE_LOWER_CASE) else domain.lower()
            errors = _prefix(shown, path) if shown else [invalid(path, "", "prefix must not be empty")]
            return errors + (_identifier(identifier, path) if identifier else [_no_name(path, "name")])
        case _:
            return _several_slashes(name, path, release)


def _several_slashes(name: str, path: str, release: Release) -> list[FieldError]:
    if not release.has(Change.NAMES_HAVE_ONE_SLASH):
        return []
    return [invalid(path, name, "must not contain more than one slash")]


def key_path(path: str, key: str, limit: int = _KEY_MAX_LENGTH) -> str:
    """Return ``path[key]``; the middle of a key that is too long is removed."""
    if len(key) > limit:
        shown_length = limit - 3
        key = f"{key[: (shown_length + 1) // 2]}...{key[len(key) - shown_length // 2 :]}"
    return f"{path}[{key}]"


def _identifier(name: str, path: str) -> list[FieldError]:
    errors = check_length(name, IDENTIFIER_MAX_LENGTH, path)
    return errors + [invalid(path, name, text) for text in c_identifier(name)]


def _prefix(domain: str, path: str) -> list[FieldError]:
    errors = check_length(domain, DOMAIN_MAX_LENGTH, path)
    return errors + [invalid(path, domain, f"prefix: {text}") for text in dns_subdomain(domain)]


def _no_name(path: str, subject: str) -> FieldError:
    return invalid(path, "", f"{subject} must not be empty")
