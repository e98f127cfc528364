"""Why pods are pending, from the objects that they need; and why they are deleted.

Of a deleted pod, that is the request that deletes it, or the taint that evicts it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from dra_kit.apiserver.api import AdmissionAttributes, AdmissionPlugin, Api
from dra_kit.client.api import Client
from dra_kit.client.resources import DEVICE_CLASSES, DEVICE_TAINT_RULES, EVENTS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kit.diagnosis.explain.claims import ClaimExplainer
from dra_kit.diagnosis.explain.cluster import ClusterView
from dra_kit.diagnosis.explain.pods import UNSCHEDULABLE, explain_pod
from dra_kit.diagnosis.explain.verdicts import JudgedChoice, PodClaimExplanation, PodExplanation, ReasonKind, summarize
from dra_kit.errors import DraKitError
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.resource.matching import tolerates
from dra_kit.kubernetes.resource.objects import object_key, pod_claims, pod_reference, taint_text
from dra_kit.kubernetes.resource.v1 import DeviceTaint, DeviceToleration
from dra_kit.kubernetes.scheduler.controllers import NO_EXECUTE, TaintedDevices
from dra_kit.kubernetes.values.json import Object, ObjectView
from dra_kit.sandbox.controllers.device_taint_eviction import COMPONENT as TAINT_EVICTION
from dra_kit.sandbox.informers import SCHEDULING_RESOURCES, SharedInformers
from dra_kit.sandbox.records import PodDeletionExplained

_COUNTERS: Final = 3
"""Shared counters of which the holders are named."""


class PendingCause(Struct, frozen=True):
    """Why a pod is pending.

    Attributes:
        text: a sentence.
        subject: the part of the pod that the cause is about, such as ``claim gpu``; empty for the whole pod.
        claim: the name of the claim in the pod's spec, if the cause is about a claim.
    """

    text: str
    subject: str = ""
    claim: str = ""

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}" if self.subject else self.text


async def explain_pending_pods(
    informers: SharedInformers, client: Client, pods: Sequence[ObjectView], release: Release
) -> Mapping[str, Sequence[PendingCause]]:
    """Return why pods are pending, by pod UID; pods without an explanation are left out."""
    documents = {resource.kind: list(informers.objects(resource).values()) for resource in SCHEDULING_RESOURCES}
    documents[EVENTS.kind] = list((await client.list(EVENTS)).items)
    try:
        explainer = ClaimExplainer(ClusterView(documents, gates=AllocatorRules.of(release)))
        return {pod["metadata"]["uid"]: list(_causes(explain_pod(explainer, pod))) for pod in pods}
    except DraKitError:  # dra-kit explain reports what prevents an explanation
        return {}


def _causes(explanation: PodExplanation) -> Iterator[PendingCause]:
    yield from map(PendingCause, explanation.problems)
    for claim in explanation.claims:
        yield from _of_claim(claim)
    # the sandbox itself reports that a pod is unschedulable
    yield from (PendingCause(str(event)) for event in explanation.events if event.reason != UNSCHEDULABLE)


def _of_claim(claim: PodClaimExplanation) -> Iterator[PendingCause]:
    explanation = claim.explanation
    if explanation is None or explanation.finds_devices:
        return
    subject = f"claim {claim.entry}" if claim.entry else "its extended resources"
    for blocker in explanation.blockers:
        yield PendingCause(blocker, subject, claim.entry)
    for request in explanation.requests:
        # that all devices match and are taken stands among the blockers, with who has them
        taken = explanation.outcome != "error" and all(map(_is_taken, request.choices))
        for judged in request.choices:
            if not taken and judged.choice is not None and not all(device.fits for device in judged.devices):
                yield PendingCause(f"request {judged.name}: {summarize(judged.devices)}", subject, claim.entry)
    texts = dict.fromkeys(
        reason.text
        for request in explanation.requests
        for judged in request.choices
        for device in judged.devices
        if device.matches
        for reason in device.reasons
        if reason.check is ReasonKind.COUNTERS and reason.details.get("claims")
    )
    for text in (*list(texts)[:_COUNTERS], *explanation.remedies):
        yield PendingCause(text, subject, claim.entry)


def _is_taken(judged: JudgedChoice) -> bool:
    """Return whether every device matches, and none is free."""
    wanted = judged.choice is not None and not judged.choice.all_devices
    return wanted and bool(judged.devices) and all(device.matches and not device.fits for device in judged.devices)


_TAINTED: Final = "DeletionByDeviceTaintManager"
_EVICTED: Final = "EvictionByEvictionAPI"
_NAMESPACE_CONTROLLER: Final = "namespace-controller"
_GARBAGE_COLLECTOR: Final = "generic-garbage-collector"


class DeletionRequests:
    """An admission plugin that remembers which client deletes a pod; ``plugin`` decides.

    It reads the user agents of requests, because every client of a sandbox is the administrator.
    """

    def __init__(self, plugin: AdmissionPlugin) -> None:
        self._plugin = plugin
        self._agents: dict[str, str] = {}  # of the first deletion of each pod, by UID

    async def mutate(self, write: AdmissionAttributes, warnings: list[str]) -> Object:
        """See :class:`dra_kit.apiserver.api.AdmissionPlugin`."""
        return await self._plugin.mutate(write, warnings)

    async def review(self, write: AdmissionAttributes, warnings: list[str]) -> None:
        """See :class:`dra_kit.apiserver.api.AdmissionPlugin`."""
        await self._plugin.review(write, warnings)
        if write.operation == "DELETE" and write.kind.resource == PODS.full_name and not write.dry_run and write.old:
            agent = write.request.agent.partition("/")[0].strip() or "a client without a name"
            self._agents.setdefault(write.old["metadata"]["uid"], agent)

    def agent(self, uid: str) -> str:
        """Return the client that deletes a pod, as it names itself; empty if no request deletes it."""
        return self._agents.get(uid, "")

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self._agents.pop(uid, None)


class PodDeletions:
    """Explains each deletion of a pod once.

    Args:
        api: of the cluster; its requests are observed from now on.
        informers: what the cluster contains.
    """

    def __init__(self, api: Api, informers: SharedInformers) -> None:
        self._api = api
        self._requests = DeletionRequests(api.admission)
        api.admission = self._requests
        self._objects = informers.objects
        self._taints: dict[str, str] = {}  # by UID of a pod that is evicted
        self._explained: set[str] = set()

    def changed(self, pod: ObjectView, *, gone: bool) -> Iterator[PodDeletionExplained]:
        """Yield why a pod is deleted, at the first change that shows the deletion."""
        uid = pod["metadata"]["uid"]
        target = _disruption_target(pod)
        if target.get("reason") == _TAINTED and uid not in self._taints:
            self._taints[uid] = self._taint_cause(pod)  # now: taints and claims may go before the pod does
        if (gone or "deletionTimestamp" in pod["metadata"]) and uid not in self._explained:
            self._explained.add(uid)
            yield self._explanation(pod, target)
        if gone:
            self._explained.discard(uid)
            self._taints.pop(uid, None)
            self._requests.forget(uid)

    def _explanation(self, pod: ObjectView, target: ObjectView) -> PodDeletionExplained:
        uid = pod["metadata"]["uid"]
        by, reason = self._requests.agent(uid), target.get("reason", "")
        if reason == _TAINTED:
            by, cause = TAINT_EVICTION, self._taints.get(uid, "")
        elif reason == _EVICTED:
            cause = "a request to the Eviction API"
        elif reason:
            cause = target.get("message", "")
        else:
            by, cause = self._deletion(pod, by)
        return PodDeletionExplained(pod=pod_reference(pod), by=by, cause=cause, evicted=bool(reason))

    def _deletion(self, pod: ObjectView, agent: str) -> tuple[str, str]:
        """Return who deletes a pod that is not evicted, and why as far as that is known."""
        owner = next((item for item in pod["metadata"].get("ownerReferences", []) if item.get("controller")), None)
        owned = f"its owner is {owner['kind']} {owner['name']}" if owner else ""
        if agent:
            return agent, owned
        name = pod["metadata"].get("namespace", "")
        namespace = self._api.storage.get("namespaces", name)
        if namespace is None or "deletionTimestamp" in namespace.object["metadata"]:
            return _NAMESPACE_CONTROLLER, f"namespace {name} is being deleted"
        return (_GARBAGE_COLLECTOR, f"{owned}, which is deleted") if owner else ("", "")

    def _taint_cause(self, pod: ObjectView) -> str:
        """Return the taints that evict a pod, and why its claims do not tolerate them."""
        sources = (RESOURCE_SLICES, DEVICE_TAINT_RULES, DEVICE_CLASSES)
        tainted = TaintedDevices.of(*(self._objects(resource).values() for resource in sources))
        claims = self._objects(RESOURCE_CLAIMS)
        return "; ".join(
            text
            for item in pod_claims(pod)
            if item.claim and (claim := claims.get((object_key(pod)[0], item.claim)))
            for text in _untolerated(tainted, claim)
        )


def _disruption_target(pod: ObjectView) -> ObjectView:
    """Return the condition that says why a pod is evicted; empty if it is not evicted."""
    conditions = pod.get("status", {}).get("conditions", [])
    return next((item for item in conditions if (item["type"], item["status"]) == ("DisruptionTarget", "True")), {})


def _untolerated(tainted: TaintedDevices, claim: ObjectView) -> Iterator[str]:
    """Yield the taints that evict the pods of a claim, each with its device."""
    results: list[Any] = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    for result in results:
        for rule, taint in tainted.of_device((result["driver"], result["pool"], result["device"])):
            missing = _missing_toleration(taint, result.get("tolerations", []))
            if missing:
                source = f" from DeviceTaintRule {rule}" if rule else ""
                yield (
                    f"device {result['device']} of pool {result['pool']} has taint {taint_text(taint)}{source}, and "
                    f"request {result['request']} of ResourceClaim {claim['metadata']['name']} {missing}"
                )


def _missing_toleration(taint: ObjectView, tolerations: list[Any]) -> str:
    """Return why tolerations do not prevent the eviction by a taint; empty if they do, or if the taint evicts none."""
    if taint.get("effect") != NO_EXECUTE:
        return ""
    accepted = DeviceTaint.model_validate(taint)
    tolerating = [item for item in map(DeviceToleration.model_validate, tolerations) if tolerates(item, accepted)]
    evicting = [item for item in tolerating if item.effect == NO_EXECUTE]
    if any(item.toleration_seconds is None for item in evicting):
        return ""
    if evicting:
        seconds = max(min(item.toleration_seconds or 0 for item in evicting), 0)
        return f"tolerates it for {seconds} s only (tolerationSeconds)"
    if tolerating:
        return (
            "tolerates it only for scheduling: a toleration without effect prevents no eviction; add effect: NoExecute"
        )
    return "does not tolerate it"
