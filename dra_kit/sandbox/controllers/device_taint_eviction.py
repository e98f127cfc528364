"""The device taint eviction controller: deletes pods whose devices got a NoExecute taint, and tells so."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from dra_kit.errors import Conflict, KubeError, NotFound
from dra_kit.kube.client import Client
from dra_kit.kube.events import EventRecorder, ObjectReference
from dra_kit.kube.resources import DEVICE_TAINT_RULES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kit.sandbox.controllers.taints import Eviction, TaintedDevices, evictions, rule_condition
from dra_kit.sandbox.informers import Informers
from dra_kit.sandbox.pods import Key, timestamp

logger = logging.getLogger(__name__)

COMPONENT: Final = "device-taint-eviction-controller"
_RETRY_SECONDS: Final = 0.5
_TELL_AGAIN_SECONDS: Final = 10.0  # until a rule's condition says that the pods are on their way (ruleStatusPeriod)


class DeviceTaintEviction:
    """Level-triggered: any change leads to one look at everything.

    Args:
        client: to write with.
        informers: follow pods, claims, slices and rules.
        events: to tell users.
        now: the time in UTC.
        time_scale: waits are divided by this.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        events: EventRecorder,
        *,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        time_scale: float = 1.0,
    ) -> None:
        self._client = client
        self._informers = informers
        self._events = events
        self._now = now
        self._patience = dt.timedelta(seconds=_TELL_AGAIN_SECONDS / time_scale)
        self._wake = asyncio.Event()
        self._due: dict[Key, tuple[str, Eviction]] = {}  # pod UID and eviction, of those that wait or are going
        self._evicted: Counter[str] = Counter()  # pods deleted, by UID of the rule
        self._told: dict[str, dt.datetime] = {}  # when a rule was told of, by its UID
        self._deleted: set[str] = set()  # UIDs of pods
        for resource in (PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, DEVICE_TAINT_RULES):
            informers.listen(resource, lambda _: self._wake.set())

    async def run(self) -> None:
        """Work until cancelled."""
        pause: float | None = None
        while True:
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                pass
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
        """Evict what is due; seconds until the next one is, None when nothing waits."""
        objects = self._informers.objects
        pods, rules = objects(PODS), objects(DEVICE_TAINT_RULES)
        tainted = TaintedDevices.of(objects(RESOURCE_SLICES).values(), rules.values())
        if not (rules or tainted.evict or self._due):
            return None
        due = evictions(tainted, objects(RESOURCE_CLAIMS).values(), pods) if tainted.evict else {}
        self._follow(due, pods)
        later = [at for rule in list(rules.values()) if (at := await self._tell(rule, due))]
        now = self._now()
        for key, eviction in due.items():
            if eviction.at <= now:
                await self._evict(key, pods[key], eviction)
            else:
                later.append(eviction.at)
        return max((min(later) - now).total_seconds(), 0.0) if later else None

    def _follow(self, due: Mapping[Key, Eviction], pods: Mapping[Key, Any]) -> None:
        """Forget who went, and tell who may stay after all."""
        for key, (uid, _) in list(self._due.items()):
            pod = pods.get(key)
            if pod is None or pod["metadata"]["uid"] != uid:
                self._deleted.discard(uid)
                del self._due[key]
            elif key not in due and uid not in self._deleted:
                if "deletionTimestamp" not in pod["metadata"]:
                    self._record(pod, "Cancelling deletion")
                del self._due[key]
        for key, eviction in due.items():
            self._due[key] = (pods[key]["metadata"]["uid"], eviction)

    async def _evict(self, key: Key, pod: Mapping[str, Any], eviction: Eviction) -> None:
        uid = pod["metadata"]["uid"]
        if uid in self._deleted:
            return  # the informer does not know it yet
        self._record(pod, "Marking for deletion")
        kept = [item for item in pod.get("status", {}).get("conditions", []) if item["type"] != "DisruptionTarget"]
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "DeletionByDeviceTaintManager",
            "message": "Device Taint manager: deleting due to NoExecute taint",
            "lastTransitionTime": timestamp(self._now()),
        }
        body = {
            "metadata": {"uid": uid, "resourceVersion": pod["metadata"]["resourceVersion"]},
            "status": {"conditions": [*kept, condition]},
        }
        try:
            await self._client.patch(PODS, key[1], body, key[0], subresource="status")
            await self._client.delete(PODS, key[1], key[0], uid=uid)
        except NotFound:
            pass
        self._deleted.add(uid)
        rules = self._informers.objects(DEVICE_TAINT_RULES)
        self._evicted.update(rules["", name]["metadata"]["uid"] for name in eviction.rules if ("", name) in rules)

    async def _tell(self, rule: Mapping[str, Any], due: Mapping[Key, Eviction]) -> dt.datetime | None:
        """Write a rule's condition if it changed; when to look again, where it is too early to write it."""
        conditions = rule.get("status", {}).get("conditions", [])
        known = next((item for item in conditions if item["type"] == "EvictionInProgress"), None)
        generation = rule["metadata"].get("generation", 1)
        if known and known["reason"] == "NoEffect" and known.get("observedGeneration") == generation:
            return None  # told once
        objects = self._informers.objects
        pending = {key: eviction for key, eviction in due.items() if self._due[key][0] not in self._deleted}
        new = rule_condition(
            rule, pending, self._evicted[rule["metadata"]["uid"]],
            slices=objects(RESOURCE_SLICES).values(), claims=objects(RESOURCE_CLAIMS).values(), pods=objects(PODS),
        )  # fmt: skip
        if known and all(known.get(name) == value for name, value in new.items()):
            return None
        uid, now = rule["metadata"]["uid"], self._now()
        leaving = any(rule["metadata"]["name"] in eviction.rules for _, eviction in self._due.values())
        told = self._told.get(uid)
        if told and leaving and new["status"] == "False" and told + self._patience > now:
            return told + self._patience
        self._told[uid] = now
        unchanged = known is not None and known["status"] == new["status"]
        new["lastTransitionTime"] = known["lastTransitionTime"] if known and unchanged else timestamp(self._now())
        new["observedGeneration"] = generation
        others = [item for item in conditions if item["type"] != "EvictionInProgress"]
        body = {"metadata": {"uid": rule["metadata"]["uid"]}, "status": {"conditions": [*others, new]}}
        try:
            await self._client.patch(DEVICE_TAINT_RULES, rule["metadata"]["name"], body, subresource="status")
        except NotFound:
            pass
        return None

    def _record(self, pod: Mapping[str, Any], note: str) -> None:
        self._events.record(
            ObjectReference.to(pod), "Normal", reason="DeviceTaintManagerEviction", action="Evict", note=note
        )
