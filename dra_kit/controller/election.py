"""Takes the Lease, renews it, and gives it back: one replica is the active one."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from dra_kit.controller.election.leadership import Leadership
from dra_kit.controller.election.record import Timing, acquired, annotations_of, duration_of, holder_of, released
from dra_kit.errors import ConfigurationError, Conflict, Forbidden, Invalid, KubeError, NotFound
from dra_kit.kube.client import Client
from dra_kit.kube.resources import LEASES

logger: logging.Logger = logging.getLogger(__name__)

_RELEASE_SECONDS: Final = 5.0


class Elector:
    """A part of the controller; works as client-go's leader election does, and with it: a Lease is a Lease.

    Clocks of machines may differ: a lease counts as expired when it has not *changed* for its duration, by this
    process's own clock. Being the active one ends when the lease could not be renewed for the renew deadline, which
    others respect for longer: they take it later than this process has let it go. The process then goes on as a
    standby, with all that it knows of the claims.

    Args:
        client: of the API server.
        leadership: is told.
        identity: of this process, like no other's.
        namespace: of the Lease.
        lease: its name.
        timing: of the election.
        clock: seconds that only rise.
        annotations: of the Lease, asked for before each renewal.
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
        timing: Timing = Timing(),  # noqa: B008 - immutable
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
            KubeError: it is not known.
            ConfigurationError: there is no such namespace, or no Lease, which the account may not create.
        """
        began = self._clock()
        if not self._leadership.leading or self._stored is None:
            await self._look()
        try:
            return await self._take(began)
        except (Conflict, NotFound):
            if not self._leadership.leading:
                return False  # another one was faster
        await self._look()  # somebody wrote into it, perhaps only a label
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
                f"there is no namespace {self._namespace} for the Lease of the controller: name the one that it runs "
                "in with --lease-namespace"
            ) from error
        except Forbidden as error:
            raise ConfigurationError(
                f"Lease {self._namespace}/{self._lease} is not there, and this account may not create it: {error}",
                remedy="the chart makes it in the namespace of its release: run helm upgrade once more, or name that "
                "namespace with --lease-namespace",
            ) from error

    def _may_take(self, lease: Mapping[str, Any]) -> bool:
        holder = holder_of(lease)
        if holder in {"", self._identity}:
            return True
        return self._clock() >= self._changed_at + duration_of(lease, self._timing.lease)

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
            kept = self._leadership.leading
            logger.warning(
                "the Lease that decides which replica is active cannot be read or written; it is tried again",
                extra={
                    "lease": f"{self._namespace}/{self._lease}",
                    "error": text,
                    "until_then": "this replica stays active until its Lease ends" if kept else "it stands by",
                    "remedy": "if it goes on, see whether the API server answers, and the Role for leases",
                },
            )
        self._logged = text

    async def _give_back(self) -> None:
        """Release the lease, so that a successor need not wait until it expires; active parts have stopped by now."""
        if not self._leadership.leading or self._stored is None:
            return
        self._leadership.set(leading=False)
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                # what is known of it may be older than a renewal that was under way
                lease = await self._client.get(LEASES, self._lease, self._namespace)
                if holder_of(lease) == self._identity:
                    await self._client.update(LEASES, released(lease, dt.datetime.now(dt.UTC)))
        except (KubeError, TimeoutError) as error:
            logger.warning("the lease is not given back and expires", extra={"error": str(error) or "no answer"})
