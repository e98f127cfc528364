"""A whole run of ``dra-kit sandbox``: cluster up, files or stories, reasons, clean-up, report."""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_kit.errors import ConfigurationError, NotFound, SandboxError
from dra_kit.kube.resources import PODS, REPLICA_SETS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kit.publishing.log_messages import NOT_PUBLISHED
from dra_kit.resource.gates import FeatureGates
from dra_kit.resource.pods import pod_claims, reference
from dra_kit.sandbox.cluster import private
from dra_kit.sandbox.cluster.controllers.workloads.controller import FOLLOWED as WORKLOADS
from dra_kit.sandbox.cluster.slow_calls import PATIENCE
from dra_kit.sandbox.driver.drivers import SandboxDriver
from dra_kit.sandbox.sandbox import Sandbox, SandboxSettings
from dra_kit.sandbox.stories.facts import Facts
from dra_kit.sandbox.stories.objects import AppliedObject, apply
from dra_kit.sandbox.stories.outcome import Outcome, judge
from dra_kit.sandbox.stories.rollout import pods_of, shortfall
from dra_kit.sandbox.stories.story import Step, Story
from dra_kit.sandbox.stories.story_run import run_story
from dra_kit.sandbox.timeline.feed import TimelineFeed
from dra_kit.sandbox.timeline.records import PodExplained, RunEnded
from dra_kit.sandbox.timeline.report.problems import PodProblems
from dra_kit.sandbox.timeline.report.report import RunReport, writes_by_agent
from dra_kit.sandbox.timeline.timeline import Timeline
from dra_kit.sandbox.timeline.view.live import LiveView
from dra_kit.scheduler.pods import held, key_of, shown
from dra_kit.values.json import ObjectView

_POLL: Final = 0.05
_CLEAN_SECONDS: Final = 60.0
_DEVICE_SECONDS: Final = 3.0


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to do in the cluster.

    Attributes:
        files: manifests to apply; files and folders.
        stories: to run, one after the other.
        timeout: seconds for the pods of the files, and for each step of a story.
        keep: leave everything as it is in the end, until the run is interrupted.
        report: where to write the report.
        timeline: where to keep the timeline; None for the sandbox's own directory, which goes with it.
    """

    files: tuple[Path, ...] = ()
    stories: tuple[Story, ...] = ()
    timeout: float = 60.0
    keep: bool = False
    report: Path | None = None
    timeline: Path | None = None


class Session:
    """One run.

    Args:
        drivers: to run.
        settings: of the cluster.
        task: what to do in it.
        view: tells what happens.
        ready: called once each driver has published its devices and the files are applied.
    """

    def __init__(
        self,
        drivers: Sequence[SandboxDriver],
        settings: SandboxSettings,
        task: Task,
        view: LiveView,
        *,
        ready: Callable[[Sandbox], None] = lambda _: None,
    ) -> None:
        self._drivers = drivers
        self._settings = settings
        self._task = task
        self._view = view
        self._ready = ready
        self._problems = PodProblems()
        self._report = RunReport()
        self._timeline = Timeline()
        self._feed = TimelineFeed(self._timeline, task.timeline)
        self._timeline.subscribe(view.read)
        self._timeline.subscribe(self._problems.read)
        if task.report is not None:
            self._timeline.subscribe(self._report.read)
        self._failures: list[str] = []
        self._leftovers: list[str] = []
        self.lasting: bool = False
        """Whether everything is done and only an interruption is waited for."""

    @property
    def exit_code(self) -> int:
        """0 when all was as it should be so far, else 1."""
        return 1 if self._failures else 0

    async def run(self) -> int:
        """Do everything; whatever happens, also a cancellation, nothing of it remains.

        Returns:
            The exit code: 0 when all was as it should be, else 1.

        Raises:
            SandboxError: cluster or driver do not come up.
            ConfigurationError: a file is wrong, or an object of it was refused.
        """
        begin = time.monotonic()
        sandbox = Sandbox(self._drivers, self._settings, observers=(self._feed,))
        try:
            async with sandbox:
                await sandbox.or_fail(self._work(sandbox))
        finally:
            seconds = time.monotonic() - begin
            self._timeline.append(
                RunEnded(
                    drivers=tuple(sandbox.drivers),
                    passed=not self._failures,
                    duration=seconds,
                    failures=tuple(self._failures),
                    leftovers=tuple(self._leftovers),
                    api_writes=writes_by_agent(sandbox.control_plane.server.requests),
                )
            )
            self._feed.close()
            self._write_report()
        return self.exit_code

    async def _work(self, sandbox: Sandbox) -> None:
        await apply(sandbox.client, [path for driver in self._drivers for path in driver.classes])
        for driver in sandbox.drivers:
            await self._look_at_devices(sandbox, driver)
        for story in self._task.stories:
            await self._story(sandbox, story)
        if self._task.files:
            await self._files(sandbox)
        elif not self._task.stories or self._task.keep:
            self._ready(sandbox)
            await self._last(sandbox)

    # --- stories

    async def _story(self, sandbox: Sandbox, story: Story) -> None:
        self._ready(sandbox)
        keep = self._task.keep and story is self._task.stories[-1] and not self._task.files
        teller = _Teller(self._view, self._feed, story.steps[-1], (lambda: self._last(sandbox)) if keep else None)
        result = await run_story(story, sandbox, observer=teller, timeout=self._task.timeout)
        self._feed.poll()
        text = result.report()
        self._view.entry(text.splitlines()[0], bold=True, fg="green" if result.passed else "red")
        self._view.details(text.splitlines()[1:])
        if not result.passed:
            self._failures.append(text)

    # --- files

    async def _files(self, sandbox: Sandbox) -> None:
        before = set(await sandbox.node_state())
        applied = await apply(sandbox.client, self._task.files)
        if not applied:
            names = ", ".join(map(str, self._task.files))
            raise ConfigurationError(f"-f {names}: there is no Kubernetes object; write one, or leave out -f")
        self._ready(sandbox)
        pods = await self._follow(sandbox, applied)
        self._feed.poll()
        stuck = [pod for pod in pods if not pod["spec"].get("nodeName")]
        causes = await self._causes(sandbox, stuck)
        lacking = _shortfalls(sandbox, applied)
        if pods or lacking:
            outcome = judge(pods, self._problems.by_uid, causes, self._refused(sandbox, pods))
            self._tell(Outcome(outcome.settled and not lacking, (*outcome.failures, *lacking)))
        else:
            made = ", ".join(f"{item.resource.kind} {item.name}" for item in applied)
            self._view.entry(f"there is no pod to follow; made was {made}", bold=True)
        if self._task.keep:
            for pod in stuck:
                self._view.detail(self._explain_command(pod, sandbox.kubeconfig))
            await self._last(sandbox)
        await self._clean_up(sandbox, applied, before)

    async def _last(self, sandbox: Sandbox) -> None:
        """Wait until the run is interrupted."""
        self._view.entry("everything runs until Ctrl-C", bold=True)
        self._view.detail(f"kubectl --kubeconfig {sandbox.kubeconfig} get pods")
        if not sandbox.drivers:
            self._view.detail('eval "$(dra-kit sandbox env)"   in the shell that starts a driver')
        self.lasting = True
        await asyncio.get_running_loop().create_future()

    async def _follow(self, sandbox: Sandbox, applied: Sequence[AppliedObject]) -> Sequence[ObjectView]:
        """Wait until the pods did what they were to do, or the time is over; the pods."""
        begin = time.monotonic()
        end, patient = begin + self._task.timeout, begin + PATIENCE
        uids = {item.object["metadata"]["uid"] for item in applied if item.resource.kind == PODS.kind}
        while True:
            pods = _pods(sandbox, applied)
            outcome = judge(pods, self._problems.by_uid, refused=self._refused(sandbox, pods))
            complete = uids <= {pod["metadata"]["uid"] for pod in pods} and not _shortfalls(sandbox, applied)
            if (outcome.settled and complete) or time.monotonic() > end:
                return pods
            if time.monotonic() > patient:
                patient = end
                await self._tell_silent(sandbox, pods)
            await asyncio.sleep(_POLL)

    async def _tell_silent(self, sandbox: Sandbox, pods: Sequence[ObjectView]) -> None:
        """Pods that the scheduler does not look at, because a claim is missing; nobody else tells of them."""
        silent = [
            pod
            for pod in pods
            if not pod["spec"].get("nodeName") and pod["metadata"]["uid"] not in self._problems.by_uid
        ]
        for uid, lines in (await self._causes(sandbox, silent)).items():
            pod = next(pod for pod in silent if pod["metadata"]["uid"] == uid)
            self._view.entry(f"Pod {self._view.name(shown(pod))} has to wait", fg="yellow")
            self._view.details(lines)

    async def _causes(self, sandbox: Sandbox, pods: Sequence[ObjectView]) -> Mapping[str, Sequence[str]]:
        causes = {uid: list(map(str, found)) for uid, found in (await sandbox.causes(pods)).items() if found}
        for pod in pods:
            if lines := causes.get(pod["metadata"]["uid"]):
                self._timeline.append(PodExplained(pod=reference(pod), causes=tuple(lines)))
        return causes

    def _refused(self, sandbox: Sandbox, pods: Sequence[ObjectView]) -> set[str]:
        """UIDs of the pods whose claims the driver has refused for good, once their kubelets know."""
        return {
            pod["metadata"]["uid"]
            for pod in pods
            if pod["metadata"]["uid"] in self._problems.unprepared
            and pod.get("status", {}).get("phase") == "Pending"
            and any(item.claim and sandbox.refusal(key_of(pod)[0], item.claim) for item in pod_claims(pod))
        }

    def _tell(self, outcome: Outcome) -> None:
        if outcome.passed:
            self._view.entry("every pod did what it was to do", bold=True, fg="green")
            return
        late = "" if outcome.settled else f" within {self._task.timeout:g} s"
        self._view.entry(f"not every pod did what it was to do{late}", bold=True, fg="red")
        self._view.details(line for text in outcome.failures for line in text.splitlines())
        self._failures += outcome.failures

    def _explain_command(self, pod: ObjectView, kubeconfig: Path) -> str:
        namespace, name = key_of(pod)
        alpha = ["--alpha"] if self._settings.gates == FeatureGates.alpha() else []
        words = ["dra-kit", "explain", "pod", name, "-n", namespace, "--kubeconfig", str(kubeconfig.absolute()), *alpha]
        return shlex.join(words)

    async def _clean_up(self, sandbox: Sandbox, applied: Sequence[AppliedObject], before: set[str]) -> None:
        """Delete what was applied, pods first, and look whether anything remains of it."""
        with_pods = [item for item in applied if item.resource in {PODS, *WORKLOADS}]
        others = [item for item in applied if item not in with_pods]
        uids = {pod["metadata"]["uid"] for pod in _pods(sandbox, applied)}
        end = time.monotonic() + _CLEAN_SECONDS

        async def remaining_pods() -> list[str]:
            known = sandbox.informers.objects(PODS).values()
            return [f"Pod {shown(pod)}{held(pod)}" for pod in known if pod["metadata"]["uid"] in uids]

        await _delete(sandbox, with_pods)
        remaining = await self._settle(remaining_pods, end)
        await _delete(sandbox, list(reversed(others)))
        remaining += await self._settle(lambda: _leftovers(sandbox, before), end)
        self._leftovers = remaining
        _tell_leftovers(self._view, self._leftovers)
        self._failures += [f"left over: {text}" for text in self._leftovers]

    async def _settle(self, remaining: Callable[[], Awaitable[list[str]]], end: float) -> list[str]:
        """Wait until nothing remains, and tell what is waited for; what remains in the end."""
        patient = time.monotonic() + PATIENCE
        while (found := await remaining()) and time.monotonic() < end:
            if time.monotonic() > patient:
                patient = end
                self._view.entry(f"waiting up to {_CLEAN_SECONDS:.0f} s for what is deleted", fg="yellow")
                self._view.details(found)
            await asyncio.sleep(_POLL)
        return found

    # --- around it

    async def _look_at_devices(self, sandbox: Sandbox, driver: str) -> None:
        """A driver may come to its devices late; one without any is of no use to the pods of files."""
        end = time.monotonic() + _DEVICE_SECONDS
        while not self._has_devices(sandbox, driver):
            if not self._task.files or time.monotonic() > end:
                problems = sandbox.log.problems[-3:]
                refused = not set(problems).isdisjoint(sandbox.log.problems_of(NOT_PUBLISHED))
                causes = problems if refused else ["discover() yielded an empty inventory", *problems]
                text = f"driver {driver} offers no device: {'; '.join(causes)}"
                if self._task.files:
                    raise SandboxError(text)
                self._view.entry(text, fg="yellow")
                return
            await asyncio.sleep(_POLL)

    @staticmethod
    def _has_devices(sandbox: Sandbox, driver: str) -> bool:
        slices = sandbox.informers.objects(RESOURCE_SLICES).values()
        return any(item["spec"].get("devices") for item in slices if item["spec"]["driver"] == driver)

    def _write_report(self) -> None:
        path = self._task.report
        if path is None:
            return
        try:
            private.replace(path, (json.dumps(self._report.report(), indent=2) + "\n").encode())
        except OSError as error:
            raise ConfigurationError(f"--report {path} cannot be written: {error.strerror}") from None


def _pods(sandbox: Sandbox, applied: Sequence[AppliedObject]) -> list[ObjectView]:
    """The applied pods, and those of applied workloads."""
    uids = {item.object["metadata"]["uid"] for item in applied}
    objects = sandbox.informers.objects
    return pods_of(uids, objects(REPLICA_SETS).values(), objects(PODS).values())


def _shortfalls(sandbox: Sandbox, applied: Sequence[AppliedObject]) -> list[str]:
    """What applied workloads lack."""
    workloads = [item for item in applied if item.resource in WORKLOADS]
    known = (sandbox.informers.objects(item.resource).get(key_of(item.object), item.object) for item in workloads)
    return [text for text in map(shortfall, known) if text]


class _Teller:
    """Tells the view where a story stands; with ``keep``, which waits, before anything is deleted."""

    def __init__(
        self, view: LiveView, feed: TimelineFeed, last: Step, keep: Callable[[], Awaitable[None]] | None
    ) -> None:
        self._view = view
        self._feed = feed
        self._last = last
        self._keep = keep

    async def begun(self, story: Story, namespace: str) -> None:
        self._view.namespace = namespace
        self._view.entry(f"The story: {story.name.replace('-', ' ')}, in namespace {namespace}", bold=True)

    async def done(self, step: Step, facts: Facts) -> None:
        del facts
        self._feed.poll()
        self._view.entry("everything is as the story tells it", fg="green")
        if step is self._last and self._keep is not None:
            await self._keep()

    async def cleaned(self, leftovers: Sequence[str]) -> None:
        _tell_leftovers(self._view, leftovers)


def _tell_leftovers(view: LiveView, leftovers: Sequence[str]) -> None:
    if leftovers:
        view.entry("left over:", bold=True, fg="red")
        view.details(leftovers)
    else:
        view.entry("left over: no claim, no CDI file, no record of the driver, no change of hardware")


async def _delete(sandbox: Sandbox, items: Sequence[AppliedObject]) -> None:
    for item in items:
        try:
            await sandbox.client.delete(item.resource, item.name, item.namespace or None)
        except NotFound:
            pass


async def _leftovers(sandbox: Sandbox, before: set[str]) -> list[str]:
    """Claims that are there still, and what the nodes keep that they did not keep before."""
    known = sandbox.informers.objects(RESOURCE_CLAIMS).values()
    claims = [f"ResourceClaim {shown(claim)}{held(claim)}" for claim in known]
    return [*claims, *sorted(set(await sandbox.node_state()) - before)]
