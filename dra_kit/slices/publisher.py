"""Publishes the inventory as ResourceSlices: what is wanted is held against what is there, whatever happened."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from pydantic import ValidationError

from dra_kit.author.devices.device import Device
from dra_kit.author.devices.inventory import Inventory, publish_the_same
from dra_kit.errors import ConfigurationError, Conflict, DraKitError, Invalid, KubeError, NotFound
from dra_kit.kube.client import Client
from dra_kit.kube.resources import RESOURCE_SLICES
from dra_kit.kube.versions import ServerFeatures
from dra_kit.kubernetes.resource import v1
from dra_kit.publishing.counting import counted_slice, not_counted, stores_counters, without_counted
from dra_kit.publishing.log_messages import NOT_PUBLISHED
from dra_kit.publishing.pace import Brake, happens, pause
from dra_kit.publishing.record import PublicationRecord
from dra_kit.publishing.scope import SliceScope, Write
from dra_kit.slices.planning import AcceptedSlice, DesiredSlices, SlicePlan, dropped_fields, is_stored_alike, plan

logger: logging.Logger = logging.getLogger(__name__)

SETTLE: Final = 0.05
"""Seconds in which several changes become one publication."""
CHECK_AFTER_WRITE: Final = 35.0
"""Seconds after a write until the slices are looked at again: a kubelet that restarts may wipe them unseen."""
CHECK_EVERY: Final = 600.0
"""Seconds between two looks when nothing happens."""
REPORT_AGAIN: Final = 60.0
"""Seconds until the same error is reported again."""
_BAD_REQUEST: Final = 400


class Publisher:
    """A part of a process that publishes.

    Args:
        scope: which slices these are.
        client: reads and writes slices.
        check_after_write: seconds after a write until the slices are looked at again.
        record: of former publishers of these slices, which is continued; None for a new one.

    Attributes:
        last_error: why the last publication failed; empty when it did not.
        record: what it has done so far.
    """

    name = "publisher"

    def __init__(
        self,
        scope: SliceScope,
        client: Client,
        *,
        check_after_write: float = CHECK_AFTER_WRITE,
        record: PublicationRecord | None = None,
    ) -> None:
        self._scope = scope
        self._client = client
        self._check_after_write = check_after_write
        self._wanted: Inventory[Device] | None = None
        self._changed = asyncio.Event()  # whatever it is
        self._renewed = asyncio.Event()  # what is wanted
        self._up_to_date = asyncio.Event()  # what is wanted is published
        self._accepted: dict[str, AcceptedSlice] = {}
        self._logged: set[str] = set()
        self._held: set[str] = set()  # UIDs of our slices as far as known
        self._brake = Brake()
        self._logged_at = 0.0
        self.last_error: str = ""
        self.record: PublicationRecord = record or PublicationRecord()

    @property
    def wanted(self) -> Inventory[Device] | None:
        """What is to be published; None before the first inventory."""
        return self._wanted

    def publish(self, inventory: Inventory[Device]) -> None:
        """Publish this inventory from now on; one that looks the same in slices is no reason to ask for them."""
        before, self._wanted = self._wanted, inventory
        if before is not None and _looks_like(inventory, before):
            return
        self._up_to_date.clear()
        self._renewed.set()
        self._changed.set()

    @property
    def is_up_to_date(self) -> bool:
        """Whether what is wanted has been published; from any thread."""
        return self._up_to_date.is_set()

    async def published(self) -> None:
        """Wait until what is wanted is published."""
        await self._up_to_date.wait()

    def look_again(self) -> None:
        """Look again: something may have changed on the server."""
        if self._wanted is not None:
            self._changed.set()

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready when the first inventory is published."""
        attempt = 0
        at_least: float = 0.0
        delay: float | None = None
        while True:
            await self._wait(at_least, delay)
            await asyncio.sleep(SETTLE + self._brake.seconds())
            self._changed.clear()
            self._renewed.clear()
            try:
                wrote = await self.reconcile()
            except DraKitError as error:
                # trying again will not help when the content is refused; a new inventory may
                hopeless = isinstance(error, Invalid | ConfigurationError)
                at_least = pause(attempt)
                delay = CHECK_EVERY if hopeless else at_least
                attempt += 1
                self.record.results["error"] += 1
                self._report(error, delay)
                continue
            self.record.results["success"] += 1
            self.record.last_success = time.time()
            attempt, at_least, self.last_error = 0, 0.0, ""
            delay = self._check_after_write if wrote else CHECK_EVERY
            ready.set()
            if not self._renewed.is_set():
                self._up_to_date.set()

    async def _wait(self, at_least: float, at_most: float | None) -> None:
        """Wait until there is something to do.

        Before ``at_least`` seconds are over, only another inventory is: what the server tells after an error may be the
        half of the publication that it took, and to answer that with the whole again would never end.
        """
        if not await happens(self._renewed, at_least):
            await happens(self._changed, None if at_most is None else at_most - at_least)

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
        """Make the API server hold what is wanted; whether anything had to be written.

        Raises:
            KubeError: the API server refused or did not answer.
            ConfigurationError: the inventory cannot be published on this server; devices that can are.
        """
        if self._wanted is None:
            return False
        if self._scope.left_to_another():
            self._accepted, self._held = {}, set()  # what it makes of them is nobody's edit
            return False
        listed = await self._client.list(RESOURCE_SLICES, field_selector=self._scope.field_selector)
        existing = [_parsed(item) for item in listed.items]
        lost = self._look_for_losses(existing)
        edited = self._look_for_edits(existing)
        features = await self._scope.features()
        try:
            steps, refused = await self._planned(self._wanted, existing, features)
            if not lost:  # else it counts already
                self._count_undone(edited, steps)
            await self._execute(steps)
            self.record.generations = _generations(existing, steps)
        except (Invalid, ConfigurationError) as error:
            self._scope.forget()
            if await self._scope.features() == features:
                raise
            raise Conflict(f"{error}: planned for Kubernetes {features}, the API server was replaced since") from error
        if steps:
            logger.info(
                "slices published",
                extra={"creates": len(steps.creates), "updates": len(steps.updates), "deletes": len(steps.deletes)},
            )
        if refused is not None:
            raise refused
        return bool(steps)

    async def try_out(self) -> None:
        """Have the API server check all that a publication would write, and store nothing.

        Raises:
            KubeError: the API server would refuse it, or does not answer.
            ConfigurationError: the inventory, or a part of it, cannot be published on this server.
        """
        if self._wanted is None:
            return
        listed = await self._client.list(RESOURCE_SLICES, field_selector=self._scope.field_selector)
        existing = [_parsed(item) for item in listed.items]
        steps, refused = await self._planned(self._wanted, existing, await self._scope.features())
        writes: list[Callable[[], Awaitable[object]]] = [
            *(partial(_try_delete, self._client, item) for item in steps.deletes),
            *(partial(self._client.update, RESOURCE_SLICES, item.to_json(), dry_run=True) for item in steps.updates),
            *(partial(self._client.create, RESOURCE_SLICES, item.to_json(), dry_run=True) for item in steps.creates),
        ]
        for write in writes:
            try:
                await write()
            except Invalid as error:
                # a webhook that has side effects refuses all dry runs with 400; an object that is wrong has 422
                if error.status != _BAD_REQUEST:
                    self._scope.forget()  # it may be another API server by now
                    raise
        if refused is not None:
            raise refused

    async def _planned(
        self, wanted: Inventory[Device], existing: Sequence[v1.ResourceSlice], features: ServerFeatures
    ) -> tuple[SlicePlan, ConfigurationError | None]:
        """Return what is to be written, and why that is not all of what is wanted."""
        pools, refused = await self._scope.publishable(tuple(map(self._scope.desired, wanted.pools)))
        desired = DesiredSlices(driver=self._scope.driver, owner=await self._scope.owner(), pools=pools)
        steps = plan(desired, existing, features=features, accepted=self._accepted)
        counted = counted_slice(steps)
        if counted is not None and not await stores_counters(self._client, counted):
            refused = refused or not_counted(desired, features)
            steps = plan(without_counted(desired), existing, features=features, accepted=self._accepted)
        return steps, refused

    def _look_for_losses(self, existing: Sequence[v1.ResourceSlice]) -> bool:
        """Return slices that somebody else deleted, if any: the Node that owned them may be another one by now.

        The garbage collector deletes a slice as soon as the UID of its owner is gone, also one that was just created
        with that UID.
        """
        found = {item.metadata.uid for item in existing}
        lost, self._held = self._held - found, found
        if lost:
            self._scope.forget()
            self._log_undone("slices were deleted by somebody else", len(lost))
        return bool(lost)

    def _look_for_edits(self, existing: Sequence[v1.ResourceSlice]) -> set[str]:
        """Return the names of slices that are no longer as they were stored; each edit is returned once."""
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
        """Count edits that have to be undone; not one that made a slice what is desired, as of a twin of this process.

        The other one may be a process of another release beside this one, which wants something different.
        """
        undone = edited & {item.metadata.name for item in (*steps.updates, *steps.deletes)}
        if undone:
            self._log_undone("slices were edited by somebody else", len(undone))

    def _log_undone(self, message: str, slices: int) -> None:
        level = logging.WARNING if self._brake.lost() else logging.INFO
        logger.log(level, message, extra={"slices": slices, "in_a_row": self._brake.in_a_row})

    async def _execute(self, steps: SlicePlan) -> None:
        """Write what is planned; a Conflict means that somebody was faster, and what there is now must be looked at."""
        for item in steps.deletes:
            metadata = item.metadata
            self._accepted.pop(metadata.name, None)
            self._held.discard(metadata.uid)
            try:
                await self._client.delete(
                    RESOURCE_SLICES, metadata.name, uid=metadata.uid, resource_version=metadata.resource_version
                )
                self.record.writes["delete"] += 1
                self._scope.wrote(Write.DELETED)
            except NotFound:
                pass  # gone already, as it should be
        for item in steps.updates:
            # without an answer it is not known what is stored, and must not be taken for an edit by somebody else
            self._accepted.pop(item.metadata.name, None)
            try:
                self._stored(item, await self._client.update(RESOURCE_SLICES, item.to_json()))
                self.record.writes["update"] += 1
                self._scope.wrote(Write.UPDATED)
            except NotFound as error:
                raise Conflict(f"{error}: wiped since it was listed", status=404) from error
        for item in steps.creates:
            self._stored(item, await self._client.create(RESOURCE_SLICES, item.to_json()))
            self.record.writes["create"] += 1
            self._scope.wrote(Write.CREATED)

    def _stored(self, sent: v1.ResourceSlice, answer: dict[str, Any]) -> None:
        stored = _parsed(answer)
        if stored.spec == sent.spec:  # nearly always; what is kept of it need not be kept twice
            stored = stored.model_copy(update={"spec": sent.spec})
        self._accepted[stored.metadata.name] = AcceptedSlice(sent=sent, stored=stored)
        self._held.add(stored.metadata.uid)
        for field in dropped_fields(sent, stored):
            text = f"{field.path} ({field.feature_gate or 'unknown feature gate'})"
            if text not in self._logged:
                self._logged.add(text)
                logger.warning(
                    "the API server dropped a field, probably because its feature gate is off",
                    extra={"slice": stored.metadata.name, "field": field.path, "feature_gate": field.feature_gate},
                )


async def _try_delete(client: Client, item: v1.ResourceSlice) -> None:
    metadata = item.metadata
    with suppress(NotFound):  # gone already, as it should be
        await client.delete(
            RESOURCE_SLICES, metadata.name, uid=metadata.uid, resource_version=metadata.resource_version, dry_run=True
        )


def _generations(existing: Sequence[v1.ResourceSlice], steps: SlicePlan) -> Mapping[str, int]:
    """Return the newest generation of each pool that there is after a plan was carried out."""
    gone = {item.metadata.name for item in (*steps.deletes, *steps.updates)}
    unchanged = (item for item in existing if item.metadata.name not in gone)
    found: dict[str, int] = {}
    for item in (*unchanged, *steps.updates, *steps.creates):
        pool = item.spec.pool
        found[pool.name] = max(found.get(pool.name, 0), pool.generation)
    return found


def _looks_like(inventory: Inventory[Device], before: Inventory[Device]) -> bool:
    """Return whether only fields of the author's own differ."""
    return len(inventory.pools) == len(before.pools) and all(map(publish_the_same, inventory.pools, before.pools))


def _parsed(item: dict[str, Any]) -> v1.ResourceSlice:
    try:
        return v1.ResourceSlice.model_validate(item)
    except ValidationError as error:
        name = item.get("metadata", {}).get("name", "?")
        raise KubeError(
            f"ResourceSlice {name}: the API server's answer is not understood: "
            f"{error.errors(include_url=False)[0]['msg']}; report this"
        ) from error
