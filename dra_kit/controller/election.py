"""Which replica of the controller is the active one, decided by a Lease, and the parts that run only there."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from dra_kit.client.api import Client
from dra_kit.client.events import micro_time
from dra_kit.client.resources import LEASES
from dra_kit.errors import ConfigurationError, Conflict, Forbidden, InternalError, Invalid, KubeError, NotFound
from dra_kit.process.supervisor import Part

logger: logging.Logger = logging.getLogger(__name__)


class LeaseTiming(Struct, frozen=True):
    """How long what takes, in seconds; the defaults are those of client-go and of Kubernetes' own controllers.

    Attributes:
        lease: how long a lease that is not renewed is respected by others.
        renew_deadline: how long its holder tries to renew it until it gives up being the active one.
        retry: between two attempts.
    """

    lease: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0


class LeaderElector:
    """A part of the controller that elects the active replica; compatible with client-go's leader election.

    Clocks of machines may differ: a lease counts as expired when it has not *changed* for its duration, measured by
    this process's own clock. This process stops being active when it could not renew the lease within the renew
    deadline. The deadline is shorter than the lease duration, so other replicas take the lease only after that. The
    process then continues as a standby, and retains its cache of the claims. ``annotations`` is called before each
    renewal.
    """

    name = "election"

    def __init__(
        self,
        client: Client,
        leadership: Leadership,
        *,
        identity: str,
        namespace: str,
        lease: str,
        timing: LeaseTiming = LeaseTiming(),  # noqa: B008 - immutable
        clock: Callable[[], float] = time.monotonic,
        annotations: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._client = client
        self._leadership = leadership
        self._identity = identity
        self._namespace = namespace
        self._lease = lease
        self._timing = timing
        self._clock = clock
        self._annotations = annotations
        self._stored: dict[str, Any] | None = None
        self._changed_at = clock()  # when the lease was last seen to change
        self._renewed_at = -float("inf")  # when the last renewal that succeeded was sent
        self._logged = ""  # the trouble that was logged

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready as soon as it is known who the active one is.

        Raises:
            KubeError: the API server refuses the Lease: asking again will not help.
        """
        try:
            while True:
                await self._step()
                if self._stored is not None:
                    ready.set()
                # in step, all candidates would come at once
                await asyncio.sleep(self._timing.retry * random.uniform(1.0, 1.2))  # noqa: S311 - no secret
        finally:
            await self._give_back()

    async def _step(self) -> None:
        """One attempt; while leading it ends at the renew deadline at the latest."""
        left = self._renewed_at + self._timing.renew_deadline - self._clock()
        try:
            async with asyncio.timeout(max(0.0, left) if self._leadership.leading else self._timing.renew_deadline):
                leading = await self.attempt()
        except TimeoutError:
            leading = None
            self._trouble("the API server does not answer")
        except (Forbidden, Invalid):
            raise
        except KubeError as error:
            leading = None
            self._trouble(str(error))
        if leading is None:  # not known: it is what it was, for as long as others respect that
            leading = self._leadership.leading and self._clock() < self._renewed_at + self._timing.renew_deadline
        else:
            self._logged = ""
        self._become(leading=leading)

    async def attempt(self) -> bool:
        """Take or renew the lease, and return whether this process holds it now.

        Raises:
            KubeError: the outcome is unknown.
            ConfigurationError: the namespace is missing, or the Lease is missing and the account may not create it.
        """
        began = self._clock()
        if not self._leadership.leading or self._stored is None:
            await self._look()
        try:
            return await self._take(began)
        except (Conflict, NotFound):
            if not self._leadership.leading:
                return False  # another one was faster
        await self._look()  # another client wrote to it, perhaps only a label
        try:
            return await self._take(began)
        except (Conflict, NotFound):
            return False

    async def _take(self, began: float) -> bool:
        if self._stored is not None and not self._may_take(self._stored):
            return False
        wanted = acquired(
            self._stored, self._identity, self._timing, dt.datetime.now(dt.UTC),
            namespace=self._namespace, name=self._lease, annotations=self._annotations(),
        )  # fmt: skip
        if self._stored is None:
            self._observe(await self._created(wanted))
        else:
            self._observe(await self._client.update(LEASES, wanted))
        self._renewed_at = began
        return True

    async def _created(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return await self._client.create(LEASES, wanted)
        except NotFound as error:
            raise ConfigurationError(
                f"namespace {self._namespace} for the controller's Lease not found; set --lease-namespace to the "
                "namespace that the controller runs in"
            ) from error
        except Forbidden as error:
            raise ConfigurationError(
                f"Lease {self._namespace}/{self._lease} does not exist, and this account may not create it: {error}",
                remedy="the chart creates it in the namespace of its release: run helm upgrade again, or set "
                "--lease-namespace to that namespace",
            ) from error

    def _may_take(self, lease: Mapping[str, Any]) -> bool:
        holder = holder_of(lease)
        if holder in {"", self._identity}:
            return True
        duration = float((lease.get("spec") or {}).get("leaseDurationSeconds") or self._timing.lease)
        return self._clock() >= self._changed_at + duration

    async def _look(self) -> None:
        try:
            self._observe(await self._client.get(LEASES, self._lease, self._namespace))
        except NotFound:
            self._stored = None

    def _observe(self, lease: dict[str, Any]) -> None:
        if self._stored is None or self._stored.get("spec") != lease.get("spec"):
            self._changed_at = self._clock()
            if holder_of(lease):
                self._leadership.renewed(annotations_of(lease))
            if holder_of(lease) not in {"", self._identity, holder_of(self._stored or {})}:
                logger.info("standby: another replica is active", extra={"holder": holder_of(lease)})
        self._stored = lease

    def _become(self, *, leading: bool) -> None:
        if leading == self._leadership.leading:
            return
        self._leadership.set(leading=leading)
        if leading:
            logger.info("active: this replica holds the lease", extra={"lease": f"{self._namespace}/{self._lease}"})
        else:
            logger.warning("standby: the lease is lost", extra={"lease": f"{self._namespace}/{self._lease}"})

    def _trouble(self, text: str) -> None:
        if text != self._logged:
            active = self._leadership.leading
            logger.warning(
                "the Lease that decides which replica is active cannot be read or written; retrying",
                extra={
                    "lease": f"{self._namespace}/{self._lease}",
                    "error": text,
                    "until_then": "this replica stays active until its Lease expires" if active else "it is a standby",
                    "remedy": "if this continues, check the API server, and the Role for leases",
                },
            )
        self._logged = text

    async def _give_back(self) -> None:
        """Release the lease, so that a successor need not wait until it expires; active parts have stopped by now."""
        if not self._leadership.leading or self._stored is None:
            return
        self._leadership.set(leading=False)
        try:
            async with asyncio.timeout(5.0):
                # what is known of it may be older than a renewal that was under way
                lease = await self._client.get(LEASES, self._lease, self._namespace)
                if holder_of(lease) == self._identity:
                    await self._client.update(LEASES, released(lease, dt.datetime.now(dt.UTC)))
        except (KubeError, TimeoutError) as error:
            logger.warning("the lease cannot be released and will expire", extra={"error": str(error) or "no answer"})


def holder_of(lease: Mapping[str, Any]) -> str:
    """Return the identity of the holder; empty after it released the lease."""
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def annotations_of(lease: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the annotations of a lease."""
    return (lease.get("metadata") or {}).get("annotations") or {}


def empty_lease(name: str, namespace: str) -> dict[str, Any]:
    """Return a new Lease without a holder."""
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata}


def acquired(
    lease: Mapping[str, Any] | None, identity: str, timing: LeaseTiming, now: dt.datetime, *, namespace: str, name: str,
    annotations: Mapping[str, str],
) -> dict[str, Any]:  # fmt: skip
    """Return the lease after ``identity`` acquires or renews it; other content of the lease is retained.

    ``lease`` is None if it does not exist. ``now`` informs users; no decision depends on it.
    """
    stored = lease or empty_lease(name, namespace)
    spec = dict(stored.get("spec") or {})
    if lease is None:
        spec["leaseTransitions"] = 0
    if holder_of(stored) != identity:
        spec["acquireTime"] = micro_time(now)
        if lease is not None:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
    spec |= {
        "holderIdentity": identity,
        "leaseDurationSeconds": max(1, round(timing.lease)),
        "renewTime": micro_time(now),
    }
    metadata = stored["metadata"] | {"annotations": {**annotations_of(stored), **annotations}}
    return {**stored, "metadata": metadata, "spec": spec}


def released(lease: Mapping[str, Any], now: dt.datetime) -> dict[str, Any]:
    """Return the lease without a holder, so that the next process need not wait."""
    spec = {
        **(lease.get("spec") or {}),
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "acquireTime": micro_time(now),
        "renewTime": micro_time(now),
    }
    return {**lease, "spec": spec}


STOP_SECONDS: Final = 4.0
"""What active parts get to stop in; a lease that is not renewed is given away 5 s after it was given up here."""
DRAIN_SECONDS: Final = 15.0
"""What they get when the process is to end, and the lease is renewed until they have stopped."""


class ActiveParts:
    """A part of the controller that runs other parts while this replica is active, and stops them right afterwards.

    Their ``run`` is called again each time the replica becomes active. A part that fails terminates the process, as
    any part does. So does a part that cannot be stopped in time because of a blocking call in the author's code:
    nothing else ends such a call.
    """

    name = "active"

    def __init__(self, leadership: Leadership, *, stop_seconds: float = STOP_SECONDS) -> None:
        self._leadership = leadership
        self._stop_seconds = stop_seconds
        self._parts: list[Part] = []

    def add(self, part: Part) -> None:
        """Add a part; before :meth:`run`."""
        self._parts.append(part)

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready immediately, since a standby is ready too.

        Raises:
            Exception: an exception of a part.
            InternalError: a part returned unexpectedly, or does not stop in time.
        """
        ready.set()
        while True:
            await self._leadership.gained.wait()
            await self._life()

    async def _life(self) -> None:
        lost = asyncio.create_task(self._leadership.lost.wait(), name="lease lost")
        tasks = {asyncio.create_task(part.run(asyncio.Event()), name=part.name): part for part in self._parts}
        try:
            await asyncio.wait({lost, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
            slow = await self._stopped(set(tasks))
        for task, part in tasks.items():
            if task.done() and not task.cancelled():
                error = task.exception()
                raise error or InternalError(f"part {part.name!r} ended by itself: it should run until it is stopped")
        if slow:
            raise InternalError(
                f"{', '.join(sorted(slow))} did not stop within {self._stop_seconds:g} s after the lease was lost: "
                "the process exits, because another replica becomes active"
            )

    async def _stopped(self, tasks: set[asyncio.Task[None]]) -> list[str]:
        """Cancel all tasks at once; return the names of those that go on."""
        if not tasks:
            return []
        for task in tasks:
            task.cancel()
        seconds = DRAIN_SECONDS if self._leadership.leading else self._stop_seconds
        _, going_on = await asyncio.wait(tasks, timeout=seconds)
        for task in going_on:
            task.cancel()  # a second time: code that waits for a thread stops waiting
        if going_on:
            await asyncio.wait(going_on, timeout=0.1)
        return [task.get_name() for task in going_on]


class Leadership:
    """Whether this replica is active (always, if ``alone``); set by the elector; belongs to one event loop.

    Attributes:
        gained: set while it is the active one.
        lost: set while it is not.
    """

    def __init__(self, *, alone: bool = False) -> None:
        self.gained: asyncio.Event = asyncio.Event()
        self.lost: asyncio.Event = asyncio.Event()
        self._renewals: list[Callable[[Mapping[str, str]], None]] = []
        (self.gained if alone else self.lost).set()

    @property
    def leading(self) -> bool:
        """Whether it is the active one now."""
        return self.gained.is_set()

    def set(self, *, leading: bool) -> None:
        """Set whether this process is active; for the elector."""
        now, before = (self.gained, self.lost) if leading else (self.lost, self.gained)
        before.clear()
        now.set()

    def on_renewal(self, listener: Callable[[Mapping[str, str]], None]) -> None:
        """Call ``listener`` with the Lease's annotations whenever this or another active replica renewed it."""
        self._renewals.append(listener)

    def renewed(self, annotations: Mapping[str, str]) -> None:
        """Call the listeners: the lease was renewed, by this process or another; for the elector."""
        for listener in self._renewals:
            listener(annotations)
