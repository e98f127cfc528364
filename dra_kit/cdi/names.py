"""Names in CDI: qualified device names, this SDK's kind for a driver, and the names of its spec files.

Vendor, class and device name follow the rules of the CDI specification 1.1.0 as container runtimes enforce them.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from msgspec import Struct

from dra_kit.errors import PermanentError

CLAIM_CLASS = "claim"
"""Class of the devices that are made for a claim."""

VENDOR_RULE = "a vendor starts with a letter, ends with a letter or digit, and has only letters, digits, '_', '-', '.'"
CLASS_RULE = "a class starts with a letter, ends with a letter or digit, and has only letters, digits, '_', '-', '.'"
DEVICE_RULE = "a device name starts and ends with a letter or digit, and has only letters, digits, '_', '-', '.', ':'"

_VENDOR_OR_CLASS = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")

# room for the affixes of a temporary file within the 255 bytes of a file name
_FILE_NAME_LIMIT = 240


def valid_vendor(vendor: str) -> bool:
    """Return whether runtimes accept it as the part of a kind before the slash."""
    return _VENDOR_OR_CLASS.fullmatch(vendor) is not None


def valid_class(class_name: str) -> bool:
    """Return whether runtimes accept it as the part of a kind after the slash."""
    return _VENDOR_OR_CLASS.fullmatch(class_name) is not None


def valid_device_name(name: str) -> bool:
    """Return whether runtimes accept it as the name of a device in a spec."""
    return _DEVICE.fullmatch(name) is not None


class QualifiedName(Struct, frozen=True):
    """A device as containers ask for it; ``str()`` gives ``vendor/class=name``."""

    vendor: str
    class_name: str
    name: str

    @property
    def kind(self) -> str:
        """``vendor/class``."""
        return f"{self.vendor}/{self.class_name}"

    def __str__(self) -> str:
        return f"{self.kind}={self.name}"

    @classmethod
    def parse(cls, text: str) -> QualifiedName:
        """Split ``vendor/class=name``.

        Raises:
            PermanentError: no qualified name, with code ``invalid-cdi-name``: a runtime would find no such device.
        """
        kind, equals, name = text.partition("=")
        vendor, slash, class_name = kind.partition("/")
        if not (equals and slash):
            rule = "a qualified name is vendor/class=name"
        elif not valid_vendor(vendor):
            rule = VENDOR_RULE
        elif not valid_class(class_name):
            rule = CLASS_RULE
        elif not valid_device_name(name):
            rule = DEVICE_RULE
        else:
            return cls(vendor, class_name, name)
        raise PermanentError(f"CDI device {text!r} cannot exist: {rule}", code="invalid-cdi-name")


def claim_kind(driver: str) -> str:
    """Return the kind of the devices that a driver makes for claims.

    The prefix makes a valid vendor of every valid driver name: those may start with a digit, vendors may not. Case is
    preserved, because Kubernetes distinguishes drivers by it.
    """
    return f"k8s.{driver}/{CLAIM_CLASS}"


def claim_device_name(claim_uid: str, *, request: str, pool: str, device: str, share_id: str = "") -> str:
    """Return the CDI name of one allocation result, unique among all results of all claims of a driver.

    Runtimes may remember the edits of a name, so no name may ever mean two things: the claim's UID comes first, and
    the request tells an admin's access to a device from the allocation of the same device in the same claim.
    ``request`` may be ``request/subrequest`` and ``pool`` several DNS subdomains with slashes between them.
    """
    parts = [claim_uid, request, pool, device]
    if share_id:
        parts.append(share_id)
    # none of the parts has a ':' or '_' of its own in the resource.k8s.io API
    return ":".join(parts).replace("/", "_")


def _prefix(driver: str) -> str:
    # driver names have no '_', so the first one ends the driver's part and no driver's prefix starts another's
    return f"k8s.{driver}-{CLAIM_CLASS}_"


def _encode(driver: str, claim_uid: str) -> str:
    return f"{_prefix(driver)}{quote(claim_uid, safe='', errors='surrogatepass')}.json"


def spec_file_name(driver: str, claim_uid: str) -> str:
    """Return the file name of a claim's spec; one to one, and safe as a file name whatever the UID is.

    Raises:
        PermanentError: the UID is empty or too long for a file name, with code ``invalid-claim-uid``. The UIDs of an
            API server are 36 characters.
    """
    name = _encode(driver, claim_uid)
    if not claim_uid or len(name) > _FILE_NAME_LIMIT:
        raise PermanentError(
            f"claim UID {claim_uid[:64]!r} ({len(claim_uid)} characters) cannot be part of a CDI file name: "
            f"it must have at least one character and the name {name[:64]}... at most {_FILE_NAME_LIMIT}",
            code="invalid-claim-uid",
        )
    return name


def claim_uid_of(driver: str, file_name: str) -> str | None:
    """Return the claim UID of a spec file of this driver, None for any other file name."""
    prefix = _prefix(driver)
    if not (file_name.startswith(prefix) and file_name.endswith(".json")):
        return None
    try:
        uid = unquote(file_name[len(prefix) : -len(".json")], errors="surrogatepass")
    except UnicodeDecodeError:
        return None
    # another spelling of the same UID is somebody else's file
    return uid if uid and _encode(driver, uid) == file_name else None


def temporary_file_name(spec_file: str, token: str) -> str:
    """Return a name for a temporary file beside the spec file; runtimes ignore it: they load .json and .yaml."""
    return f".{spec_file}.{token}.tmp"


def is_temporary_file(driver: str, file_name: str) -> bool:
    """Return whether a file name is one of this driver's ``temporary_file_name``."""
    return file_name.startswith(f".{_prefix(driver)}") and file_name.endswith(".tmp")
