"""What a run shows while it applies a story or files."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from typing_extensions import override

from dra_kit.client.resources import PODS, REPLICA_SETS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.resource.objects import ObjectKey, object_key, object_name, pod_claims, pod_reference
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.cluster import Sandbox
from dra_kit.sandbox.cluster_copy import waits_for_scheduler
from dra_kit.sandbox.controllers.workloads import WORKLOADS
from dra_kit.sandbox.drivers.roles import SLOW_CALL_SECONDS
from dra_kit.sandbox.records import PodExplained, StoryBegan
from dra_kit.sandbox.stories.completion import PodsOutcome, judge_pods, pods_of_workloads, workload_shortfall
from dra_kit.sandbox.stories.facts import StoryFacts
from dra_kit.sandbox.stories.manifests import Manifest, apply_files
from dra_kit.sandbox.stories.namespace import CreatedObject
from dra_kit.sandbox.stories.runner import StoryFailure, StoryObserver
from dra_kit.sandbox.stories.story import Story, StoryStep
from dra_kit.sandbox.stories.verdict import Mismatch
from dra_kit.sandbox.timeline.feed import TimelineFeed
from dra_kit.sandbox.timeline.recording import Timeline
from dra_kit.sandbox.timeline.report import PodProblems
from dra_kit.sandbox.views.devices import allocation_results
from dra_kit.sandbox.views.live import LiveView
from dra_kit.slices.discovery import DISCOVER_FAILED
from dra_kit.slices.publisher import NOT_PUBLISHED
from dra_kit.text import counted


class RunObserver(StoryObserver):
    """Shows the story of files or of a folder."""

    def __init__(self, shown: RunDisplay, keep: Callable[[], Awaitable[None]] | None) -> None:
        self._shown = shown
        self._view = shown.view
        self._keep = keep

    @override
    def waiting(self, subject: str, found: Sequence[str], seconds: float) -> None:
        self._view.entry(f"waiting up to {seconds:.0f} s for {subject}", fg="yellow")
        self._view.details(found)

    @override
    async def cleaned(self, leftovers: Sequence[str]) -> None:
        self._shown.leftovers.extend(leftovers)
        if leftovers:
            self._view.entry("left over:", bold=True, fg="red")
            self._view.details(leftovers)
        else:
            self._view.entry("left over: no claim, no CDI file, no record of the driver, no change of hardware")


class FilesStory(RunObserver):
    """The story of files: its expectation, and how it is shown."""

    def __init__(
        self,
        sandbox: Sandbox,
        shown: RunDisplay,
        keep: Callable[[], Awaitable[None]] | None,
        *,
        ready: Callable[[Sandbox], None],
        timeout: float,
        release: Release,
    ) -> None:
        super().__init__(shown, keep)
        self._sandbox = sandbox
        self._ready = ready
        self._timeout = timeout
        self._release = release
        self._made: Sequence[CreatedObject] = ()
        self._patient = 0.0

    def story(self, manifests: Sequence[Manifest]) -> Story:
        """Return the story that applies the objects of files."""
        return Story("-f", {}, (StoryStep(tuple(manifests), {}, {}, (), completion=self),), (), own_namespace=False)

    # --- dra_kit.sandbox.stories.story.CompletionCheck

    async def look(self, made: Sequence[CreatedObject]) -> PodsOutcome:
        """Return the state of the pods; after a while, also show pods that nothing else reports on."""
        pods = self._pods(made)
        if time.monotonic() > self._patient:
            self._patient += self._timeout
            await self._show_silent(pods)
            self._show_tried_again(pods)
        outcome = judge_pods(pods, self._shown.problems.by_uid, refused=self._refused(pods))
        complete = not self._unseen(made, pods) and not self._shortfalls(made)
        return PodsOutcome(outcome.settled and complete, outcome.failures)

    async def judge(self, made: Sequence[CreatedObject]) -> PodsOutcome:
        """Return the state of the pods, with the causes of problems."""
        self._shown.feed.poll()
        pods, lacking = self._pods(made), self._shortfalls(made)
        causes = await self._causes([pod for pod in pods if not pod["spec"].get("nodeName")])
        outcome = judge_pods(pods, self._shown.problems.by_uid, causes, self._refused(pods))
        deleted = filter(None, map(self._shown.problems.deleted.get, [item.uid for item in made]))
        unseen = [f"Pod {item.name} was created; its state is not known yet" for item in self._unseen(made, pods)]
        failures = (*outcome.failures, *deleted, *lacking, *unseen)
        reasons = drivers_without_devices(self._sandbox) if failures else ()
        return PodsOutcome(outcome.settled and not lacking and not unseen, (*failures, *reasons))

    # --- dra_kit.sandbox.stories.runner.StoryObserver

    @override
    async def applied(self, step: StoryStep, made: Sequence[CreatedObject]) -> None:
        self._ready(self._sandbox)
        self._made = made
        self._patient = time.monotonic() + SLOW_CALL_SECONDS

    @override
    async def ended(self, failure: StoryFailure | None) -> None:
        pods = self._pods(self._made)
        if failure is not None:
            self._show(failure.outcome or PodsOutcome(settled=True, failures=(str(failure),)))
        elif pods or any(item.resource == PODS for item in self._made):
            self._view.entry("all pods succeeded", bold=True, fg="green")
        else:
            made = ", ".join(f"{item.resource.kind} {item.name}" for item in self._made)
            self._view.entry(f"no pod to wait for; created {made}", bold=True)
        if self._keep is not None:
            for pod in pods:
                if not pod["spec"].get("nodeName"):
                    self._view.detail(_explain_command(self._sandbox, pod, self._release))
            await self._keep()

    @override
    async def cleaned(self, leftovers: Sequence[str]) -> None:
        await super().cleaned(leftovers)
        self._shown.failures.extend(f"left over: {text}" for text in leftovers)

    # ---

    def _show(self, outcome: PodsOutcome) -> None:
        late = "" if outcome.settled else f" within {self._timeout:g} s"
        self._view.entry(f"not all pods succeeded{late}", bold=True, fg="red")
        self._view.details(line for text in outcome.failures for line in text.splitlines())
        self._shown.failures.extend(outcome.failures)

    async def _show_silent(self, pods: Sequence[ObjectView]) -> None:
        """Show pods that the scheduler does not look at, because a claim is missing."""
        silent = [
            pod
            for pod in pods
            if not pod["spec"].get("nodeName") and pod["metadata"]["uid"] not in self._shown.problems.by_uid
        ]
        for uid, lines in (await self._causes(silent)).items():
            pod = next(pod for pod in silent if pod["metadata"]["uid"] == uid)
            self._view.entry(f"Pod {self._view.names.short(object_name(pod))} has to wait", fg="yellow")
            self._view.details(lines)

    def _show_tried_again(self, pods: Sequence[ObjectView]) -> None:
        """Show pods whose claims the driver fails to prepare: nothing is reported while the kubelet calls again."""
        for pod in pods:
            uid, unprepared = pod["metadata"]["uid"], self._shown.problems.unprepared
            if uid in unprepared and uid not in self._refused(pods):
                title = f"Pod {self._view.names.short(object_name(pod))} still waits"
                self._view.entry(
                    f"{title}: the kubelet tries again, up to {self._timeout:g} s in all (--timeout)", fg="yellow"
                )

    async def _causes(self, pods: Sequence[ObjectView]) -> Mapping[str, Sequence[str]]:
        causes = {uid: list(map(str, found)) for uid, found in (await self._sandbox.causes(pods)).items() if found}
        for pod in pods:
            if lines := causes.get(pod["metadata"]["uid"]):
                self._shown.timeline.append(PodExplained(pod=pod_reference(pod), causes=tuple(lines)))
        return causes

    def _pods(self, made: Sequence[CreatedObject]) -> list[ObjectView]:
        """Return the applied pods, and those of applied workloads; applied pods only until they are deleted."""
        objects, uids = self._sandbox.informers.objects, {item.uid for item in made}
        over = uids & self._shown.problems.deleted.keys()
        pods = pods_of_workloads(uids, objects(REPLICA_SETS).values(), objects(PODS).values())
        return [pod for pod in pods if pod["metadata"]["uid"] not in over]

    def _unseen(self, made: Sequence[CreatedObject], pods: Sequence[ObjectView]) -> list[CreatedObject]:
        """Return applied pods that the informers have not received yet."""
        known = {*self._shown.problems.deleted, *(pod["metadata"]["uid"] for pod in pods)}
        return [item for item in made if item.resource == PODS and item.uid not in known]

    def _shortfalls(self, made: Sequence[CreatedObject]) -> list[str]:
        """Return what applied workloads lack, and why their pods were evicted."""
        objects, found = self._sandbox.informers.objects, list[str]()
        evicted = {pod["metadata"]["uid"]: (pod, cause) for pod, cause in self._shown.problems.evicted}
        for item in (item for item in made if item.resource in WORKLOADS):
            text = workload_shortfall(objects(item.resource).get((item.namespace or "", item.name), item.object))
            if text:
                pods = [pod for pod, _ in evicted.values()]
                own = pods_of_workloads({item.uid}, objects(REPLICA_SETS).values(), pods)
                causes = dict.fromkeys(evicted[pod["metadata"]["uid"]][1] for pod in own)
                found.append("\n  ".join((text, *(f"a pod was {cause}" for cause in causes))))
        return found

    def _refused(self, pods: Sequence[ObjectView]) -> set[str]:
        """Return UIDs of the pods whose claims the driver has refused for good, once their kubelets know."""
        return {
            pod["metadata"]["uid"]
            for pod in pods
            if pod["metadata"]["uid"] in self._shown.problems.unprepared
            and pod.get("status", {}).get("phase") == "Pending"
            and any(item.claim and self._sandbox.refusal(object_key(pod)[0], item.claim) for item in pod_claims(pod))
        }


def _explain_command(sandbox: Sandbox, pod: ObjectView, release: Release) -> str:
    namespace, name = object_key(pod)
    alpha = ["--alpha"] if release == Release.alpha(release.version) else []
    kubeconfig = str(sandbox.kubeconfig.absolute())
    return shlex.join(["dra-kit", "explain", "pod", name, "-n", namespace, "--kubeconfig", kubeconfig, *alpha])


def drivers_without_devices(sandbox: Sandbox) -> list[str]:
    """Return a text for each driver that offers no device: it may find none, or they depend on objects to come."""
    slices = sandbox.informers.objects(RESOURCE_SLICES).values()
    offering = {item["spec"]["driver"] for item in slices if item["spec"].get("devices")}
    unpublished = {*sandbox.log.problems_of(NOT_PUBLISHED), *sandbox.log.problems_of(DISCOVER_FAILED)}
    found = list[str]()
    for name in sandbox.drivers:
        if name not in offering:
            control, problems = sandbox.control(name), sandbox.log.problems_by(name)[-3:]
            # what failed before it published its inventory is not why that is empty
            explained = not control.published and not unpublished.isdisjoint(problems)
            withheld = any(driver.policy for driver in control.driver.drivers)
            empty = (
                f"discover() yielded an empty inventory{', or the policy withholds all devices' if withheld else ''}"
            )
            causes = problems if explained else [empty, *problems]
            found.append(f"driver {name} offers no device: {'; '.join(causes)}")
    return found


class RunDisplay(Struct, frozen=True, kw_only=True):
    """The display of a run, and its result."""

    view: LiveView
    timeline: Timeline
    feed: TimelineFeed
    problems: PodProblems
    failures: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)


class FolderObserver(RunObserver):
    """Shows the story of a folder."""

    @override
    async def begun(self, story: Story, namespace: str) -> None:
        self._shown.timeline.append(StoryBegan(story=story.name, namespace=namespace))

    @override
    def unmet(self, where: str, mismatches: Sequence[Mismatch], seconds: float) -> None:
        self._shown.feed.poll()
        self._view.entry(f"{where} waits, up to {seconds:g} s in all (--timeout), for:", fg="yellow")
        texts = [line for mismatch in mismatches[:_UNMET] for line in str(mismatch).splitlines()]
        self._view.details([*texts, *_rest(len(mismatches), _UNMET)])

    @override
    async def done(self, step: StoryStep, facts: StoryFacts) -> None:
        self._shown.feed.poll()
        self._view.entry("everything is as the story expects", fg="green")

    @override
    async def ended(self, failure: StoryFailure | None) -> None:
        if self._keep is None:
            return
        if failure is not None:
            self._shown.failures.append(str(failure))
            first, *others = failure.lines
            self._view.entry(first, bold=True, fg="red")
            self._view.details(others)
        await self._keep()


_UNMET: Final = 10
"""Expectations that are listed while a step waits for them."""
_NAMED: Final = 40
"""Pods that are listed with their devices."""
_EXPLAINED: Final = 10
"""Pods without a place of which the causes are searched."""
_LOOK_SECONDS: Final = 0.05


class CopyTrial:
    """Schedules the pods of a saved cluster, applies a remedy to it, and shows which pods have a place.

    Pods without a place are failures of the run, also those that lost it again, and so are pods on nodes of the sandbox
    that fail there.

    Args:
        timeout: seconds in which a pod has to get a node, or to end or get ready on a node of the sandbox.
        explain: show how to have pods without a place explained: the cluster stays.
    """

    def __init__(self, sandbox: Sandbox, shown: RunDisplay, release: Release, timeout: float, *, explain: bool) -> None:
        self._sandbox = sandbox
        self._shown = shown
        self._view = shown.view
        self._release = release
        self._timeout = timeout
        self._explain = explain
        self._plane = sandbox.control_plane
        self._failures: Sequence[str] = ()
        self._saved = {uid: object_key(pod) for uid, pod in self._pods().items()}
        self._placed = {uid for uid, pod in self._pods().items() if pod["spec"].get("nodeName")}
        self._awaited: dict[str, ObjectKey] = {}  # every pod that had no node, by UID
        self._await(self._pods().values())  # they may be evicted before they are shown

    async def begin(self) -> None:
        """Schedule the pods that wait."""
        await self._settle()  # controllers make claims of templates first
        self._plane.schedule()
        await self._settle()
        await self._show("pods that waited")

    async def apply(self, files: Sequence[Path]) -> None:
        """Apply objects to the copy, or change those that exist, and schedule the pods that wait.

        Raises:
            ConfigurationError: a file is invalid, or one of its objects was rejected.
        """
        self._plane.hold()
        made = await apply_files(self._sandbox.client, files)
        self._view.entry(f"applied to the copy: {counted(len(made), 'object')}", bold=True)
        titles = [f"{item.resource.kind} {'/'.join(filter(None, (item.namespace, item.name)))}" for item in made]
        self._view.details([*titles[:_NAMED], *_rest(len(titles))])
        self._await(item.object for item in made if item.resource == PODS)
        await self._settle()
        self._plane.schedule()
        await self._settle()
        self._show_gone()
        await self._show("with what was applied, pods that waited")

    def _pods(self) -> dict[str, ObjectView]:
        return {pod["metadata"]["uid"]: pod for pod in self._sandbox.informers.objects(PODS).values()}

    def _await(self, pods: Iterable[ObjectView]) -> None:
        """Expect that those of the pods that the scheduler is responsible for have a place at the end."""
        for pod in pods:
            uid = pod["metadata"]["uid"]
            if uid not in self._placed and (pod["spec"].get("nodeName") or waits_for_scheduler(pod)):
                self._awaited[uid] = object_key(pod)

    async def _settle(self) -> None:
        """Wait until nothing happens any more; give up if no pod gets a node within the timeout."""
        placed = -1
        while placed != (placed := sum(bool(pod["spec"].get("nodeName")) for pod in self._pods().values())):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout):
                    await self._sandbox.or_fail(self._plane.calm())
                    return

    async def _show(self, title: str) -> None:
        """Show which pods have a place, and why others have none."""
        self._await(self._pods().values())
        failed = await self._run_on_own_nodes()
        self._shown.feed.poll()
        pods = self._pods()
        there = [pods[uid] for uid in self._awaited if uid in pods]
        placed = [pod for pod in there if pod["spec"].get("nodeName")]
        without = [pod for pod in there if not pod["spec"].get("nodeName")]
        lost = [text for uid in self._awaited if uid not in pods and (text := self._deletion(uid))]
        if self._awaited:
            verdict = f"{title}: {len(self._awaited) - len(without) - len(lost)} of {len(self._awaited)} have a place"
            self._view.entry(verdict, bold=True, fg="red" if without or lost or failed else "green")
        else:
            self._view.entry("no pod waits for a place", bold=True, fg="green")
        claims = self._sandbox.informers.objects(RESOURCE_CLAIMS)
        texts = [self._place(pod, claims) for pod in placed]
        texts += [
            f"Pod {'/'.join(key)} succeeded, and was deleted"
            for uid, key in self._awaited.items()
            if uid not in pods and not self._deletion(uid)
        ]
        self._view.details([*texts[:_NAMED], *_rest(len(texts))])
        causes = await self._sandbox.causes(without[:_EXPLAINED])
        failures = [*failed, *lost, *(self._reason(pod, causes.get(pod["metadata"]["uid"], ())) for pod in without)]
        self._view.details(line for text in failures[:_EXPLAINED] for line in text.splitlines())
        self._view.details(_rest(len(failures), _EXPLAINED))
        if self._explain:
            self._view.details(_explain_command(self._sandbox, pod, self._release) for pod in without[:_EXPLAINED])
        former = set(self._failures)
        self._shown.failures[:] = [*(text for text in self._shown.failures if text not in former), *failures]
        self._failures = failures

    async def _run_on_own_nodes(self) -> Sequence[str]:
        """Wait until pods on nodes of the sandbox have ended or are ready; return what is wrong with them."""
        own, end = {node.name for node in self._sandbox.nodes}, time.monotonic() + self._timeout
        while True:
            pods = [pod for uid, pod in self._pods().items() if uid in self._awaited]
            outcome = judge_pods(
                [pod for pod in pods if pod["spec"].get("nodeName") in own], self._shown.problems.by_uid
            )
            if outcome.settled or time.monotonic() > end:
                return outcome.failures
            await self._sandbox.or_fail(asyncio.sleep(_LOOK_SECONDS))

    def _reason(self, pod: ObjectView, causes: Sequence[object]) -> str:
        known = (self._shown.problems.by_uid.get(pod["metadata"]["uid"], ""), *map(str, causes))
        first, *others = list(filter(None, dict.fromkeys(known))) or ["the scheduler has not tried it yet"]
        return "\n  ".join((f"Pod {object_name(pod)} has no place: {first}", *others))

    def _deletion(self, uid: str) -> str:
        """Return why a pod is not there any more; empty for one that had succeeded."""
        key = self._awaited.get(uid) or self._saved[uid]
        return self._shown.problems.deleted.get(uid, f"Pod {'/'.join(key)} was deleted")

    def _place(self, pod: ObjectView, claims: Mapping[ObjectKey, ObjectView]) -> str:
        """Return where a pod is, and what it has there."""
        namespace = object_key(pod)[0]
        entries = (entry.claim for entry in pod_claims(pod) if entry.claim)
        held = [claim for name in entries if (claim := claims.get((namespace, name))) is not None]
        results = [result for claim in held for result in allocation_results(claim)]
        devices = [f"{result['device']} of pool {result['pool']}" for result in results]
        place = f"Pod {object_name(pod)} is on {pod['spec']['nodeName']}"
        return f"{place}, with {', '.join(devices)}" if devices else place

    def _show_gone(self) -> None:
        """Show the pods of the saved cluster that are not there any more."""
        there = self._pods()
        gone = {uid: key for uid, key in self._saved.items() if uid not in there and uid not in self._awaited}
        if gone:
            self._view.entry(f"{counted(len(gone), 'pod')} of the copy ended", fg="yellow")
            texts = [self._deletion(uid) or f"Pod {'/'.join(key)} was deleted" for uid, key in gone.items()]
            self._view.details([*texts[:_NAMED], *_rest(len(texts))])


def _rest(number: int, shown: int = _NAMED) -> list[str]:
    return [f"… and {number - shown} more"] if number > shown else []
