"""Eviction of pods from devices with NoExecute taints."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct

from dra_kit.client.api import Client
from dra_kit.client.events import EventRecorder, ObjectReference
from dra_kit.client.resources import DEVICE_CLASSES, DEVICE_TAINT_RULES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kit.errors import Conflict, KubeError, NotFound
from dra_kit.kubernetes.release import Change, Release
from dra_kit.kubernetes.resource.objects import ObjectKey, format_time, object_key
from dra_kit.kubernetes.scheduler.controllers import Eviction, TaintedDevices, evictions, rule_condition
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.informers import SharedInformers

logger: logging.Logger = logging.getLogger(__name__)
COMPONENT: Final = "device-taint-eviction-controller"
_RETRY_SECONDS: Final = 0.5
_PERIOD_SECONDS: Final = 10.0  # between two updates of a rule's condition while pods go (ruleStatusPeriod)


class _RuleWork(Struct):
    """The pending work on the condition of a DeviceTaintRule."""

    name: str
    generation: int = 0
    at_once: bool = False
    later: dt.datetime | None = None
    evicted: int = 0

    def is_due(self, now: dt.datetime) -> bool:
        """Return whether to update the condition now."""
        return self.at_once or (self.later is not None and self.later <= now)

    def looked(self, now: dt.datetime) -> None:
        """Note that the condition is up to date."""
        self.at_once = False
        if self.later is not None and self.later <= now:
            self.later = None

    def look_before(self, moment: dt.datetime) -> None:
        """Look again at this time, if not sooner."""
        self.later = min(self.later or moment, moment)


class DeviceTaintEvictionController:
    """Evicts pods from tainted devices. Level-triggered: any change causes one reconciliation of everything.

    With ``spare``, pods stay that the taints of the beginning would evict: the objects are those of a saved cluster,
    where these evictions are over, or not due yet.
    """

    def __init__(
        self,
        client: Client,
        informers: SharedInformers,
        events: EventRecorder,
        *,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        time_scale: float = 1.0,
        spare: bool = False,
        release: Release,
    ) -> None:
        self._release = release
        self._spare = spare
        self._spared: dict[str, Eviction] = {}  # by pod UID
        self._client = client
        self._informers = informers
        self._events = events
        self._now = now
        self._time_scale = time_scale
        self._period = dt.timedelta(seconds=_PERIOD_SECONDS / time_scale)
        self._wake = asyncio.Event()
        self._due: dict[ObjectKey, tuple[str, Eviction]] = {}  # pod UID and eviction, of those that wait or are going
        self._rules: dict[str, _RuleWork] = {}  # by UID of the rule
        self._deleted: set[str] = set()  # UIDs of pods
        for resource in (PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, DEVICE_TAINT_RULES, DEVICE_CLASSES):
            informers.listen(resource, lambda _: self._wake.set())

    async def run(self) -> None:
        """Work until cancelled."""
        if self._spare:
            pods, due = self._informers.objects(PODS), self._evictions(self._tainted())
            self._spared = {pods[key]["metadata"]["uid"]: eviction for key, eviction in due.items()}
        pause: float | None = None
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            self._wake.clear()
            try:
                pause = await self._look()
            except KubeError as error:
                logger.log(
                    logging.DEBUG if isinstance(error, Conflict) else logging.INFO,
                    "eviction tries again", extra={"error": str(error)},
                )  # fmt: skip
                pause = _RETRY_SECONDS

    async def _look(self) -> float | None:
        """Evict the pods that are due; return seconds until the next one is due, None if none is pending."""
        objects = self._informers.objects
        pods, rules = objects(PODS), objects(DEVICE_TAINT_RULES)
        tainted = self._tainted()
        if not (rules or self._rules or tainted.evict or self._due):
            return None
        due = {
            key: eviction
            for key, eviction in self._evictions(tainted).items()
            if self._spared.get(pods[key]["metadata"]["uid"]) != eviction
        }
        self._notice(rules.values())
        self._follow(due, pods)
        for work in list(self._rules.values()):
            if work.is_due(self._now()) and (rule := rules.get(("", work.name))):
                await self._write_condition(rule, work, due)
        for key, eviction in due.items():
            if eviction.at <= self._now() and key in pods:
                await self._evict(pods[key], eviction)
        waits = [eviction.at for key, eviction in due.items() if self._due[key][0] not in self._deleted]
        waits += [work.later for work in self._rules.values() if work.later is not None]
        return max((min(waits) - self._now()).total_seconds(), 0.0) if waits else None

    def _tainted(self) -> TaintedDevices:
        objects = self._informers.objects
        found = (objects(resource).values() for resource in (RESOURCE_SLICES, DEVICE_TAINT_RULES, DEVICE_CLASSES))
        return TaintedDevices.of(*found)

    def _evictions(self, tainted: TaintedDevices) -> dict[ObjectKey, Eviction]:
        claims, pods = self._informers.objects(RESOURCE_CLAIMS).values(), self._informers.objects(PODS)
        return (
            evictions(tainted, claims, pods, time_scale=self._time_scale, release=self._release)
            if tainted.evict
            else {}
        )

    def _notice(self, rules: Iterable[ObjectView]) -> None:
        """Look at once at rules that are new or have another spec, and forget those that are gone."""
        found: dict[str, _RuleWork] = {}
        for rule in rules:
            uid, generation = rule["metadata"]["uid"], rule["metadata"].get("generation", 1)
            work = self._rules.get(uid) or _RuleWork(rule["metadata"]["name"])
            if work.generation != generation:
                work.generation, work.at_once = generation, True
            found[uid] = work
        self._rules = found

    def _follow(self, due: Mapping[ObjectKey, Eviction], pods: Mapping[ObjectKey, Any]) -> None:
        """Forget pods that are gone, report cancelled evictions, and schedule checks of the rules of the others."""
        for key, (uid, _) in list(self._due.items()):
            pod = pods.get(key)
            if pod is None or pod["metadata"]["uid"] != uid:
                self._deleted.discard(uid)
                del self._due[key]
            elif key not in due:
                if uid not in self._deleted:
                    self._record(pod, "Cancelling deletion")
                del self._due[key]
        for key, eviction in due.items():
            entry = (pods[key]["metadata"]["uid"], eviction)
            if self._due.get(key) != entry:
                self._due[key] = entry
                self._look_later(eviction)

    def _look_later(self, eviction: Eviction) -> None:
        for work in self._rules.values():
            if work.name in eviction.rules:
                work.look_before(self._now() + self._period)

    async def _evict(self, pod: Mapping[str, Any], eviction: Eviction) -> None:
        uid = pod["metadata"]["uid"]
        if uid in self._deleted:
            return
        counts = True
        if "deletionTimestamp" not in pod["metadata"]:
            await self._delete(pod)
        else:  # another client deleted it first
            counts = not self._release.has(Change.DELETED_PODS_ARE_NOT_COUNTED)
        self._deleted.add(uid)
        for work in self._rules.values():
            work.evicted += counts and work.name in eviction.rules
        self._look_later(eviction)

    async def _delete(self, pod: Mapping[str, Any]) -> None:
        self._record(pod, "Marking for deletion")
        uid, (namespace, name) = pod["metadata"]["uid"], object_key(pod)
        conditions = [
            item for item in pod.get("status", {}).get("conditions", []) if item["type"] != "DisruptionTarget"
        ]
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "DeletionByDeviceTaintManager",
            "message": "Device Taint manager: deleting due to NoExecute taint",
            "lastTransitionTime": format_time(self._now()),
        }
        body = {
            "metadata": {"uid": uid, "resourceVersion": pod["metadata"]["resourceVersion"]},
            "status": {"conditions": [*conditions, condition]},
        }
        with suppress(NotFound):
            await self._client.patch(PODS, name, body, namespace, subresource="status")
            await self._client.delete(PODS, name, namespace, uid=uid)

    async def _write_condition(self, rule: ObjectView, work: _RuleWork, due: Mapping[ObjectKey, Eviction]) -> None:
        """Write a rule's condition if it changed and the last one is old enough."""
        now = self._now()
        conditions = rule.get("status", {}).get("conditions", [])
        known = next((item for item in conditions if item["type"] == "EvictionInProgress"), None)
        if known is not None and known.get("observedGeneration") == work.generation:
            again = dt.datetime.fromisoformat(known["lastTransitionTime"]) + self._period
            if again > now:
                work.looked(now)
                work.look_before(again)
                return
        objects = self._informers.objects
        pods = objects(PODS)
        new = rule_condition(
            rule, {key: item for key, item in due.items() if "deletionTimestamp" not in pods[key]["metadata"]},
            work.evicted, slices=objects(RESOURCE_SLICES).values(), claims=objects(RESOURCE_CLAIMS).values(), pods=pods,
            release=self._release,
        )  # fmt: skip
        new["observedGeneration"] = work.generation
        if known is None or any(known.get(name) != value for name, value in new.items()):
            new["lastTransitionTime"] = format_time(now)
            others = [item for item in conditions if item["type"] != "EvictionInProgress"]
            body = {"metadata": {"uid": rule["metadata"]["uid"]}, "status": {"conditions": [*others, new]}}
            with suppress(NotFound):
                rules = self._informers.served(DEVICE_TAINT_RULES)
                await self._client.patch(rules, rule["metadata"]["name"], body, subresource="status")
        work.looked(now)

    def _record(self, pod: Mapping[str, Any], note: str) -> None:
        self._events.record(
            ObjectReference.to(pod), "Normal", reason="DeviceTaintManagerEviction", action="Evict", note=note
        )
