"""The scheduler's loop: which pods to try when, and which devices are in use."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from dra_kit.client.api import STRATEGIC_MERGE_PATCH, Client
from dra_kit.client.events import EventRecorder, ObjectReference
from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NAMESPACES,
    NODES,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from dra_kit.errors import KubeError
from dra_kit.kubernetes.allocator.allocation import AllocationAttempt, Allocator
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.allocator.selectors import CelEvaluator, DeviceMatcher
from dra_kit.kubernetes.allocator.state import AllocatorState
from dra_kit.kubernetes.release import KubernetesVersion
from dra_kit.kubernetes.resource.matching import Node
from dra_kit.kubernetes.resource.objects import ObjectKey, format_time, is_terminal, object_key
from dra_kit.kubernetes.scheduler import hints
from dra_kit.kubernetes.scheduler.assume_cache import AssumedPods, ClaimTracker
from dra_kit.kubernetes.scheduler.claims import (
    NotReady,
    UnschedulableAndUnresolvable,
    allocation_problem,
    pod_claims_state,
)
from dra_kit.kubernetes.scheduler.cycle import (
    DeviceChoice,
    Placement,
    SchedulingDecision,
    Unschedulable,
    explain_choices,
    no_remedy,
    schedule_pod,
)
from dra_kit.kubernetes.scheduler.nodes import DYNAMIC_RESOURCES, KnownRequests, node_loads, prefilter_message
from dra_kit.kubernetes.scheduler.pod_groups import (
    GANG_SCHEDULING,
    GroupAttempt,
    changed_condition,
    error_condition,
    group_key,
    group_problem,
    min_count,
)
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.binder import Binder, PostFilterRunner
from dra_kit.sandbox.informers import SharedInformers

logger: logging.Logger = logging.getLogger(__name__)
NAME: Final = "default-scheduler"
_FIRST_BACKOFF: Final = 1.0  # of a pod whose attempt failed: doubled, at most ten seconds (podInitialBackoffSeconds)
_LAST_BACKOFF: Final = 10.0
_NO_CHANGE_HELPS: Final = frozenset({"SchedulerError"})  # instead of plugins: where the attempt failed, time decides
_Hint: TypeAlias = Callable[[ObjectView, frozenset[str]], bool]
"""Whether a change may help a pod that these plugins rejected."""


class Scheduler:
    """Gives pods nodes and claims devices.

    With ``held`` it does not begin before :meth:`release`, and the objects may be invalid: those of a saved cluster.
    With ``provide_resources``, DeviceClasses provide extended resources.
    """

    def __init__(
        self,
        client: Client,
        informers: SharedInformers,
        devices: DeviceTracker,
        *,
        observe: Callable[[SchedulingDecision], None] = lambda _: None,
        time_scale: float = 1.0,
        held: bool = False,
        provide_resources: bool = True,
    ) -> None:
        self._provide_resources = provide_resources
        self._client = client
        self._devices = devices
        self._observe = observe
        self._time_scale = time_scale
        self._events = EventRecorder(client, controller=NAME, instance=NAME)
        self._nodes = informers.objects(NODES)
        self._pods = informers.objects(PODS)
        self._namespaces = informers.objects(NAMESPACES)
        self._groups = informers.objects(POD_GROUPS)
        self._classes = informers.objects(DEVICE_CLASSES)
        self._assumed = AssumedPods(self._pods)
        self._requests = KnownRequests(devices.version)
        self._claims = ClaimTracker(informers.objects(RESOURCE_CLAIMS), devices.hold)
        self._post_filter = PostFilterRunner(client)
        self._binder = Binder(client, self._claims, self._events, time_scale=time_scale)
        self._active: dict[ObjectKey, None] = {}
        self._waiting: dict[ObjectKey, frozenset[str] | None] = {}  # with who rejected them; None: they were not tried
        self._failures: dict[str, int] = {}  # attempts that failed, by pod UID
        self._backing_off: dict[str, asyncio.TimerHandle] = {}  # the next attempt of these, by pod UID
        self._backed_off: set[str] = set()  # UIDs of pods tried again after a failed attempt: claims were ready before
        self._missed: list[_Hint] | None = None  # what changed while a pod is tried
        self._event_versions: dict[str, str] = {}  # resource version of a pod at its last Event, by its UID
        self._wake = asyncio.Event()
        self._released = asyncio.Event()
        if not held:
            self._released.set()
        self._trying = False
        self._validated = not held  # a saved cluster may have objects that validation would refuse
        informers.listen(PODS, self._pod_changed)
        informers.listen(RESOURCE_CLAIMS, self._claim_changed)
        informers.listen(NODES, self._node_changed)
        self._slices = informers.objects(RESOURCE_SLICES)
        self._rules = informers.objects(DEVICE_TAINT_RULES)
        informers.listen(RESOURCE_SLICES, self._slice_changed)
        informers.listen(DEVICE_CLASSES, self._class_changed)
        informers.listen(DEVICE_TAINT_RULES, self._rule_changed)
        informers.listen(POD_GROUPS, self._group_changed)

    async def run(self) -> None:
        """Schedule until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._events.run(asyncio.Event()), name="events of the scheduler")
            while True:
                await self._wake.wait()
                await self._released.wait()
                if not self._active:
                    self._wake.clear()
                    continue
                key = min(self._active, key=self._urgency)
                del self._active[key]
                self._trying = True
                await self._attempt(key, group)
                self._trying = False

    def hold(self) -> None:
        """Try no further pod until :meth:`release`."""
        self._released.clear()

    def release(self) -> None:
        """Try the pods that are ready for it, the oldest first."""

        def age(key: ObjectKey) -> tuple[str, ObjectKey]:
            pod = self._pods.get(key)
            return (pod["metadata"].get("creationTimestamp") or "" if pod else "", key)

        self._active = dict.fromkeys(sorted(self._active, key=age))
        self._released.set()

    @property
    def busy(self) -> bool:
        """Whether a pod is tried now, or will be without any change."""
        return self._trying or bool(self._backing_off) or (self._released.is_set() and bool(self._active))

    def _urgency(self, key: ObjectKey) -> int:
        """Return a sort key: pods of higher priority first; equals stay in order, oldest first."""
        pod = self._pods.get(key)
        return -int(pod["spec"].get("priority") or 0) if pod else 0

    # --- what changed

    def _pod_changed(self, change: ObjectChange) -> None:
        pod, key = change.object, object_key(change.object)
        if change.type == "DELETED":
            self._requests.forget(pod)
        if change.type == "DELETED" or pod["spec"].get("nodeName"):
            self._active.pop(key, None)
            self._waiting.pop(key, None)
            self._failures.pop(pod["metadata"]["uid"], None)
            self._stop_backing_off(pod["metadata"]["uid"])
            self._event_versions.pop(pod["metadata"]["uid"], None)
            self._backed_off.discard(pod["metadata"]["uid"])
            self._assumed.forget(pod)
            before, after = (None if item is None or not _is_on_node(item) else item for item in _states(change))
            if before is not None or after is not None:
                known = self._namespaces
                self._retry(lambda other, plugins: hints.placed_pod_hint(other, plugins, before, after, known))
            if before is None and after is not None and (pod_group := group_key(pod)):
                self._retry(lambda other, plugins: GANG_SCHEDULING in plugins and group_key(other) == pod_group)
        elif self._is_ours(pod) and (change.previous is None or _pod_essence(change.previous) != _pod_essence(pod)):
            self._activate(key)

    def _claim_changed(self, change: ObjectChange) -> None:
        claim = change.object
        self._claims.seen(claim, deleted=change.type == "DELETED")
        self._retry(lambda pod, plugins: hints.claim_hint(pod, plugins, *_states(change)))
        self._activate_users(claim, self._untried())

    def _node_changed(self, change: ObjectChange) -> None:
        self._retry(
            lambda pod, plugins: hints.node_hint(
                pod, plugins, *_states(change), self._classes.values(), version=self._requests.version
            )
        )

    def _slice_changed(self, change: ObjectChange) -> None:
        self._devices.slice_changed(change)
        self._retry(lambda _, plugins: hints.slice_hint(plugins, _states(change)[1]))

    def _class_changed(self, change: ObjectChange) -> None:
        self._devices.class_changed(change)
        self._retry(lambda pod, plugins: hints.class_hint(pod, plugins, *_states(change), self._requests.version))

    def _rule_changed(self, change: ObjectChange) -> None:
        self._devices.rules_changed(self._rules.values())
        slices = self._slices.values()
        self._retry(lambda _, plugins: hints.taint_rule_hint(plugins, *_states(change), slices))

    def _group_changed(self, change: ObjectChange) -> None:
        """Try the pods of a group that is new, or needs fewer pods now.

        kube-scheduler 1.37 tries pods that another plugin than GangScheduling rejected only after five minutes.
        """
        before, after = _states(change)
        if after is not None and (before is None or min_count(after) < min_count(before)):
            key = object_key(after)
            self._retry(lambda other, _: group_key(other) == key)

    def _is_ours(self, pod: ObjectView) -> bool:
        return (
            pod["spec"].get("schedulerName", NAME) == NAME
            and "deletionTimestamp" not in pod["metadata"]
            and not pod["spec"].get("schedulingGates")
            and not is_terminal(pod)
        )

    def _activate(self, key: ObjectKey) -> None:
        self._waiting.pop(key, None)
        self._active.setdefault(key)
        self._wake.set()

    def _untried(self) -> list[ObjectKey]:
        """Return the pods that wait for another client to write their claims."""
        return [key for key, plugins in self._waiting.items() if plugins is None]

    def _activate_users(self, claim: ObjectView, keys: Iterable[ObjectKey]) -> None:
        for key in keys:
            pod = self._pods.get(key)
            if pod and hints.uses(pod, claim):
                self._activate(key)

    def _retry(self, helps: _Hint) -> None:
        """Look again at the pods that a change may help; where no plugin was to blame, anything may."""
        if self._missed is not None:
            self._missed.append(helps)
        helped = []
        for key, plugins in self._waiting.items():
            pod = self._pods.get(key) if plugins is not None else None
            if pod is not None and plugins is not None and (not plugins or helps(pod, plugins)):
                helped.append(key)
        for key in sorted(helped):
            self._activate(key)

    # --- one attempt

    async def _attempt(self, key: ObjectKey, tasks: asyncio.TaskGroup) -> None:
        """Find a node for a pod and start to bind it, or report why there is none; for a group's pod, try the group."""
        pod = self._pods.get(key)
        if pod is None or not self._is_queued(pod):
            return
        if (pod_group := group_key(pod)) is not None:
            await self._attempt_group(pod_group, tasks)
            return
        self._waiting[key] = None
        queued = pod["metadata"]["uid"] not in self._backed_off
        self._backed_off.discard(pod["metadata"]["uid"])
        missed = self._missed = []
        try:
            placement, choices = await self._decide(pod)
        except NotReady as error:
            if queued:
                logger.debug("pod has to wait", extra={"pod": "/".join(key), "reason": str(error)})
                return
            nodes = [node["metadata"]["name"] for node in self._nodes.values()]
            text = prefilter_message(str(error), nodes, no_remedy(self._devices.version))
            await self._turn_down(pod, Unschedulable(text, plugins=[DYNAMIC_RESOURCES]), missed)
            return
        except Unschedulable as refusal:
            await self._turn_down(pod, refusal, missed)
            return
        finally:
            self._missed = None
        if self._is_gone(pod):
            return
        self._waiting.pop(key, None)
        self._assumed.assume(pod, placement.node)
        self._claims.begin(placement)
        self._observe(SchedulingDecision(pod, placement, choices))
        tasks.create_task(self._bind(placement), name=f"binding {'/'.join(key)}")

    def _is_queued(self, pod: ObjectView) -> bool:
        return not pod["spec"].get("nodeName") and self._is_ours(pod) and not self._assumed.is_placed(pod)

    async def _decide(
        self, pod: ObjectView, together: Collection[str] = ()
    ) -> tuple[Placement, tuple[tuple[ObjectView, DeviceChoice], ...]]:
        """Find a node, in a thread, since the search for devices may take its time; what it reads does not change."""
        loads = node_loads(self._nodes.values(), self._assumed.placed(), self._requests)
        claims = self._claims.needed_by(pod, together)
        classes = dict(self._classes)
        namespaces = dict(self._namespaces)
        # if the gate is off, only a saved cluster has them
        named = any(item["spec"].get("extendedResourceName") for item in classes.values())

        def decide() -> tuple[Placement, tuple[tuple[ObjectView, DeviceChoice], ...]]:
            placement = schedule_pod(
                pod,
                loads,
                claims,
                classes,
                self._devices,
                namespaces=namespaces,
                is_overdue=self._binder.is_overdue,
                provide_resources=self._provide_resources or named,
            )
            node = loads[placement.node].node
            return placement, self._devices.explain(node, placement.allocations)

        with self._devices.still():
            search = asyncio.get_running_loop().run_in_executor(None, decide)
            try:
                return await asyncio.shield(search)
            except asyncio.CancelledError:
                self._devices.abort()
                await asyncio.gather(search, return_exceptions=True)
                raise
            except (NotReady, Unschedulable):
                raise
            except Exception as error:  # one pod must not end the scheduling of all others
                cause = f"{type(error).__name__}: {error}"
                if self._validated:
                    logger.exception("attempt to schedule a pod failed", extra={"pod": "/".join(object_key(pod))})
                    text = f"the simulated scheduler failed ({cause}); this is a bug in dra-kit, please report it"
                else:
                    text = f"the simulated scheduler failed ({cause}); save the cluster again: an object may be corrupt"
                raise Unschedulable(text, reason="SchedulerError") from None

    # --- one attempt for the pods of a group

    async def _attempt_group(self, key: ObjectKey, tasks: asyncio.TaskGroup) -> None:
        """Find nodes for all pods of a PodGroup; if there are not enough, none of them gets one."""
        group = self._groups.get(key)
        members = [pod for pod in self._pods.values() if group_key(pod) == key]
        queued = []
        for pod in filter(self._is_queued, members):
            is_gated = self._is_gated(pod)
            self._active.pop(object_key(pod), None)
            self._waiting[object_key(pod)] = None if is_gated else frozenset({GANG_SCHEDULING})
            if not is_gated:
                queued.append(pod)
        scheduled = [pod for pod in members if _is_on_node(pod) or self._assumed.is_placed(pod)]
        if group is None or not queued or len(queued) + len(scheduled) < min_count(group):
            return  # until more pods come, or their claims
        if problem := group_problem(group, [*queued, *scheduled]):
            await self._refuse_all(queued, lambda _: Unschedulable(problem, reason="SchedulerError"), ())
            await self._write_group_condition(group, error_condition(problem))
            return
        missed = self._missed = []
        attempt = GroupAttempt(min_count(group), len(scheduled), len(queued), {})
        placed: dict[str, tuple[Placement, tuple[tuple[ObjectView, DeviceChoice], ...]]] = {}  # by UID of the pod
        try:
            await self._place(group, queued, attempt, placed)
            if attempt.succeeded:
                self._bind_group(placed.values(), tasks)
            else:
                for placement, _ in reversed(placed.values()):
                    self._claims.end(placement)
                    self._assumed.forget(placement.pod)
                await self._help_group(attempt, scheduled)
            rest = [pod for pod in queued if not attempt.succeeded or pod["metadata"]["uid"] not in placed]
            await self._refuse_all(
                rest, lambda pod: attempt.refusal(pod, placed=pod["metadata"]["uid"] in placed), missed
            )
        finally:
            self._missed = None
        await self._write_group_condition(group, attempt.condition())

    async def _place(
        self,
        group: ObjectView,
        queued: Iterable[ObjectView],
        attempt: GroupAttempt,
        placed: dict[str, tuple[Placement, tuple[tuple[ObjectView, DeviceChoice], ...]]],
    ) -> None:
        """Find a node for one pod of a group after the other, and assume it."""
        for pod in queued:
            if attempt.is_hopeless:
                return
            try:
                placement, choices = await self._decide(pod, placed.keys())
            except NotReady as error:
                nodes = [node["metadata"]["name"] for node in self._nodes.values()]
                text = prefilter_message(str(error), nodes, preemption=False)
                attempt.refused(pod, Unschedulable(text, plugins=[DYNAMIC_RESOURCES]))
            except Unschedulable as refusal:
                attempt.refused(pod, refusal)
            else:
                attempt.found()
                placed[pod["metadata"]["uid"]] = replace(placement, group=group), choices
                self._assumed.assume(pod, placement.node)
                self._claims.begin(placement)

    def _bind_group(
        self,
        placed: Iterable[tuple[Placement, tuple[tuple[ObjectView, DeviceChoice], ...]]],
        tasks: asyncio.TaskGroup,
    ) -> None:
        """Bind the pods of a group; those that share a claim write it one after the other."""
        binding: dict[str, asyncio.Task[None]] = {}  # the last one that writes a claim, by the claim's UID
        for placement, choices in placed:
            key = object_key(placement.pod)
            self._waiting.pop(key, None)
            self._observe(SchedulingDecision(placement.pod, placement, choices))
            earlier = [binding[uid] for claim in placement.reserve if (uid := claim["metadata"]["uid"]) in binding]
            task = tasks.create_task(self._bind_after(placement, earlier), name=f"binding {'/'.join(key)}")
            claims = (*placement.reserve, *(claim for claim, _ in placement.allocations))
            binding |= {claim["metadata"].get("uid", ""): task for claim in claims}

    async def _bind_after(self, placement: Placement, earlier: Collection[asyncio.Task[None]]) -> None:
        if earlier:
            await asyncio.wait(earlier)
            reserve = tuple(self._claims.claim(object_key(claim)) or claim for claim in placement.reserve)
            placement = replace(placement, reserve=reserve)
        await self._bind(placement)

    async def _refuse_all(
        self, pods: Iterable[ObjectView], refusal: Callable[[ObjectView], Unschedulable], missed: Iterable[_Hint]
    ) -> None:
        for pod in pods:
            if not self._is_gone(pod):
                self._observe(SchedulingDecision(pod, refusal=refusal(pod)))
                await self._refuse(pod, refusal(pod), missed)

    async def _write_group_condition(self, group: ObjectView, condition: dict[str, Any]) -> None:
        now = self._groups.get(object_key(group))
        written = changed_condition(now, condition, format_time()) if now is not None else None
        if written is None:
            return
        namespace, name = object_key(group)
        body = {"metadata": {"uid": group["metadata"]["uid"]}, "status": {"conditions": [written]}}
        try:
            await self._client.patch(
                POD_GROUPS, name, body, namespace, subresource="status", content_type=STRATEGIC_MERGE_PATCH
            )
        except KubeError as error:
            logger.debug("condition not written", extra={"pod group": f"{namespace}/{name}", "error": str(error)})

    # --- pods without a node

    async def _turn_down(self, pod: ObjectView, refusal: Unschedulable, missed: Iterable[_Hint]) -> None:
        refusal = await self._help(refusal)
        if self._is_gone(pod):
            return
        self._observe(SchedulingDecision(pod, refusal=refusal))
        await self._refuse(pod, refusal, missed)

    async def _help(self, refusal: Unschedulable) -> Unschedulable:
        """Do what may help a pod that no node takes, so that its next attempt succeeds."""
        if refusal.remedy is None:
            return refusal
        try:
            await self._post_filter.apply(refusal.remedy)
        except KubeError as error:
            return refusal.after_remedy(error.text)
        return refusal.after_remedy(refusal.remedy.text)

    async def _help_group(self, attempt: GroupAttempt, scheduled: Collection[ObjectView]) -> None:
        """Do what may help the pods of a group that no node takes; their claims may be in use by others of them."""
        for refusal in attempt.refusals.values():
            remedy = refusal.remedy
            if remedy is not None and (remedy.delete or self._is_unused(remedy.claim, scheduled)):
                await self._help(refusal)

    def _is_unused(self, claim: ObjectView, scheduled: Iterable[ObjectView]) -> bool:
        """Return whether a claim has an allocation, not only an assumed one, that none of these pods use."""
        known = self._claims.claim(object_key(claim))
        is_allocated = known is not None and bool(known.get("status", {}).get("allocation"))
        return is_allocated and not any(hints.uses(pod, claim) for pod in scheduled)

    def _is_gone(self, pod: ObjectView) -> bool:
        now = self._pods.get(object_key(pod))
        return now is None or now["metadata"]["uid"] != pod["metadata"]["uid"] or not self._is_ours(now)

    async def _bind(self, placement: Placement) -> None:
        try:
            await self._binder.bind(placement)
        except Unschedulable as refusal:
            self._claims.end(placement)
            self._assumed.forget(placement.pod)
            failed, known = placement.pod, self._namespaces
            self._retry(lambda other, plugins: hints.failed_binding_hint(other, plugins, failed, known))
            await self._binding_failed(placement.pod, refusal)
        else:
            self._claims.end(placement)
        finally:
            for claim, _ in placement.allocations:
                self._activate_users(claim, self._untried())  # they waited until it was written

    async def _binding_failed(self, pod: ObjectView, refusal: Unschedulable) -> None:
        now = self._pods.get(object_key(pod))
        if now is None or self._is_gone(pod):
            return
        self._observe(SchedulingDecision(now, refusal=refusal))
        await self._refuse(now, refusal)

    async def _refuse(self, pod: ObjectView, refusal: Unschedulable, missed: Iterable[_Hint] = ()) -> None:
        """Report that a pod has no node, and retry later; retry soon if the attempt itself failed."""
        key, uid = object_key(pod), pod["metadata"]["uid"]
        if refusal.reason == "SchedulerError":
            self._failures[uid] = self._failures.get(uid, 0) + 1
            self._waiting[key] = None if self._is_gated(pod) else _NO_CHANGE_HELPS
            delay = min(_FIRST_BACKOFF * 2 ** (self._failures[uid] - 1), _LAST_BACKOFF) / self._time_scale
            self._stop_backing_off(uid)
            self._backing_off[uid] = asyncio.get_running_loop().call_later(delay, self._retry_one, key, uid)
        else:
            self._waiting[key] = refusal.plugins
            if any(not refusal.plugins or helps(pod, refusal.plugins) for helps in missed):
                self._activate(key)
        # client-go treats a second event about the same state of a pod as a repetition, even if its text differs
        version = pod["metadata"]["resourceVersion"]
        repeated, self._event_versions[uid] = self._event_versions.get(uid) == version, version
        if not repeated:
            self._events.record(
                ObjectReference.to(pod), "Warning", reason="FailedScheduling", action="Scheduling", note=refusal.message
            )
        await self._write_condition(pod, refusal)

    def _is_gated(self, pod: ObjectView) -> bool:
        """Return whether a pod has to wait for its claims, however its attempt ended."""
        try:
            pod_claims_state(pod, self._claims.named_by(pod), self._classes)
        except NotReady:
            return True
        except UnschedulableAndUnresolvable:
            pass
        return False

    async def _write_condition(self, pod: ObjectView, refusal: Unschedulable) -> None:
        status: dict[str, Any] = {}
        known_status = pod.get("status", {})
        condition = {"type": "PodScheduled", "status": "False", "reason": refusal.reason, "message": refusal.message}
        conditions = known_status.get("conditions", [])
        known: dict[str, Any] = next((item for item in conditions if item["type"] == "PodScheduled"), {})
        if any(known.get(name) != value for name, value in condition.items()):
            condition["lastTransitionTime"] = known.get("lastTransitionTime") or format_time()
            status["conditions"] = [condition]
        if "nominatedNodeName" in known_status:
            status["nominatedNodeName"] = None
        if not status:
            return
        namespace, name = object_key(pod)
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        try:
            await self._client.patch(
                PODS, name, body, namespace, subresource="status", content_type=STRATEGIC_MERGE_PATCH
            )
        except KubeError as error:
            logger.debug("condition not written", extra={"pod": f"{namespace}/{name}", "error": str(error)})

    def _retry_one(self, key: ObjectKey, uid: str) -> None:
        """Retry a pod after its back-off; there may be another one of its name, or something else to wait for."""
        del self._backing_off[uid]
        pod = self._pods.get(key)
        if pod is not None and pod["metadata"]["uid"] == uid and self._waiting.get(key) == _NO_CHANGE_HELPS:
            self._backed_off.add(uid)
            self._activate(key)

    def _stop_backing_off(self, uid: str) -> None:
        """Drop the time of the next attempt; that of any pod of a group starts one for all of them."""
        if (timer := self._backing_off.pop(uid, None)) is not None:
            timer.cancel()


def _states(change: ObjectChange) -> tuple[ObjectView | None, ObjectView | None]:
    """Return the states of an object before and after a change."""
    return change.previous, None if change.type == "DELETED" else change.object


def _is_on_node(pod: ObjectView) -> bool:
    return bool(pod["spec"].get("nodeName")) and not is_terminal(pod)


def _pod_essence(pod: ObjectView) -> tuple[Any, ...]:
    return pod["spec"], pod["metadata"].get("labels"), pod.get("status", {}).get("resourceClaimStatuses")


class DeviceTracker:
    """Tracks published and allocated devices.

    While it is frozen, another thread may search for devices; changes are applied afterwards.
    """

    def __init__(self, gates: AllocatorRules) -> None:
        self._gates = gates
        self._evaluator = CelEvaluator(gates.version)
        self._snapshot = AllocatorState(version=gates.version)
        self._allocator = Allocator(self._snapshot, gates, evaluator=self._evaluator)
        self._held: dict[str, ObjectView] = {}  # allocation by the UID of its claim
        self._invalid: dict[str, str] = {}  # what is wrong with an allocation, likewise
        self._later: list[Callable[[], None]] | None = None  # changes to apply; None while it is not frozen
        self._aborted = threading.Event()

    @contextmanager
    def still(self) -> Iterator[None]:
        """Freeze the tracker inside the context."""
        self._later = []
        try:
            yield
        finally:
            changes, self._later = self._later, None
            for change in changes:
                change()

    def abort(self) -> None:
        """Abort every search for devices, now and later."""
        self._aborted.set()

    def _apply(self, change: Callable[[], None]) -> None:
        if self._later is None:
            change()
        else:
            self._later.append(change)

    # --- informers

    def slice_changed(self, change: ObjectChange) -> None:
        """Note that a ResourceSlice was created, changed or deleted."""
        if change.type == "DELETED":
            self._apply(lambda: self._snapshot.publish(remove=[change.object["metadata"]["name"]]))
        else:
            self._apply(lambda: self._snapshot.publish([change.object]))

    def class_changed(self, change: ObjectChange) -> None:
        """Note that a DeviceClass was created, changed or deleted."""
        if change.type == "DELETED":
            self._apply(lambda: self._snapshot.define(remove=[change.object["metadata"]["name"]]))
        else:
            self._apply(lambda: self._snapshot.define([change.object]))

    def rules_changed(self, rules: Iterable[ObjectView]) -> None:
        """Replace all DeviceTaintRules."""
        known = list(rules)
        self._apply(lambda: self._snapshot.taint(known))

    # --- who holds what

    def hold(self, claim: str, allocation: ObjectView | None, name: str = "") -> None:
        """Record the current allocation of a claim by its UID and name; None if the claim is not allocated."""
        self._apply(lambda: self._hold(claim, allocation, name))

    def _hold(self, claim: str, allocation: ObjectView | None, name: str) -> None:
        former = self._held.pop(claim, None)
        self._invalid.pop(claim, None)
        if former is not None:
            self._snapshot.deallocate(former)
        if allocation is not None:
            self._snapshot.allocate(allocation)
            self._held[claim] = allocation
            if problem := allocation_problem(allocation, name, self._gates):
                self._invalid[claim] = problem

    # --- for one pod

    @property
    def version(self) -> KubernetesVersion:
        """The release of the scheduler."""
        return self._gates.version

    def attempt(self, claims: Sequence[ObjectView]) -> AllocationAttempt:
        """Return an attempt to allocate the claims of a pod; it tries one node after the other.

        Raises:
            Unschedulable: an allocation that a claim has is invalid.
        """
        if claims and self._invalid:
            first, *others = sorted(self._invalid.values())
            more = f" (and {len(others)} more claims with invalid consumed capacity)" if others else ""
            text = f'running PreFilter plugin "{DYNAMIC_RESOURCES}": gather allocation state: {first}{more}'
            raise Unschedulable(text, reason="SchedulerError")
        return self._allocator.attempt(claims, is_aborted=self._aborted.is_set)

    def explain(
        self, node: Node, allocations: Sequence[tuple[ObjectView, ObjectView]]
    ) -> tuple[tuple[ObjectView, DeviceChoice], ...]:
        """Explain why the allocations of a pod, by claim, have these devices; to be called before they are held."""
        selection = DeviceMatcher(node, self._gates, self._evaluator)
        return tuple(explain_choices(self._snapshot, self._gates, selection, node, allocations))
