"""Publishes the inventory as ResourceSlices: compares the desired slices with those of the API server, and writes."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from typing import Any, Final, Protocol

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import ValidationError

from dra_kit.author.device import Device
from dra_kit.author.inventory import Inventory, Pool, is_published_alike
from dra_kit.author.model import AUTHOR_RELEASE, invalid_device, short_repr
from dra_kit.client.api import Client
from dra_kit.client.informer import jittered, retry_delay, wait_for_event
from dra_kit.client.resources import RESOURCE_SLICES
from dra_kit.errors import ConfigurationError, Conflict, DraKitError, Invalid, KubeError, NotFound
from dra_kit.kubernetes.release import KubernetesVersion
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.api_model import ObjectMeta, OwnerReference
from dra_kit.kubernetes.resource.field_errors import FieldError
from dra_kit.slices.planning import (
    AcceptedSlice,
    DesiredPool,
    DesiredSlices,
    SlicePlan,
    dropped_fields,
    generate_name,
    is_stored_alike,
    plan,
    pools_beyond_one_slice,
    refused_slices,
    taints_left_out,
    without_pools,
)
from dra_kit.text import counted

logger: logging.Logger = logging.getLogger(__name__)
SETTLE: Final = 0.05
"""Seconds for which changes are collected into one publication."""
CHECK_AFTER_WRITE: Final = 35.0
"""Seconds after a write until the slices are checked again: a restarting kubelet may delete them unnoticed."""
CHECK_EVERY: Final = 600.0
"""Seconds between two checks when nothing happens."""
BURST: Final = 20
"""Changes that are written at once; a device that comes and goes without end gets one write per ``PACE`` seconds."""
PACE: Final = 5.0
REPORT_AGAIN: Final = 60.0
"""Seconds until the same error is reported again."""
_BAD_REQUEST: Final = 400
_NAMED: Final = 10
"""Devices that one line of the log names."""


class Publisher:
    """The part of a process that publishes.

    Args:
        check_after_write: seconds after a write until the slices are checked again.
        record: the record of earlier publishers of these slices, to be continued; None for a new one.

    Attributes:
        wanted: the inventory to publish; None before the first inventory.
        up_to_date: set while the desired inventory is published.
        last_error: why the last publication failed; empty if it did not.
        record: counts of its publications so far.
    """

    name = "publisher"

    def __init__(
        self,
        scope: SliceScope,
        client: Client,
        *,
        check_after_write: float = CHECK_AFTER_WRITE,
        record: PublicationCounts | None = None,
    ) -> None:
        self._scope = scope
        self._client = client
        self._check_after_write = check_after_write
        self.wanted: Inventory[Device] | None = None
        self._changed = asyncio.Event()  # any reason to check
        self._renewed = asyncio.Event()  # the desired inventory
        self.up_to_date: Final = asyncio.Event()
        self._accepted: dict[str, AcceptedSlice] = {}
        self._logged: set[str] = set()
        self._left_out: dict[str, dict[str, tuple[v1.DeviceTaint, ...]]] = {}  # taints, by pool and device
        self._uids: set[str] = set()  # known UIDs of our slices
        self._backoff = OverwriteBackoff()
        self._pace = WritePace()
        self._logged_at = 0.0
        self.last_error: str = ""
        self.record: PublicationCounts = record or PublicationCounts()

    def publish(self, inventory: Inventory[Device]) -> None:
        """Publish this inventory from now on; one that results in the same slices triggers no requests."""
        before, self.wanted = self.wanted, inventory
        if before is not None and _published_alike(inventory, before):
            return
        self.up_to_date.clear()
        self._renewed.set()
        self._changed.set()

    def look_again(self) -> None:
        """Check again: something may have changed on the server."""
        if self.wanted is not None:
            self._changed.set()

    def changed(self, item: Mapping[str, Any]) -> None:
        """Check again because a slice is now this, unless it is what this publisher has just stored."""
        metadata = item["metadata"]
        accepted = self._accepted.get(metadata["name"])
        if accepted is None or accepted.stored.metadata.resource_version != metadata.get("resourceVersion"):
            self.look_again()

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready when the first inventory is published."""
        attempt = 0
        at_least: float = 0.0
        delay: float | None = None
        while True:
            await self._wait(at_least, delay)
            await asyncio.sleep(max(SETTLE + self._backoff.seconds(), self._pace.seconds()))
            self._changed.clear()
            self._renewed.clear()
            try:
                wrote = await self.reconcile()
            except DraKitError as error:
                # retrying does not help if the content is rejected; a new inventory may
                rejected = isinstance(error, Invalid | ConfigurationError)
                at_least = retry_delay(attempt)
                delay = jittered(CHECK_EVERY) if rejected else at_least
                attempt += 1
                self.record.results["error"] += 1
                self._report(error, delay)
                continue
            self.record.results["success"] += 1
            self.record.last_success = time.time()
            attempt, at_least, self.last_error = 0, 0.0, ""
            delay = jittered(self._check_after_write if wrote else CHECK_EVERY)
            ready.set()
            if not self._renewed.is_set():
                self.up_to_date.set()

    async def _wait(self, at_least: float, at_most: float | None) -> None:
        """Wait until there is work to do.

        For the first ``at_least`` seconds, only a new inventory counts as work. Watch events after an error may come
        from the part of the publication that succeeded; publishing everything again for these would never end.
        """
        if not await wait_for_event(self._renewed, at_least):
            await wait_for_event(self._changed, None if at_most is None else at_most - at_least)

    def _report(self, error: DraKitError, delay: float) -> None:
        text, now = str(error), time.monotonic()
        level = logging.INFO if isinstance(error, Conflict) else logging.ERROR
        if text == self.last_error and now - self._logged_at < REPORT_AGAIN:
            level = logging.DEBUG
        else:
            self._logged_at = now
        self.last_error = text
        logger.log(level, NOT_PUBLISHED, extra={"error": text, "code": error.code, "again_in": delay})

    async def reconcile(self) -> bool:
        """Make the API server hold the desired slices; return whether anything had to be written.

        Raises:
            KubeError: the API server rejected a request or did not respond.
            ConfigurationError: the inventory cannot be published on this server; the devices that can be are published.
        """
        if self.wanted is None:
            return False
        if self._scope.is_superseded():
            self._accepted, self._uids = {}, set()  # how the new server stores them is not an edit by others
            return False
        existing = await self._existing()
        lost = self._find_losses(existing)
        edited = self._find_edits(existing)
        version = await self._scope.version()
        try:
            steps, refused = await self._planned(self.wanted, existing, version)
            if not lost:  # otherwise it is already counted
                self._count_undone(edited, steps)
            if steps:
                self._pace.wrote()  # also if only a part succeeds
            await self._execute(steps)
            self.record.generations = _generations(existing, steps)
        except (Invalid, ConfigurationError) as error:
            self._scope.invalidate()
            if await self._scope.version() == version:
                raise
            raise Conflict(
                f"{error}: planned for Kubernetes {version}, but the API server was replaced; it is retried"
            ) from error
        if steps:
            logger.info(
                "slices published",
                extra={"creates": len(steps.creates), "updates": len(steps.updates), "deletes": len(steps.deletes)},
            )
        if refused is not None:
            self._scope.invalidate()  # another API server may accept it
            raise refused
        return bool(steps)

    async def try_out(self) -> None:
        """Have the API server validate all writes of a publication by a dry run.

        Raises:
            KubeError: the API server would reject it, or does not respond.
            ConfigurationError: the inventory, or a part of it, cannot be published on this server.
        """
        if self.wanted is None:
            return
        steps, refused = await self._planned(self.wanted, await self._existing(), await self._scope.version())
        writes: list[Callable[[], Awaitable[object]]] = [
            *(partial(self._delete, item, dry_run=True) for item in steps.deletes),
            *(partial(self._client.update, RESOURCE_SLICES, item.to_json(), dry_run=True) for item in steps.updates),
            *(partial(self._client.create, RESOURCE_SLICES, item.to_json(), dry_run=True) for item in steps.creates),
        ]
        for write in writes:
            try:
                await write()
            except Invalid as error:
                # a webhook with side effects rejects all dry runs with 400; an invalid object gets 422
                if error.status != _BAD_REQUEST:
                    self._scope.invalidate()  # it may be another API server by now
                    raise
        if refused is not None:
            raise refused

    async def _existing(self) -> list[v1.ResourceSlice]:
        listed = await self._client.list(RESOURCE_SLICES, field_selector=self._scope.field_selector)
        return [parse_slice(item) for item in listed.items]

    async def _planned(
        self, wanted: Inventory[Device], existing: Sequence[v1.ResourceSlice], version: KubernetesVersion
    ) -> tuple[SlicePlan, ConfigurationError | None]:
        """Return what to write, and why that is not the complete inventory."""
        pools, refused = await self._scope.publishable(tuple(map(self._scope.desired, wanted.pools)))
        desired = DesiredSlices(driver=self._scope.driver, owner=await self._scope.owner(), pools=pools)
        self._report_taints(pools, version)
        if self._left_out:
            self._scope.invalidate()  # another API server may accept them
        too_large = pools_beyond_one_slice(pools, version)
        others = replace(desired, pools=tuple(pool for pool in pools if pool.name not in too_large))
        steps = without_pools(plan(others, existing, version=version, accepted=self._accepted), too_large)
        sample = slice_with_counters(steps)
        if sample is not None and not await stores_counters(self._client, sample):
            refused = refused or counters_dropped(desired, version)
            steps = plan(without_counters(desired), existing, version=version, accepted=self._accepted)
        elif too_large:
            refused = refused or pools_too_large(too_large)
        if version != AUTHOR_RELEASE.version:  # that one has judged each pool when it was constructed
            errors = refused_slices(steps, existing, version)
            if errors:
                refused = refused or pools_refused(errors, version)
                steps = without_pools(steps, errors)
        return steps, refused

    def _report_taints(self, pools: Sequence[DesiredPool], version: KubernetesVersion) -> None:
        """Log which devices are published without some of their taints, again if other taints are left out."""
        before = self._left_out
        self._left_out = {pool.name: left for pool in pools if (left := taints_left_out(pool, version))}
        for pool, left in self._left_out.items():
            known = before.get(pool, {})
            devices = [name for name, taints in left.items() if known.get(name) != taints]
            if devices:
                logger.warning(
                    "taints that this release of Kubernetes does not accept are not published",
                    extra={"pool": pool, "devices": ", ".join(devices[:_NAMED]), "kubernetes": str(version)},
                )

    def _find_losses(self, existing: Sequence[v1.ResourceSlice]) -> bool:
        """Return whether another client deleted slices: the Node that owned them may have been replaced.

        The garbage collector deletes a slice as soon as the UID of its owner is gone, even if it was just created with
        that UID.
        """
        found = {item.metadata.uid for item in existing}
        lost, self._uids = self._uids - found, found
        if lost:
            self._scope.invalidate()
            self._log_undone("slices were deleted by another client", len(lost))
        return bool(lost)

    def _find_edits(self, existing: Sequence[v1.ResourceSlice]) -> set[str]:
        """Return the names of slices that differ from what was stored; each edit is returned once."""
        specs = {item.metadata.name: item.spec for item in existing}
        unchanged = {
            name: accepted
            for name, accepted in self._accepted.items()
            if name in specs and is_stored_alike(accepted.stored.spec, specs[name])
        }
        edited = (self._accepted.keys() & specs.keys()) - unchanged.keys()
        self._accepted = unchanged
        return edited

    def _count_undone(self, edited: set[str], steps: SlicePlan) -> None:
        """Count edits that must be undone; not edits that made a slice as desired, such as those of a twin process.

        A concurrent process of another release may have a different desired state.
        """
        undone = edited & {item.metadata.name for item in (*steps.updates, *steps.deletes)}
        if undone:
            self._log_undone("slices were edited by another client", len(undone))

    def _log_undone(self, message: str, slices: int) -> None:
        level = logging.WARNING if self._backoff.lost() else logging.INFO
        logger.log(level, message, extra={"slices": slices, "in_a_row": self._backoff.in_a_row})

    async def _execute(self, steps: SlicePlan) -> None:
        """Write what is planned; a Conflict means that another client was faster, and the slices must be read again."""
        for item in steps.deletes:
            self._accepted.pop(item.metadata.name, None)
            self._uids.discard(item.metadata.uid)
            if await self._delete(item):
                self.record.writes["delete"] += 1
                self._scope.on_write(SliceWrite.DELETED)
        for item in steps.updates:
            # without a response the stored state is unknown, and must not be taken for an edit by another client
            self._accepted.pop(item.metadata.name, None)
            try:
                self._stored(item, await self._client.update(RESOURCE_SLICES, item.to_json()))
                self.record.writes["update"] += 1
                self._scope.on_write(SliceWrite.UPDATED)
            except NotFound as error:
                raise Conflict(f"{error}: deleted after it was listed", status=404) from error
        for item in steps.creates:
            self._stored(item, await self._client.create(RESOURCE_SLICES, item.to_json()))
            self.record.writes["create"] += 1
            self._scope.on_write(SliceWrite.CREATED)

    async def _delete(self, item: v1.ResourceSlice, *, dry_run: bool = False) -> bool:
        """Delete a slice if it is still the same; return whether it existed."""
        name, uid, version = item.metadata.name, item.metadata.uid, item.metadata.resource_version
        try:
            await self._client.delete(RESOURCE_SLICES, name, uid=uid, resource_version=version, dry_run=dry_run)
        except NotFound:
            return False
        return True

    def _stored(self, sent: v1.ResourceSlice, answer: dict[str, Any]) -> None:
        stored = parse_slice(answer)
        if stored.spec == sent.spec:  # nearly always; avoids storing the content twice
            stored = stored.model_copy(update={"spec": sent.spec})
        self._accepted[stored.metadata.name] = AcceptedSlice(sent=sent, stored=stored)
        self._uids.add(stored.metadata.uid)
        for dropped in dropped_fields(sent, stored):
            text = f"{dropped.path} ({dropped.feature_gate or 'unknown feature gate'})"
            if text not in self._logged:
                self._logged.add(text)
                logger.warning(
                    "the API server dropped a field, probably because its feature gate is off",
                    extra={"slice": stored.metadata.name, "field": dropped.path, "feature_gate": dropped.feature_gate},
                )


def _generations(existing: Sequence[v1.ResourceSlice], steps: SlicePlan) -> Mapping[str, int]:
    """Return the newest generation of each existing pool after a plan was carried out."""
    gone = {item.metadata.name for item in (*steps.deletes, *steps.updates)}
    unchanged = (item for item in existing if item.metadata.name not in gone)
    found: dict[str, int] = {}
    for item in (*unchanged, *steps.updates, *steps.creates):
        pool = item.spec.pool
        found[pool.name] = max(found.get(pool.name, 0), pool.generation)
    return found


def _published_alike(inventory: Inventory[Device], before: Inventory[Device]) -> bool:
    """Return whether only the author's own fields differ."""
    return len(inventory.pools) == len(before.pools) and all(map(is_published_alike, inventory.pools, before.pools))


def parse_slice(item: dict[str, Any]) -> v1.ResourceSlice:
    """Return a slice as the API server sent it.

    Raises:
        KubeError: it is invalid.
    """
    try:
        return v1.ResourceSlice.model_validate(item)
    except ValidationError as error:
        name = item.get("metadata", {}).get("name", "?")
        raise KubeError(
            f"ResourceSlice {name}: the API server's answer is invalid: "
            f"{error.errors(include_url=False)[0]['msg']}; report this as a bug"
        ) from error


class SliceWrite(Enum):
    """The last operation on a slice."""

    DELETED = auto()
    UPDATED = auto()
    CREATED = auto()


class SliceScope(Protocol):
    """The slices that a publisher is responsible for: all slices that its selector matches."""

    @property
    def driver(self) -> str:
        """The driver's name."""
        ...

    @property
    def field_selector(self) -> str:
        """The field selector of its slices on the server."""
        ...

    async def version(self) -> KubernetesVersion:
        """Return the release of the API server."""
        ...

    async def owner(self) -> OwnerReference | None:
        """Return the object whose deletion deletes the slices; None if there is none."""
        ...

    def invalidate(self) -> None:
        """Forget the cached facts about the server and the owner, which may have changed."""
        ...

    def desired(self, pool: Pool[Device]) -> DesiredPool:
        """Return an author's pool in the form to publish."""
        ...

    async def publishable(
        self, pools: tuple[DesiredPool, ...]
    ) -> tuple[tuple[DesiredPool, ...], ConfigurationError | None]:
        """Return the pools that may be published, and why the others may not."""
        ...

    def is_superseded(self) -> bool:
        """Return whether another process publishes now; when it stops, this one publishes again."""
        ...

    def on_write(self, what: SliceWrite) -> None:
        """Record that a slice was written."""
        ...


def slice_with_counters(steps: SlicePlan) -> v1.ResourceSlice | None:
    """Return one of the slices to write whose devices consume counters, if there is one."""
    written = (*steps.creates, *steps.updates)
    return next((item for item in written if any(device.consumes_counters for device in item.spec.devices)), None)


async def stores_counters(client: Client, item: v1.ResourceSlice) -> bool:
    """Return whether the API server would store what the devices of a slice consume.

    This is a dry-run create: in an existing slice the server would retain fields that were stored while a now disabled
    gate was on.
    """
    metadata = ObjectMeta(
        generate_name=generate_name(0, 1, item.spec.driver, item.spec.node_name or ""),
        owner_references=item.metadata.owner_references,
    )
    asked = v1.ResourceSlice(metadata=metadata, spec=item.spec)
    answer = v1.ResourceSlice.model_validate(await client.create(RESOURCE_SLICES, asked.to_json(), dry_run=True))
    return any(device.consumes_counters for device in answer.spec.devices)


def without_counters(desired: DesiredSlices) -> DesiredSlices:
    """Return the part that can be published there: the devices that consume no counters."""
    pools = [
        replace(pool, counter_sets=(), devices=tuple(item for item in pool.devices if not item.consumes_counters))
        for pool in desired.pools
    ]
    return replace(desired, pools=tuple(pools))


def counters_dropped(desired: DesiredSlices, version: KubernetesVersion) -> ConfigurationError:
    """Return the message about the other devices."""
    pools = [pool.name for pool in desired.pools if any(device.consumes_counters for device in pool.devices)]
    count = sum(bool(device.consumes_counters) for pool in desired.pools for device in pool.devices)
    return ConfigurationError(
        f"{counted(count, 'device')} of pool {', '.join(pools)} not published: they consume counters, which the API "
        f"server (Kubernetes {version}) does not store, so that devices that exclude each other could be allocated "
        "together; enable the feature gate DRAPartitionableDevices in kube-apiserver and kube-scheduler (enabled by "
        "default from 1.36)",
        code="counters-dropped",
    )


def pools_too_large(errors: Mapping[str, ConfigurationError]) -> ConfigurationError:
    """Return the message about pools that do not fit into one slice."""
    pools = "; ".join(map(str, errors.values()))
    return ConfigurationError(
        f"{pools}; not published, and what was published before stays", code="counters-need-one-slice"
    )


def pools_refused(errors: Mapping[str, Sequence[FieldError]], version: KubernetesVersion) -> ConfigurationError:
    """Return the message about pools that an API server of this release refuses."""
    pools = "; ".join(str(invalid_device(f"pool {short_repr(name)}", found)) for name, found in errors.items())
    return ConfigurationError(
        f"{pools}: not published, since Kubernetes {version} refuses it whatever its feature gates; what was published "
        "before stays; change what the driver publishes",
        code="refused-by-release",
    )


class PublicationCounts(Struct):
    """Counts of publications; one record may outlive several publishers.

    Attributes:
        last_success: when the slices were last as desired, in seconds since the epoch; 0 for never.
        results: number of attempts, by ``success`` and ``error``.
        writes: slices written, by verb.
        generations: of the published pools, by name.
    """

    last_success: float = 0.0
    results: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    generations: Mapping[str, int] = field(default_factory=dict)


LOSSES_FORGOTTEN: Final = 120.0
"""Seconds without a loss after which deleted or edited slices are published again immediately."""


class OverwriteBackoff:
    """Backs off when another client repeatedly deletes or edits what is published.

    The first two losses in a row are repaired immediately, because they may be accidental. Two publishers with
    different desired states both back off, so that they put no permanent load on the API server and the scheduler.

    Attributes:
        in_a_row: consecutive losses, each soon after the previous one.
    """

    def __init__(self) -> None:
        self.in_a_row: int = 0
        self._lost_at = -math.inf

    def lost(self) -> bool:
        """Record that another client deleted or edited a slice; return whether this happens repeatedly."""
        now = time.monotonic()
        again = now - self._lost_at < LOSSES_FORGOTTEN
        self.in_a_row, self._lost_at = self.in_a_row + 1 if again else 1, now
        return again

    def seconds(self) -> float:
        """Return how long to wait before the next check."""
        if self.in_a_row < 2 or time.monotonic() - self._lost_at > LOSSES_FORGOTTEN:
            return 0.0
        return retry_delay(self.in_a_row - 2)


class WritePace:
    """Limits how often a changing inventory is written: ``BURST`` times at once, then every ``PACE`` seconds.

    Each write reaches the schedulers and, in a cluster of many nodes, competes with those of all others. What changes
    meanwhile is in the next write.
    """

    def __init__(self) -> None:
        self._left = float(BURST)
        self._at = time.monotonic()

    def wrote(self) -> None:
        """Count a write."""
        self._refill()
        self._left -= 1.0

    def seconds(self) -> float:
        """Return how long to wait before the next write."""
        self._refill()
        return max(0.0, (1.0 - self._left) * PACE)

    def _refill(self) -> None:
        now = time.monotonic()
        self._left, self._at = min(self._left + (now - self._at) / PACE, float(BURST)), now


NOT_PUBLISHED: Final = "slices not published"
"""The API server rejects ResourceSlices, or does not respond."""
