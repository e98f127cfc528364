"""What a check works with: the cluster, the kubelet's side, the driver, and claims that are cleaned up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

from dra_kit.conformance.cluster import CONFIGURED_CLASS, ConformanceClaim, ConformanceCluster, DeviceInSlice
from dra_kit.conformance.kubelet import POLL, ConformanceKubelet, RegisteredPlugin, shown_answer
from dra_kit.conformance.profile import DriverProfile
from dra_kit.conformance.subject import DriverInstance, DriverUnderTest, SimulatedNode
from dra_kit.errors import AllocationError, KubeletError
from dra_kit.kubelet.cdi.resolution import SpecCache, load_specs
from dra_kit.kubelet.plugin_client import ClaimAnswer
from dra_kit.kubernetes.resource.objects import ClaimReference

EVIDENCE_LINES: Final = 10
"""At most so many lines of evidence for one check."""
SETTLE_SECONDS: Final = 2.0
"""Seconds in which work that a driver does after an answer would show."""
_PACE_MAX: Final = 15.0
_NOT_STARTED_HERE: Final = "dra-kit did not start the driver; use a TARGET or --command"


class CheckFailure(Exception):
    """The driver does not do what the check asks for; the arguments are lines of evidence."""

    def __init__(self, *evidence: str) -> None:
        super().__init__("; ".join(evidence))
        lines = [line for text in evidence for line in text.splitlines()]
        more = len(lines) - EVIDENCE_LINES
        self.evidence: list[str] = lines if more <= 0 else [*lines[: EVIDENCE_LINES - 1], f"… {more + 1} more lines"]


class CheckNotApplicable(Exception):
    """The check is about something that this driver, its profile or this run does not have."""


class CheckBlocked(Exception):
    """What the check needs first does not work: another check fails because of it."""


class DriverUnknown(CheckBlocked):
    """Nothing is prepared, because the kubelet does not know the driver; ``notes`` are its Events."""

    def __init__(self, notes: Sequence[str]) -> None:
        super().__init__("\n".join(["the kubelet does not know the driver: see C1", *notes]))
        self.notes: Sequence[str] = notes


class Workbench:
    """What a check works with.

    Args:
        profile: of the driver.
        places: of the node.
        cluster: the cluster.
        kubelet: the kubelet's side.
        subject: the driver.

    Attributes:
        driver: name of the driver; empty until it has registered.
        settled: :attr:`DriverUnderTest.starts` when the driver was last seen to have published all pools; -1 before.
    """

    def __init__(
        self,
        profile: DriverProfile,
        places: SimulatedNode,
        cluster: ConformanceCluster,
        kubelet: ConformanceKubelet,
        subject: DriverUnderTest,
    ) -> None:
        self.profile = profile
        self.places = places
        self.cluster = cluster
        self.kubelet = kubelet
        self.subject = subject
        self.driver: str = profile.driver or ""
        self.settled: int = -1
        self._leftovers: list[ClaimReference] = []
        self._pace = 0.0

    # --- the driver

    @property
    def plugin(self) -> RegisteredPlugin:
        """The registered plugin.

        Raises:
            CheckBlocked: none is registered.
        """
        if self.kubelet.plugin is None:
            raise CheckBlocked("no plugin is registered")
        return self.kubelet.plugin

    def require_start(self) -> None:
        """Go on only if dra-kit starts the driver.

        Raises:
            CheckNotApplicable: others start it.
        """
        if not self.subject.can_start:
            raise CheckNotApplicable(_NOT_STARTED_HERE)

    def require_rolling(self) -> None:
        """Go on only if two processes of the driver can run at the same time.

        Raises:
            CheckNotApplicable: they cannot.
        """
        self.require_start()
        if not self.subject.can_roll:
            raise CheckNotApplicable("the command has no placeholder {pod_uid}, so that only one process can run")

    async def start(self, *, pod_uid: str = "", prefix: Sequence[str] = ()) -> DriverInstance:
        """Start the driver, register it, and wait for its devices.

        Raises:
            CheckBlocked: it does not register; the text has its last output.
        """
        began = time.monotonic()
        instance = await self.subject.start(pod_uid, prefix=prefix)
        await self.register()
        if await self.devices():
            self._pace = max(self._pace, min(time.monotonic() - began, _PACE_MAX))
        return instance

    async def register(self, *, ignore: Sequence[Path] = ()) -> RegisteredPlugin:
        """Register the driver that was started.

        Raises:
            CheckBlocked: it does not register in time.
        """
        await self.kubelet.forget()
        try:
            plugin = await self.kubelet.register(
                self.profile.start_within, driver=self.driver, ignore=ignore, alive=self.is_running
            )
        except KubeletError as error:
            raise CheckBlocked("\n".join([str(error), *self.last_output()])) from None
        self.driver = self.driver or plugin.info.name
        await self.cluster.create_classes(self.driver)
        return plugin

    def is_running(self) -> bool:
        """Return whether the process that was started last runs, as far as that is known here."""
        return self.subject.instance is None or self.subject.instance.alive

    async def restart(self, *, kill: bool = False, prefix: Sequence[str] = ()) -> DriverInstance:
        """Stop the driver, or kill it, and start it again.

        Raises:
            CheckBlocked: it does not come up again.
        """
        await (self.subject.kill() if kill else self.subject.stop())
        await self.kubelet.forget()
        return await self.start(prefix=prefix)

    def patience(self, seconds: float) -> float:
        """Return how many seconds to watch for what a driver may still do.

        They are at least as many as its slowest start took, up to 15: a driver on a busy machine does everything later.
        """
        return max(seconds, self._pace)

    async def quiet(self, at_least: float = 0.0) -> bool:
        """Wait until the driver has written no slices for ``steadyAfter`` seconds.

        Args:
            at_least: seconds without writes, if ``steadyAfter`` is less.

        Returns:
            False if it still writes ``restoredWithin`` seconds later.
        """
        seconds = self.patience(max(self.profile.steady_after, at_least))
        since = time.monotonic()
        end = since + seconds + self.profile.restored_within
        writes = self.cluster.slice_writes()
        while (now := time.monotonic()) - since < seconds:
            if now > end:
                return False
            await asyncio.sleep(POLL)
            if (count := self.cluster.slice_writes()) != writes:
                writes, since = count, time.monotonic()
        return True

    def last_output(self) -> list[str]:
        """Return the last lines that the driver wrote, for evidence."""
        return self.subject.last_output()

    async def devices(self, least: int = 0) -> list[DeviceInSlice]:
        """Return the published devices.

        Raises:
            CheckNotApplicable: there are fewer than ``least``.
        """
        found = await self.cluster.wait_for_devices(self.driver, self.profile.start_within)
        count = min(len(found), self.profile.devices or len(found))
        if found and count < least:
            raise CheckNotApplicable(f"needs {least} devices, and the driver has {count}")
        if least and not found:
            raise CheckBlocked(f"driver {self.driver} publishes no devices")
        return found

    # --- claims

    @asynccontextmanager
    async def claims(
        self,
        count: int = 1,
        *,
        requests: Sequence[Mapping[str, Any]] = (),
        config: Sequence[Mapping[str, Any]] = (),
    ) -> AsyncIterator[list[ConformanceClaim]]:
        """Create allocated claims for the context; at its end they are unprepared and deleted.

        Args:
            count: number of claims.
            requests: of each claim; by default one for one device.
            config: of each claim; by default the configuration of the profile.

        Raises:
            CheckNotApplicable: the driver has fewer devices.
            CheckBlocked: no devices can be allocated.
        """
        await self.devices(least=count)
        found: list[ConformanceClaim] = []
        try:
            while len(found) < count:
                found.append(await self.claim(requests=requests, config=config))
            yield found
        finally:
            await self.clean_up()

    async def claim(
        self,
        *,
        requests: Sequence[Mapping[str, Any]] = (),
        config: Sequence[Mapping[str, Any]] = (),
        change: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> ConformanceClaim:
        """Create one allocated claim; :meth:`clean_up` unprepares and deletes it.

        ``change`` edits the allocation before it is written.

        Raises:
            CheckBlocked: no devices can be allocated.
        """
        if not config and self.profile.configuration is not None:
            config = [self.cluster.configuration(self.driver, self.profile.configuration)]
        created = await self.cluster.create_claim(requests or [self.cluster.request()], config)
        self._note(created)
        try:
            allocation = await self.cluster.allocate(created)
        except AllocationError as error:
            raise CheckBlocked(f"no device can be allocated to a claim (see S15): {error}") from None
        if allocation is None:
            raise CheckBlocked("no device is free for a claim: see S15")
        edited = dict(allocation)
        change(edited)
        return await self.cluster.reserve(created, edited)

    async def claim_like(
        self,
        other: ConformanceClaim,
        *,
        request: Mapping[str, Any] | None = None,
        change: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> ConformanceClaim:
        """Create a claim with the devices of another one, as the deletion of pods by force may lead to."""
        created = await self.cluster.create_claim([request or self.cluster.request()])
        self._note(created)
        results = [dict(result) for result in other.results]
        allocation: dict[str, Any] = {
            **other.allocation, "devices": {**other.allocation["devices"], "results": results},
        }  # fmt: skip
        change(allocation)
        return await self.cluster.reserve(created, allocation)

    async def unallocated(self) -> ClaimReference:
        """Create a claim that stays without an allocation."""
        return self._note(await self.cluster.create_claim([self.cluster.request()]))

    def configured_request(self, name: str = "device") -> dict[str, Any]:
        """Return a request for a device of the class that has the first of the profile's configurations."""
        return self.cluster.request(name, device_class=CONFIGURED_CLASS)

    def _note(self, claim: Mapping[str, Any]) -> ClaimReference:
        metadata = claim["metadata"]
        reference = ClaimReference(metadata["namespace"], metadata["name"], metadata["uid"])
        self._leftovers.append(reference)
        return reference

    async def clean_up(self) -> None:
        """Unprepare and delete all claims of the check."""
        leftovers, self._leftovers = self._leftovers, []
        if leftovers and self.kubelet.plugin is not None and self.subject.alive:
            with suppress(KubeletError):
                await self.kubelet.unprepare(leftovers, timeout=15.0)
        for reference in leftovers:
            await self.cluster.delete_claim(reference)

    # --- calls whose success other checks are about

    async def prepare(
        self, *claims: ConformanceClaim, plugin: RegisteredPlugin | None = None, service: str = ""
    ) -> dict[str, ClaimAnswer]:
        """Prepare claims that can be prepared, and return the answers by UID.

        Raises:
            CheckBlocked: the call or a claim fails.
        """
        try:
            answers = await self.kubelet.prepare([item.reference for item in claims], plugin=plugin, service=service)
        except KubeletError as error:
            raise CheckBlocked("\n".join([str(error), *self.last_output()])) from None
        for item in claims:
            answer = answers.get(item.uid)
            if answer is None or answer.error:
                shown = shown_answer(answer) if answer is not None else "no entry in the answer"
                raise CheckBlocked(f"claim {item.reference.name} is not prepared: {shown}")
        return {item.uid: answers[item.uid] for item in claims}

    async def unprepare(self, *claims: ConformanceClaim) -> None:
        """Unprepare claims.

        Raises:
            CheckBlocked: the call or a claim fails.
        """
        try:
            answers = await self.kubelet.unprepare([item.reference for item in claims])
        except KubeletError as error:
            raise CheckBlocked(str(error)) from None
        for item in claims:
            if error_text := answers.get(item.uid, "no entry in the answer"):
                raise CheckBlocked(f"claim {item.reference.name} is not unprepared: {error_text}")

    # --- files

    def cdi(self) -> SpecCache:
        """Return the CDI devices that a container runtime would find now."""
        return load_specs([self.places.cdi])

    def cdi_devices(self) -> set[str]:
        """Return the names of all CDI devices."""
        return set(self.cdi().devices)

    def cdi_files(self) -> set[str]:
        """Return the names of all files in the directory of CDI files, temporary ones too."""
        with suppress(FileNotFoundError):
            return {path.name for path in self.places.cdi.iterdir()}
        return set()

    async def until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait until a condition is true; return whether it is."""
        end = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > end:
                return False
            await asyncio.sleep(POLL)
        return True


def cdi_ids(answers: Mapping[str, ClaimAnswer]) -> list[str]:
    """Return all CDI ids of answers, in order."""
    return [name for answer in answers.values() for device in answer.devices for name in device.cdi_device_ids]


def shown(names: Iterable[str]) -> str:
    """Return names for people, in order."""
    return ", ".join(sorted(names)) or "none"


CheckFunction: TypeAlias = Callable[[Workbench], Awaitable[None]]
"""A check: it returns if the driver passes."""
