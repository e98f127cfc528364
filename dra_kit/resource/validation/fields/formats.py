"""Names that consist of parts, or that have a length limit of their own."""

from __future__ import annotations

import re
from typing import Final

from dra_kit.resource import names
from dra_kit.resource.fielderror import FieldError, declarative, invalid, required, too_long

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
    errors = []
    if names.byte_length(name) > DRIVER_NAME_MAX_LENGTH:
        errors.append(too_long(path, name, DRIVER_NAME_MAX_LENGTH))
    return errors + [invalid(path, name, text) for text in names.dns_subdomain(name.lower())]


def pool_name(name: str, path: str) -> list[FieldError]:
    """Check DNS subdomains joined by slashes, at most 253 bytes."""
    if not name:
        return [required(path)]
    errors = []
    if names.byte_length(name) > POOL_NAME_MAX_LENGTH:
        errors.append(too_long(path, name, POOL_NAME_MAX_LENGTH))
    for segment in name.split("/"):
        errors += [invalid(path, segment, text) for text in names.dns_subdomain(segment)]
    return errors


def declared_driver_name(name: str, path: str, max_length: int | None = DRIVER_NAME_MAX_LENGTH) -> list[FieldError]:
    """Check a :func:`driver_name` where the API server has the rule in its types: in configuration and allocations."""
    if not name:
        return declarative([required(path)])
    errors = [invalid(path, name, text) for text in names.caseless_subdomain(name)]
    if max_length is not None and names.byte_length(name) > max_length:
        errors.append(too_long(path, name, max_length, unit="characters"))
    return declarative(errors)


def declared_pool_name(name: str, path: str) -> list[FieldError]:
    """Check a :func:`pool_name` where the API server has the rule in its types: in allocations."""
    errors = []
    if names.byte_length(name) > POOL_NAME_MAX_LENGTH:
        errors.append(too_long(path, name, POOL_NAME_MAX_LENGTH))
    for i, segment in enumerate(name.split("/")):
        if segment:
            errors += [invalid(path, segment, f"segment {i}: {text}") for text in names.dns_subdomain(segment)]
        else:
            errors.append(invalid(path, name, f"segment {i}: must not be empty"))
    return declarative(errors)


def share_id(identifier: str, path: str) -> list[FieldError]:
    """Check a UUID in lower case."""
    if _UUID.fullmatch(identifier):
        return []
    return declarative([invalid(path, identifier, "must be a lowercase UUID in 8-4-4-4-12 format")])


def device_name(name: str, path: str) -> list[FieldError]:
    """Check a DNS label."""
    return [invalid(path, name, text) for text in names.dns_label(name, unit="characters")]


def qualified_name(name: str, path: str) -> list[FieldError]:
    """Check the key of an attribute or capacity: a C identifier, with or without ``domain/`` before it.

    More than one slash passes with any content, as it does in the API server (Kubernetes 1.37).
    """
    match name.split("/"):
        case [identifier]:
            return _identifier(identifier, path)
        case [domain, identifier]:
            errors = driver_name(domain, path) if domain else [invalid(path, "", "the domain must not be empty")]
            return errors + (_identifier(identifier, path) if identifier else [_no_name(path, "the name")])
        case _:
            return []


def full_name(name: str, path: str) -> list[FieldError]:
    """Check an attribute name in a place without a driver of its own: ``domain/identifier``, lower-case domain."""
    match name.split("/"):
        case [identifier]:
            detail = "a fully qualified name must be a domain and a name separated by a slash"
            return [*_identifier(identifier, path), invalid(path, name, detail)]
        case [domain, identifier]:
            errors = _prefix(domain, path) if domain else [invalid(path, "", "prefix must not be empty")]
            return errors + (_identifier(identifier, path) if identifier else [_no_name(path, "name")])
        case _:
            return []


def key_path(path: str, key: str, max_length: int = _KEY_MAX_LENGTH) -> str:
    """Return ``path[key]``, a key that is too long cut in the middle."""
    if len(key) > max_length:
        shown_length = max_length - 3
        key = f"{key[: (shown_length + 1) // 2]}...{key[len(key) - shown_length // 2 :]}"
    return f"{path}[{key}]"


def _identifier(name: str, path: str) -> list[FieldError]:
    errors = []
    if names.byte_length(name) > IDENTIFIER_MAX_LENGTH:
        errors.append(too_long(path, name, IDENTIFIER_MAX_LENGTH))
    return errors + [invalid(path, name, text) for text in names.c_identifier(name)]


def _prefix(domain: str, path: str) -> list[FieldError]:
    errors = []
    if names.byte_length(domain) > DOMAIN_MAX_LENGTH:
        errors.append(too_long(path, domain, DOMAIN_MAX_LENGTH))
    return errors + [invalid(path, domain, f"prefix: {text}") for text in names.dns_subdomain(domain)]


def _no_name(path: str, subject: str) -> FieldError:
    return invalid(path, "", f"{subject} must not be empty")
