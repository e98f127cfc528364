"""Follows the claims of the cluster, in every replica, and reports what becomes of those that hold our devices."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

from msgspec import Struct, field
from pydantic import ValidationError

from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.client.informer import wait_for_event
from dra_kit.client.operator import KopfThread, kopf, kopf_settings, on_event
from dra_kit.client.resources import RESOURCE_CLAIMS
from dra_kit.controller.claim_transitions import UNKNOWN, AnnouncementBacklog, ClaimTransition, our_devices, transitions
from dra_kit.errors import Gone, Unavailable
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
    """Turns watch events and lists into transitions, each delivered once; only claims with our devices are cached.

    The first list announces nothing: claims that hold devices when the controller starts have had their Events.
    """

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._claims: dict[str, _Held] = {}
        # the versions at which claims were deallocated or deleted. Later messages about them from a lagging watch are
        # stale. Messages about claims that are not known yet are new, however old they are.
        self._ended: OrderedDict[str, int] = OrderedDict()
        self._listing = False
        self._listed = -1  # resource version of the last list
        self.seen: int = -1
        """The latest resource version of any claim that a watch or a list has returned."""

    def __len__(self) -> int:
        return len(self._claims)

    @property
    def primed(self) -> bool:
        """Whether there was a list."""
        return self._listed >= 0

    def claims(self) -> Iterator[ResourceClaim]:
        """Return the claims that hold our devices now, decoded one at a time: thousands of models take much memory."""
        return (held.read() for held in tuple(self._claims.values()))

    def observe(self, claim: Mapping[str, Any], *, deleted: bool = False) -> tuple[ClaimTransition, ...]:
        """Process the state of one claim from a watch; the last state of a deleted one if ``deleted``."""
        uid, version = _identity(claim)
        self.seen = max(self.seen, version)
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

    def replace(self, claims: Iterable[Mapping[str, Any]], resource_version: str) -> tuple[ClaimTransition, ...]:
        """Process a complete list of all claims: cached claims that are missing from it are gone."""
        listed = _number(resource_version)
        silent = not self.primed
        steps: list[ClaimTransition] = []
        seen: set[str] = set()
        for claim in claims:
            uid, version = _identity(claim)
            seen.add(uid)
            if silent and uid not in self._claims and uid not in self._ended:
                if self._is_ours(claim):  # not reported to subscribers: avoids reading thousands of claims now
                    self._claims[uid] = _Held(version, json.dumps(reduced(claim), separators=(",", ":")))
            elif version > self._version(uid):
                steps += self._take(uid, version, self._read(uid, claim))
        for uid in [uid for uid in self._claims if uid not in seen and self._version(uid) <= listed]:
            steps += self._take(uid, listed, None)
        self._listed = max(self._listed, listed)
        self.seen = max(self.seen, listed)
        return () if silent else tuple(steps)

    def _take(self, uid: str, version: int, claim: ResourceClaim | None) -> tuple[ClaimTransition, ...]:
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


LIST_RETRY: Final = 10.0


class ClaimSubscription(Struct, frozen=True):
    """The claims at the start, recent transitions that may not be announced, and a queue of later transitions.

    The claims can be read once.
    """

    claims: Iterator[ResourceClaim]
    recent: tuple[ClaimTransition, ...]
    steps: asyncio.Queue[ClaimTransition] = field(default_factory=asyncio.Queue)


class ClaimFollower:
    """A part of the controller: the periodic list, and the service behind the watch's handler.

    The watch delivers changes immediately; the list delivers what the watch missed, above all deletions.

    Args:
        resync_seconds: seconds between two lists, with a jitter of 10 %.
        backlog: stores changes that the active replica may not have announced; None if this is the only replica.
        since: a resource version at which no claims existed; no later change has been announced. All changes are
            new, and are stored for the first subscribers. None if the state at the start has been announced.
        announced: the resource version up to which former replicas have announced everything. The first list is of
            that version, so that later changes are steps for the backlog. ``UNKNOWN``: the newest state is announced.
    """

    name = "claims"

    def __init__(
        self,
        client: Client,
        driver: str,
        *,
        resync_seconds: float,
        backlog: AnnouncementBacklog | None = None,
        since: str | None = None,
        announced: int = UNKNOWN,
    ) -> None:
        self._client = client
        self._resync_seconds = resync_seconds
        self._backlog = AnnouncementBacklog() if since is not None else backlog
        self._since = since
        self._announced = announced
        self.first_list: int | None = None
        """The resource version of the first list of the newest state; None before it."""
        self._cache = ClaimCache(driver)
        self._look_again = asyncio.Event()
        self._subscriptions: list[ClaimSubscription] = []

    @contextmanager
    def subscribed(self) -> Iterator[ClaimSubscription]:
        """Yield the current claims and every later transition; in the follower's loop."""
        recent = self._backlog.steps() if self._backlog is not None else ()
        if self._since is not None:
            # all parts subscribe once, in one iteration of the loop: no other replica takes over from the only one
            asyncio.get_running_loop().call_soon(self._drop_backlog)
        subscription = ClaimSubscription(self._cache.claims(), recent)
        self._subscriptions.append(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.remove(subscription)

    @property
    def claims(self) -> int:
        """How many claims hold devices of the driver; from any thread."""
        return len(self._cache)

    @property
    def seen(self) -> int:
        """The latest resource version of any claim that a watch or a list has returned."""
        return self._cache.seen

    async def run(self, ready: asyncio.Event) -> None:
        """List again and again; ready after the first list, or at once if the announced version is known.

        Raises:
            KubeError: the API server refuses the list.
        """
        if self._since is not None:
            self._cache.replace((), self._since)
            ready.set()
            await self._look_again.wait()  # a list before the watch would hide what happens between the two
        elif self._announced != UNKNOWN and await self._list_announced():
            ready.set()
            await self._look_again.wait()
        while True:
            # in step, all controllers of a cluster would list at once
            pause = self._resync_seconds * random.uniform(0.9, 1.1)  # noqa: S311 - no secret
            self._look_again.clear()
            try:
                await self.resync()
                ready.set()
            except Unavailable as error:
                logger.warning("claims cannot be listed now", extra={"error": str(error)})
                pause = min(pause, LIST_RETRY)
                await asyncio.sleep(pause)
                continue
            await wait_for_event(self._look_again, pause)

    def look_again(self) -> None:
        """List again: the watch was restarted, and only a list shows what was deleted in the gap."""
        self._look_again.set()

    async def resync(self) -> None:
        """List the claims, and deliver changes that the watch missed, except the first time."""
        begins = not self._cache.primed
        with self._cache.listing():
            found = await self._client.list(RESOURCE_CLAIMS, keep=reduced)
            self._deliver(self._cache.replace(found.items, found.resource_version))
        if begins and self._backlog is not None:
            # this replica will never announce earlier changes; once active, it records that in the Lease
            self._backlog.renewed(int(found.resource_version))
        if self.first_list is None:
            self.first_list = int(found.resource_version)
        logger.debug("claims listed", extra={"claims": len(found.items), "ours": len(self._cache)})

    async def _list_announced(self) -> bool:
        """List the claims at the announced version; return False if the server no longer has that version."""
        while True:
            try:
                found = await self._client.list(RESOURCE_CLAIMS, at=str(self._announced), keep=reduced)
            except Gone as error:
                logger.info("changes before the start of this replica are unknown", extra={"error": str(error)})
                return False
            except Unavailable as error:
                logger.warning("claims cannot be listed now", extra={"error": str(error)})
                await asyncio.sleep(min(self._resync_seconds, LIST_RETRY))
                continue
            self._cache.replace(found.items, str(self._announced))
            return True

    async def on_claim(self, event_type: str | None, claim: Mapping[str, Any]) -> None:
        """Process one event of the watch; ``event_type`` is None for objects of its initial list."""
        self._deliver(self._cache.observe(claim, deleted=event_type == "DELETED"))

    def _drop_backlog(self) -> None:
        self._backlog = None

    def _deliver(self, steps: Iterable[ClaimTransition]) -> None:
        for step in steps:
            if self._backlog is not None:
                self._backlog.add(step)
            for subscription in self._subscriptions:
                subscription.steps.put_nowait(step)


WATCH_RETRY: Final = 1.0
_WATCH_SECONDS: Final = 2
"""The API server sends what happened since a resource version at once, but a bookmark only after a minute."""


class ClaimHistory:
    """A part of the controller that watches from a resource version on until kopf's watch takes over.

    A list shows only current claims. The Events of one that was created and deleted in between would be missing.
    """

    name = "history"

    def __init__(self, client: Client, follower: ClaimFollower, since: str) -> None:
        self._client = client
        self._follower = follower
        self._version = since

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready when the follower knows all that happened before."""
        while not self._is_over():
            try:
                if await self._watch():
                    break
            except Gone as error:  # the follower's list brings what is still there
                logger.warning(
                    "changes of claims before this process started are lost: the API server does not keep them so long",
                    extra={"error": str(error)},
                )
                break
            except Unavailable as error:
                logger.warning("claims cannot be watched now", extra={"error": str(error)})
                await asyncio.sleep(WATCH_RETRY)
        ready.set()
        await asyncio.Event().wait()

    async def _watch(self) -> bool:
        """Watch for a while, and return whether nothing is left that happened before the list."""
        complete = self._follower.first_list is not None
        events = self._client.watch(RESOURCE_CLAIMS, resource_version=self._version, seconds=_WATCH_SECONDS)
        async with aclosing(events):
            async for event in events:
                if event.type != "BOOKMARK":
                    complete = False  # there may be more than the server could send in time
                    await self._follower.on_claim(event.type, event.object)
                self._version = str(event.object["metadata"]["resourceVersion"])
                if self._is_over():
                    return True
        return complete

    def _is_over(self) -> bool:
        """Return whether everything is known that happened before kopf watched: the list came after."""
        listed = self._follower.first_list
        return listed is not None and int(self._version) >= listed


class ClaimWatch:
    """Runs kopf for the follower.

    It runs only once: when kopf stops, watched changes may be lost, so the pod restarts and begins with a list.
    """

    name = "kopf"

    def __init__(self, credentials: Credentials, follower: ClaimFollower) -> None:
        self._credentials = credentials
        self._follower = follower

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready when claims are watched: from then on nothing is missed.

        Raises:
            KubeError: what ended kopf.
        """
        loop = asyncio.get_running_loop()

        def build() -> tuple[kopf.OperatorRegistry, kopf.OperatorSettings]:
            registry = kopf.OperatorRegistry()
            on_event(registry, RESOURCE_CLAIMS, self._follower.on_claim, id="follow-claims", loop=loop)
            settings = kopf_settings(chunk_size=1)  # kopf needs the version only
            # kopf has a task for each object that changes, for 5 s after its event: with 10,000 claims that is 80 MiB
            settings.queueing.worker_limit = 100
            settings.queueing.idle_timeout = 0.1
            return registry, settings

        def watching() -> None:
            ready.set()
            self._follower.look_again()

        def notify() -> None:
            with suppress(RuntimeError):  # the process has ended, kopf's thread has not
                loop.call_soon_threadsafe(watching)

        # changes_only: the follower lists when kopf watches. kopf's own list would take 70 MiB with 10,000 claims
        thread = KopfThread(self._credentials, build, backoff=(), events_only=True, changes_only=True, watching=notify)
        await thread.run(asyncio.Event())
