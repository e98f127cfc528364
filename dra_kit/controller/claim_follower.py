"""The claims that hold our devices, as last seen, and what changed since; updated by a watch and by lists.

A watch may lose events and may lag behind a list, and a list may be older than what the watch brought while it was
under way. Every state is therefore taken by its resource version and never replaced by an older one. Kubernetes
promises that versions of one resource compare as integers (KEP-5504; so they are in every release with etcd).
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from msgspec import Struct
from pydantic import ValidationError

from dra_kit.controller.claims.lifecycle import Transition, our_devices, transitions
from dra_kit.kubernetes.resource.v1 import ResourceClaim

logger: logging.Logger = logging.getLogger(__name__)


_METADATA: Final = ("name", "namespace", "uid", "resourceVersion", "ownerReferences")
_RESULT: Final = (
    "request", "driver", "pool", "device", "shareID", "adminAccess", "consumedCapacity", "bindingConditions",
    "bindingFailureConditions",
)  # fmt: skip


_ENDED_MAX: Final = 10_000
"""Claims without devices that are remembered; a watch does not lag behind a list by that many."""


class ClaimCache:
    """Turns watch events and lists into transitions, each delivered once.

    The first list is remembered in silence: what holds devices when the controller starts has had its Events.

    Args:
        driver: whose devices count; claims without any are not kept.
    """

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._claims: dict[str, _Held] = {}
        # the versions in which claims gave their devices back or were gone: what a watch that lags behind says of them
        # later is old; what it says of claims that nobody has seen is news, however old it is
        self._ended: OrderedDict[str, int] = OrderedDict()
        self._listing = False
        self._listed = -1  # resource version of the last list
        self._seen = -1

    def __len__(self) -> int:
        return len(self._claims)

    @property
    def primed(self) -> bool:
        """Whether there was a list."""
        return self._listed >= 0

    @property
    def seen(self) -> int:
        """The latest resource version that a watch or a list has brought, of whatever claim."""
        return self._seen

    def claims(self) -> HeldClaims:
        """Return those that hold devices of ours now."""
        return HeldClaims(tuple(self._claims.values()))

    def observe(self, claim: Mapping[str, Any], *, deleted: bool = False) -> tuple[Transition, ...]:
        """Take the state of one claim from a watch.

        Args:
            claim: the object as it came.
            deleted: it is the last state of a deleted one.
        """
        uid, version = _identity(claim)
        self._seen = max(self._seen, version)
        if version <= self._version(uid):
            return ()
        steps = self._take(uid, version, self._read(uid, claim))
        # its last state may be news: kopf keeps the last one only of events that follow each other at once
        return (*steps, *self._take(uid, version, None)) if deleted else steps

    @contextmanager
    def listing(self) -> Iterator[None]:
        """Around the request for a list and :meth:`replace`: the watch may be ahead of the list meanwhile."""
        self._listing = True
        try:
            yield
        finally:
            self._listing = False

    def replace(self, claims: Iterable[Mapping[str, Any]], resource_version: str) -> tuple[Transition, ...]:
        """Take a complete list: what it does not hold is gone.

        Args:
            claims: all claims of the cluster.
            resource_version: of the list.
        """
        listed = _number(resource_version)
        silent = not self.primed
        steps: list[Transition] = []
        seen: set[str] = set()
        for claim in claims:
            uid, version = _identity(claim)
            seen.add(uid)
            if silent and uid not in self._claims and uid not in self._ended:
                if self._is_ours(claim):  # nobody is told of it: thousands need not be read now
                    self._claims[uid] = _Held(version, json.dumps(reduced(claim), separators=(",", ":")))
            elif version > self._version(uid):
                steps += self._take(uid, version, self._read(uid, claim))
        for uid in [uid for uid in self._claims if uid not in seen and self._version(uid) <= listed]:
            steps += self._take(uid, listed, None)
        self._listed = max(self._listed, listed)
        self._seen = max(self._seen, listed)
        return () if silent else tuple(steps)

    def _take(self, uid: str, version: int, claim: ResourceClaim | None) -> tuple[Transition, ...]:
        held = self._claims.get(uid)
        happened = transitions(held.read() if held is not None else None, claim, self._driver)
        steps = tuple(replace(step, version=version) for step in happened)
        if claim is not None and our_devices(claim, self._driver):
            self._claims[uid] = _Held(version, claim.model_dump_json(by_alias=True, exclude_defaults=True))
            return steps
        if self._claims.pop(uid, None) is not None or self._listing:
            self._ended[uid] = version
            self._ended.move_to_end(uid)
            while len(self._ended) > _ENDED_MAX and not self._listing:
                self._ended.popitem(last=False)
        return steps

    def _version(self, uid: str) -> int:
        known = self._claims.get(uid)
        if known is not None:
            return known.version
        return self._ended.get(uid, -1)

    def _is_ours(self, claim: Mapping[str, Any]) -> bool:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or ()
        return any(result.get("driver") == self._driver for result in results)

    def _read(self, uid: str, claim: Mapping[str, Any]) -> ResourceClaim | None:
        """Return the claim as a model if it holds or held devices of ours: most claims are of other drivers."""
        if uid not in self._claims and not self._is_ours(claim):
            return None
        try:
            return ResourceClaim.model_validate(reduced(claim))
        except ValidationError as error:
            logger.error("claim cannot be read", extra={"claim_uid": uid, "error": str(error)})
            held = self._claims.get(uid)
            return held.read() if held is not None else None


class _Held(Struct, frozen=True):
    """A claim at rest: as text it takes a tenth of the memory of the model."""

    version: int
    text: str

    def read(self) -> ResourceClaim:
        return ResourceClaim.model_validate_json(self.text)


class HeldClaims:
    """Claims as they were at one moment; read one by one, since thousands of models take much memory."""

    def __init__(self, held: tuple[_Held, ...]) -> None:
        self._held = held

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[ResourceClaim]:
        return (each.read() for each in self._held)


def reduced(claim: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a claim that are used; with its configs, of up to 640 KiB, few claims fill the memory."""
    metadata, status = claim.get("metadata") or {}, claim.get("status") or {}
    allocation = status.get("allocation")
    if allocation is not None:
        results = (allocation.get("devices") or {}).get("results") or []
        allocation = {
            "devices": {"results": [_only(result, _RESULT) for result in results]},
            "nodeSelector": allocation.get("nodeSelector"),
            "allocationTimestamp": allocation.get("allocationTimestamp"),
        }
    return {
        "metadata": _only(metadata, _METADATA),
        "spec": {},
        "status": {"allocation": allocation, "reservedFor": status.get("reservedFor") or []},
    }


def _only(fields: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {key: fields[key] for key in names if key in fields}


def _identity(claim: Mapping[str, Any]) -> tuple[str, int]:
    metadata = claim.get("metadata") or {}
    return str(metadata.get("uid", "")), _number(metadata.get("resourceVersion"))


def _number(resource_version: object) -> int:
    return int(str(resource_version or 0))
