"""Why a device is not for a request."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final


class Check(StrEnum):
    """What a device is checked for, in the order in which reasons are given."""

    POOL = "pool"
    NODE = "node"
    FEATURE = "feature"
    CLASS = "class"
    SELECTOR = "selector"
    TAINT = "taint"
    ALLOCATED = "allocated"
    CAPACITY = "capacity"
    COUNTERS = "counters"
    ERROR = "error"


@dataclasses.dataclass(
    slots=True, unsafe_hash=True
)  # not frozen, which takes twice as long to make, for devices by ten thousands
class Reason:
    """One thing that stands between a device and a request. Never changed.

    Attributes:
        check: what the device was checked for.
        text: a clause about the device: ``cheese is "cheddar"``.
        brief: what devices have in common that fail for the same reason: ``wrong cheese``.
        found: what this device has: ``"cheddar"``; empty where ``brief`` is enough.
        wanted: what it had to have, with the sign between the two: ``≠ "mozzarella"``.
        remedy: what would have to change, and nothing else, for devices with this reason alone to fit; empty where
            the user of the claim can change nothing.
        details: the same for machines.
    """

    check: Check = dataclasses.field(hash=False)
    text: str
    brief: str = dataclasses.field(hash=False)
    found: str = dataclasses.field(default="", hash=False)
    wanted: str = dataclasses.field(default="", hash=False)
    remedy: str = dataclasses.field(default="", hash=False)
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)


RELEASED: Final = "once other claims release their devices"
"""The remedy for devices that are in use."""


def feature(what: str, gate: str) -> Reason:
    """Return the reason against a device that needs a feature gate which is off.

    Args:
        what: the device has.
        gate: its name.
    """
    return Reason(
        Check.FEATURE, f"has {what}, and the feature gate {gate} is off", f"with {what}", details={"gate": gate}
    )


UNMATCHED: Final = frozenset({Check.POOL, Check.NODE, Check.FEATURE, Check.CLASS, Check.SELECTOR, Check.ERROR})
"""Checks that keep a device from matching a request at all; the others keep one that matches from being had."""
