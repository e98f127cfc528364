"""A run: the driver is started, checked by one check after the other, and stopped."""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_kit.conformance import (
    api_and_life_cycle,
    health_and_metadata,
    prepare,
    registration,
    slices,
)
from dra_kit.conformance.catalogue import CheckLevel, ConformanceCheck, selected
from dra_kit.conformance.cluster import ConformanceCluster
from dra_kit.conformance.kubelet import ConformanceKubelet
from dra_kit.conformance.profile import DriverProfile
from dra_kit.conformance.subject import DriverUnderTest, SimulatedNode
from dra_kit.conformance.workbench import (
    CheckBlocked,
    CheckFailure,
    CheckFunction,
    CheckNotApplicable,
    Workbench,
)
from dra_kit.errors import ConfigurationError, KubeError, KubeletError
from dra_kit.sandbox.directory import mark_of, sandbox_directory
from dra_kit.sandbox.drivers.commands import DriverCommand
from dra_kit.text import escape_unprintable

FUNCTIONS: Final[dict[str, CheckFunction]] = {
    **registration.CHECKS, **prepare.CHECKS, **slices.CHECKS,
    **health_and_metadata.CHECKS, **api_and_life_cycle.CHECKS,
}  # fmt: skip
"""What each check does, by id."""
_ROOT: Final = "kl"  # sandbox directories have 13 bytes, so that this is as long as /var/lib/kubelet


class CheckStatus(enum.StrEnum):
    """What came of a check."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"
    BLOCKED = "not judged"


class CheckOutcome(Struct, frozen=True):
    """The result of a check.

    Attributes:
        check: the check.
        status: what came of it.
        evidence: of a failure, at most ten lines; otherwise why it does not apply or could not be judged.
        seconds: how long it took.
    """

    check: ConformanceCheck
    status: CheckStatus
    evidence: Sequence[str] = ()
    seconds: float = 0.0

    @property
    def counts(self) -> bool:
        """Whether it decides against the driver."""
        return self.check.level is CheckLevel.MUST and self.status in {CheckStatus.FAILED, CheckStatus.BLOCKED}


class ConformanceReport(Struct, frozen=True):
    """The verdict on a driver.

    Attributes:
        driver: its name; empty if it never registered.
        subject: how it was started or found.
        outcomes: in the order of the catalogue.
        interrupted: whether the run was interrupted before all checks were judged.
    """

    driver: str
    subject: str
    outcomes: Sequence[CheckOutcome]
    interrupted: bool = False

    @property
    def conforms(self) -> bool:
        """Whether no check that a driver must pass decides against it, and none was left out by an interruption."""
        return not self.interrupted and not any(outcome.counts for outcome in self.outcomes)

    def having(self, status: CheckStatus) -> list[CheckOutcome]:
        """Return the outcomes with a status."""
        return [outcome for outcome in self.outcomes if outcome.status is status]


class ConformanceSettings(Struct, frozen=True, kw_only=True):
    """What is judged, and by what.

    Attributes:
        subject: how the driver is started or found, for people.
        command: returns the command that starts the driver on a node; None if others start it.
        profile: of the driver.
        only: groups and ids of checks, such as ``P,U2``; empty for all.
        socket_dir: the kubelet's root directory of a driver that others start; None for a temporary one.
        cdi_dir: its directory of CDI files; None for ``cdi`` in the root directory.
        node: name of the node.
    """

    subject: str
    command: Callable[[SimulatedNode], DriverCommand] | None
    profile: DriverProfile
    only: str = ""
    socket_dir: Path | None = None
    cdi_dir: Path | None = None
    node: str = "node-1"


class RunProgress:
    """Is notified of the progress of a run; the methods of this base class are no-ops."""

    def waiting(self, places: SimulatedNode, seconds: float) -> None:
        """Note that the run waits so many seconds for a driver that others start."""

    def identified(self, driver: str) -> None:
        """Note the name of the driver, once it is known."""

    def begins(self, check: ConformanceCheck) -> None:
        """Note that a check begins."""

    def ends(self, outcome: CheckOutcome) -> None:
        """Note the outcome of a check."""

    def remains(self, text: str) -> None:
        """Note what the run could not remove from a cluster."""


async def judge(settings: ConformanceSettings, progress: RunProgress | None = None) -> ConformanceReport:
    """Run the checks, and return the verdict.

    Raises:
        ConfigurationError: the driver's program cannot be run, or the directory of ``socket_dir`` has a kubeconfig or
            gets no socket of a driver in time.
        ValueError: ``only`` names an unknown check.
    """
    checks = selected(settings.only)
    progress = progress or RunProgress()
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(sandbox_directory())
        places = _places(directory, settings)
        for folder in (places.plugins, places.registry, places.cdi):
            _create_until_end(stack, folder)
        stack.callback(places.kubeconfig.unlink, missing_ok=True)
        cluster = await stack.enter_async_context(
            ConformanceCluster(places, settings.profile, directory / "apiserver.sock")
        )
        kubelet = ConformanceKubelet(places.root)
        stack.push_async_callback(kubelet.close)
        command = settings.command(places) if settings.command is not None else None
        subject = DriverUnderTest(command, places, settings.profile.environment)
        stack.push_async_callback(subject.kill)
        bench = Workbench(settings.profile, places, cluster, kubelet, subject)
        if settings.command is None:
            progress.waiting(places, settings.profile.start_within)
        return await _Run(bench, settings, progress).run(checks)


async def judged(check: Awaitable[None], last_output: Callable[[], list[str]]) -> tuple[CheckStatus, list[str]]:
    """Wait for a check, and return its status and its evidence; ``last_output``: returns what the driver wrote last.

    Raises:
        ConfigurationError: the check cannot be run with the arguments of the run.
    """
    try:
        await check
    except CheckFailure as failure:
        return CheckStatus.FAILED, failure.evidence
    except CheckNotApplicable as reason:
        return CheckStatus.NOT_APPLICABLE, [str(reason)]
    except CheckBlocked as reason:
        return CheckStatus.BLOCKED, CheckFailure(str(reason)).evidence
    except (KubeletError, KubeError) as error:
        return CheckStatus.BLOCKED, [str(error)]
    except ConfigurationError:
        raise
    except Exception as error:  # noqa: BLE001 - a driver may answer or write anything, which must not end the run
        return CheckStatus.BLOCKED, [f"the check itself failed: {error!r}", *last_output()]
    return CheckStatus.PASSED, []


def _places(directory: Path, settings: ConformanceSettings) -> SimulatedNode:
    root = settings.socket_dir or directory / _ROOT
    if settings.socket_dir is not None and os.path.lexists(root / "kubeconfig"):
        raise ConfigurationError(
            f"--socket-dir {root}: its file kubeconfig exists and would be replaced; use a directory for this run, or "
            "remove the file if an earlier run left it"
        )
    places = SimulatedNode(
        node=settings.node,
        root=root,
        cdi=settings.cdi_dir or root / "cdi",
        kubeconfig=(root if settings.socket_dir else directory) / "kubeconfig",
        logs=directory / "logs",
        scratch=directory / "scratch",
        mark=mark_of(directory),
    )
    for folder in (places.logs, places.scratch):
        folder.mkdir()
    return places


def _create_until_end(stack: AsyncExitStack, folder: Path) -> None:
    """Create a folder and its missing parents, which are removed at the end of the run if they are empty."""
    for place in (*reversed(folder.parents), folder):
        if place.is_dir():
            continue
        try:
            place.mkdir()
        except OSError as error:
            raise ConfigurationError(f"{place} cannot be created: {error.strerror}; use another directory") from None
        stack.callback(_remove_empty, place)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # the driver left files in it, or removed it
        folder.rmdir()


class _Run:
    """The checks of one run."""

    def __init__(self, bench: Workbench, settings: ConformanceSettings, progress: RunProgress) -> None:
        self._bench = bench
        self._settings = settings
        self._progress = progress
        self._given_up = ""
        self._has_registered = False
        self._cause_shown = False

    async def run(self, checks: Sequence[ConformanceCheck]) -> ConformanceReport:
        outcomes = []
        for check in checks:
            self._progress.begins(check)
            outcome = await self._outcome(check)
            outcomes.append(outcome)
            self._progress.ends(outcome)
        return ConformanceReport(escape_unprintable(self._bench.driver), self._settings.subject, outcomes)

    async def _outcome(self, check: ConformanceCheck) -> CheckOutcome:
        started = time.monotonic()
        if not self._given_up:
            await self._bring_up()
        if self._given_up:
            first, self._cause_shown = not self._cause_shown, True
            status = CheckStatus.FAILED if check.id == "R1" else CheckStatus.BLOCKED
            evidence = self._given_up.splitlines() if first else ["the driver does not register: see the first check"]
            return CheckOutcome(check, status, evidence, time.monotonic() - started)
        self._has_registered = True
        self._progress.identified(escape_unprintable(self._bench.driver))
        status, evidence = await judged(FUNCTIONS[check.id](self._bench), self._bench.last_output)
        try:
            await self._bench.clean_up()
        except (KubeError, KubeletError) as error:
            evidence = [*evidence, f"the claims of this check are not released: {error}"]
        return CheckOutcome(check, status, evidence, time.monotonic() - started)

    async def _bring_up(self) -> None:
        """Have one process of the driver run and be registered, as before the first check."""
        bench = self._bench
        try:
            if bench.subject.can_start and (
                sum(instance.alive for instance in bench.subject.instances) != 1 or bench.kubelet.plugin is None
            ):
                await bench.restart(kill=True)
            elif bench.kubelet.plugin is None:
                await bench.register()
        except CheckBlocked as first:
            if not bench.subject.can_start:
                if not (self._has_registered or bench.kubelet.sockets()):
                    raise self._not_started() from None
                self._given_up = str(first)
                return
            await self._start_over(str(first))

    def _not_started(self) -> ConfigurationError:
        """Return the error that others have not started a driver."""
        places = self._bench.places
        return ConfigurationError(
            f"--socket-dir {places.root}: no driver has created a socket in {places.registry} within "
            f"{self._settings.profile.start_within:g} s; start it with KUBECONFIG={places.kubeconfig} while this "
            "command waits, or set startWithin in the file of --profile to more seconds"
        )

    async def _start_over(self, reason: str) -> None:
        """Start the driver on a node without its leftovers; give up if it does not register then either."""
        bench = self._bench
        await bench.subject.kill()
        for path in (*bench.kubelet.sockets(), *bench.kubelet.service_sockets()):
            path.unlink(missing_ok=True)
        try:
            await bench.restart(kill=True)
        except CheckBlocked:
            self._given_up = reason
