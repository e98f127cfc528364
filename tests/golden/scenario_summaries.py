"""Summaries of objects as in the recorded scenarios: without times, UIDs and random names."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, TypeAlias

from dra_kit.client.api import Client
from dra_kit.client.informer import Informer, ObjectChange
from dra_kit.client.resources import DEVICE_TAINT_RULES, EVENTS, PODS, RESOURCE_CLAIMS, Resource

Object: TypeAlias = dict[str, Any]
Objects: TypeAlias = Mapping[Resource, Mapping[tuple[str, str], Object]]

_TIME = re.compile(r"20[23]\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_SHARE = re.compile(r'(?<="shareID": ")[0-9a-f-]{36}')
_GENERATED = re.compile(
    r"\bclaim(?: [a-z0-9-]+/|=)([a-z0-9-]+-[bcdfghjklmnpqrstvwxz2456789]{5})\b"
)  # the characters of the API server's random names
GONE = "<gone>"
"""The name of a deleted generated claim."""
_OLD = "2024-01-02"  # times set by the scenarios are preserved
# written by kube-controller-manager as core/v1 Events, which have no action
_WITHOUT_ACTION = {"resource_claim", "device-taint-eviction-controller"}


class Watcher:
    """Watches the objects of scenarios, and records each state.

    Args:
        client: of the server.
        rules: whether it serves DeviceTaintRules.

    Attributes:
        changes: how many came so far.
    """

    def __init__(self, client: Client, *, rules: bool = True) -> None:
        served = (PODS, RESOURCE_CLAIMS, *([DEVICE_TAINT_RULES] if rules else []), EVENTS)
        self._informers = {item: Informer(client, item) for item in served}
        self._states: list[tuple[str, str]] = []
        self._seen: set[str] = set()
        self.changes = 0

    async def synced(self) -> None:
        """Wait until all existing objects are known."""
        for informer in self._informers.values():
            await informer.synced.wait()

    @property
    def objects(self) -> Objects:
        """Return all watched objects; only Events of known objects, because others arrive late."""
        found = {resource: informer.objects for resource, informer in self._informers.items()}
        events = {key: item for key, item in found[EVENTS].items() if item["regarding"].get("uid") in self._seen}
        return found | {EVENTS: events}

    def begin_phase(self) -> None:
        """Note states from here on."""
        self._states.clear()

    def traces(self) -> dict[str, list[str]]:
        """The distinct states of each object in this phase, in order."""
        names = _generated_names(self.objects)
        names |= dict.fromkeys(self._gone_names(), "<name:0>")
        found: dict[str, list[str]] = {}
        for name, noted in self._states:
            states = found.setdefault(_renamed(name, names), [])
            state = _renamed(noted, names)
            if states[-1:] != [state]:
                states.append(state)
        return found

    async def follow(self, resource: Resource) -> None:
        """Follow one resource until cancelled."""
        async with aclosing(self._informers[resource].changes()) as changes:
            async for change in changes:
                self._note(change)

    def _note(self, change: ObjectChange) -> None:
        self.changes += 1
        self._seen.add(change.object["metadata"]["uid"])
        kind = {"Pod": "pod", "ResourceClaim": "claim", "DeviceTaintRule": "rule"}.get(change.object["kind"])
        if kind is None:
            return
        name = f"{kind}/{change.object['metadata']['name']}"
        state = "gone" if change.type == "DELETED" else _STATES[kind](change.object)
        self._states.append((name, state))

    def _gone_names(self) -> set[str]:
        names = {name.removeprefix("claim/") for name, _ in self._states if name.startswith("claim/")}
        return {name for name in names if re.fullmatch(r".*-[a-z0-9]{5}", name)}


def settled(objects: Objects) -> dict[str, list[Object]]:
    """Return the summary for ``settled`` of a scenario."""
    names = _generated_names(objects)
    uids = {pod["metadata"]["uid"]: f"<uid:pod/{pod['metadata']['name']}>" for pod in objects[PODS].values()}
    found = {
        "pods": [_pod(item) for item in _sorted(objects[PODS])],
        "claims": [_claim(item) for item in _sorted(objects[RESOURCE_CLAIMS])],
        "rules": [_rule(item) for item in _sorted(objects.get(DEVICE_TAINT_RULES, {}))],
        "events": _events(objects[EVENTS]),
    }
    text = json.dumps(found)
    for old, new in (_names_of_gone(objects) | names | uids).items():
        text = text.replace(old, new)
    text = _SHARE.sub("<share>", text)
    result: dict[str, list[Object]] = json.loads(text)
    return {key: in_order(items) for key, items in result.items()}


def in_order(items: list[Object]) -> list[Object]:
    """Return the items sorted."""
    return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))


def _sorted(objects: Mapping[tuple[str, str], Object]) -> list[Object]:
    return [copy.deepcopy(objects[key]) for key in sorted(objects)]


def _generated_names(objects: Objects) -> dict[str, str]:
    claims = _sorted(objects[RESOURCE_CLAIMS])
    names = [item["metadata"]["name"] for item in claims if "generateName" in item["metadata"]]
    return {name: f"<name:{number}>" for number, name in enumerate(names)}


def _names_of_gone(objects: Objects) -> dict[str, str]:
    """Return the names of deleted generated claims that pods and Events still contain."""
    told = set[str]()
    for pod in objects[PODS].values():
        status = pod.get("status") or {}
        made = [*(status.get("resourceClaimStatuses") or ()), status.get("extendedResourceClaimStatus") or {}]
        told |= {item["resourceClaimName"] for item in made if item.get("resourceClaimName")}
    for event in objects[EVENTS].values():
        told |= set(_GENERATED.findall(event.get("note") or ""))
    return dict.fromkeys(told - {name for _, name in objects[RESOURCE_CLAIMS]}, GONE)


def _renamed(text: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        text = text.replace(old, new)
    return text


def _metadata(item: Object, *kept: str) -> Object:
    found = {name: item["metadata"][name] for name in kept if item["metadata"].get(name)}
    if "deletionTimestamp" in item["metadata"]:
        found["deletionTimestamp"] = "<now>"
    return found


def _condition(item: Object, *dropped: str) -> Object:
    return {key: value for key, value in item.items() if key not in dropped}


def _pod(item: Object) -> Object:
    status = {
        key: item["status"][key]
        for key in ("phase", "nominatedNodeName", "resourceClaimStatuses", "extendedResourceClaimStatus")
        if item["status"].get(key)
    }
    dropped = ("lastProbeTime", "lastTransitionTime", "observedGeneration")
    conditions = [_condition(each, *dropped) for each in item["status"].get("conditions", [])]
    status["conditions"] = sorted(conditions, key=lambda each: str(each["type"]))
    found = {"metadata": _metadata(item, "name", "namespace", "generation"), "status": status}
    if item["spec"].get("nodeName"):
        found["nodeName"] = item["spec"]["nodeName"]
    return found


def _claim(item: Object) -> Object:
    kept = ("name", "generateName", "namespace", "labels", "annotations", "ownerReferences", "finalizers")
    found = {"metadata": _metadata(item, *kept), "status": _without_times(item.get("status") or {})}
    if "generateName" in item["metadata"]:
        found["spec"] = item["spec"]
    return found


def _rule(item: Object) -> Object:
    found = {
        "metadata": _metadata(item, "name", "generation", "finalizers"),
        "spec": _without_times(item["spec"]),
    }
    if item.get("status"):
        status = _without_times(item["status"])
        status["conditions"] = [_condition(each, "observedGeneration") for each in status.get("conditions", [])]
        found["status"] = status
    return found


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_times(item) for item in value]
    if isinstance(value, str) and _TIME.fullmatch(value) and not value.startswith(_OLD):
        return "<now>"
    return value


def _events(events: Mapping[tuple[str, str], Object]) -> list[Object]:
    found = {}
    for item in events.values():
        about = item["regarding"]
        if about["kind"] not in {"Pod", "ResourceClaim"}:
            continue
        component = item["reportingController"]
        event = {
            "about": f"{about['kind']}/{about['name']}",
            "type": item["type"],
            "reason": item["reason"],
            "action": "" if component in _WITHOUT_ACTION else item["action"],
            "component": component,
            "message": item["note"],
        }
        found[json.dumps(event, sort_keys=True)] = event
    return list(found.values())


def _pod_state(item: Object) -> str:
    parts = [f"phase={item['status'].get('phase')}", f"node={item['spec'].get('nodeName') or '-'}"]
    conditions = {each["type"]: each for each in item["status"].get("conditions", [])}
    if scheduled := conditions.get("PodScheduled"):
        reason = f"/{scheduled['reason']}" if scheduled.get("reason") else ""
        parts.append(f"PodScheduled={scheduled['status']}{reason}")
    if "DisruptionTarget" in conditions:
        parts.append("DisruptionTarget")
    if claims := item["status"].get("resourceClaimStatuses"):
        parts.append("claims=" + ",".join(f"{each['name']}:{each['resourceClaimName']}" for each in claims))
    if extended := item["status"].get("extendedResourceClaimStatus"):
        parts.append(f"extendedClaim={extended['resourceClaimName']}")
    if "deletionTimestamp" in item["metadata"]:
        parts.append("deleting")
    return " ".join(parts)


def _claim_state(item: Object) -> str:
    status = item.get("status") or {}
    results = status.get("allocation", {}).get("devices", {}).get("results", [])
    devices = ",".join(f"{each['pool']}/{each['device']}" for each in results)
    users = ",".join(each["name"] for each in status.get("reservedFor", []))
    text = f"allocation={devices or '-'} reservedFor={users or '-'}"
    if finalizers := item["metadata"].get("finalizers"):
        text += f" finalizers={','.join(finalizers)}"
    return f"{text} deleting" if "deletionTimestamp" in item["metadata"] else text


def _rule_state(item: Object) -> str:
    conditions = (item.get("status") or {}).get("conditions", [])
    return " ".join(f"{each['type']}={each['status']}/{each['reason']}" for each in conditions)


_STATES = {"pod": _pod_state, "claim": _claim_state, "rule": _rule_state}
