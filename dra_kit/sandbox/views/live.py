"""What the live view shows of objects that change: slices, classes, claims and pods."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dra_kit.client.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kit.kubernetes.resource.objects import object_name
from dra_kit.sandbox.timeline.records import ObjectChanged
from dra_kit.sandbox.timeline.view.entries import Detail, Entry, Names, count, lines
from dra_kit.sandbox.timeline.view.tables import counter_lines, device_table, wrapped


class ObjectEntries:
    """Compares each object with its state before.

    Args:
        names: how objects are named.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._slices: dict[str, str] = {}  # what each slice offers, as it was shown
        self._classes: dict[str, Any] = {}  # the spec of each
        self._pods: dict[str, tuple[str | None, bool]] = {}  # phase of each, and whether it is deleted, by UID

    def read(self, record: ObjectChanged) -> Iterator[Entry]:
        """Yield what is shown of a change."""
        if record.resource == PODS.full_name:
            yield from self._pod(record)
        elif record.resource == RESOURCE_CLAIMS.full_name:
            yield from self._claim(record)
        elif record.resource == RESOURCE_SLICES.full_name:
            yield from self._slice(record)
        elif record.resource == DEVICE_CLASSES.full_name:
            yield from self._class(record)

    def _slice(self, record: ObjectChanged) -> Iterator[Entry]:
        name, spec = record.object["metadata"]["name"], record.object["spec"]
        if self._names.drivers and spec["driver"] not in self._names.drivers:
            return
        where = f" on {spec['nodeName']}" if "nodeName" in spec else ""
        if spec["pool"]["name"] != spec.get("nodeName"):
            where += f" in pool {spec['pool']['name']}"
        if record.change == "DELETED":
            if self._slices.pop(name, None) is not None:
                yield Entry(f"ResourceSlice {name} is gone: its devices{where} are offered no more", colour="yellow")
            return
        devices, counters = spec.get("devices", []), spec.get("sharedCounters", [])
        content = json.dumps([devices, counters], sort_keys=True)
        if self._slices.get(name) == content:
            return
        alike = next((other for other, known in self._slices.items() if known == content and other != name), None)
        now = "now " if name in self._slices else ""
        self._slices[name] = content
        if counters and not devices:
            what = f"{now}has {count(counters, 'counter set')}"
        else:
            what = f"{now}offers {count(devices, 'device')}"
        table = [f"the same as in {alike}"] if alike else [*wrapped(counter_lines(counters)), *device_table(devices)]
        yield Entry(f"ResourceSlice {name}: {spec['driver']} {what}{where}", lines(table), "cyan")

    def _class(self, record: ObjectChanged) -> Iterator[Entry]:
        name, spec = record.object["metadata"]["name"], record.object["spec"]
        if record.change == "DELETED":
            self._classes.pop(name, None)
            return
        before, self._classes[name] = self._classes.get(name), spec
        if spec == before:
            return
        verb = "selects" if before is None else "now selects"
        selectors = lines(map(_one_line, spec.get("selectors", []))) or (Detail("all devices"),)
        yield Entry(f"DeviceClass {name} {verb}", (*selectors, *self._configs_of_others(spec)), "cyan")

    def _claim(self, record: ObjectChanged) -> Iterator[Entry]:
        if record.change != "ADDED":
            return
        claim = record.object
        made = " (made from a template)" if "generateName" in claim["metadata"] else ""
        asked = claim["spec"].get("devices", {})
        details = lines([*_requests(asked), *map(_constraint, asked.get("constraints", []))])
        title = f"ResourceClaim {self._names.short(object_name(claim))}{made} asks for devices"
        yield Entry(title, (*details, *self._configs_of_others(asked)), "cyan")

    def _configs_of_others(self, spec: Mapping[str, Any]) -> Iterator[Detail]:
        """Yield opaque configs that no driver here ever sees, as they name another one."""
        if not self._names.drivers:
            return  # whichever driver there is was started by others
        own = " and ".join(self._names.drivers)
        named = (item["opaque"]["driver"] for item in spec.get("config", []) if "opaque" in item)
        for other in dict.fromkeys(name for name in named if name not in self._names.drivers):
            yield Detail(f"config for driver {other}, which does not run here: {own} does not get it", "yellow")

    def _pod(self, record: ObjectChanged) -> Iterator[Entry]:
        pod, uid = record.object, record.object["metadata"]["uid"]
        name = f"Pod {self._names.short(object_name(pod))}"
        if record.change == "DELETED":
            self._pods.pop(uid, None)
            yield Entry(f"{name} is gone")
            return
        phase, deleted = pod.get("status", {}).get("phase"), "deletionTimestamp" in pod["metadata"]
        before, self._pods[uid] = self._pods.get(uid), (phase, deleted)
        if record.change == "ADDED":
            yield Entry(f"{name} is created")
        elif before is not None:
            if phase != before[0] and not deleted:
                yield Entry(f"{name} is {phase}", colour="red" if phase == "Failed" else "green")
            if deleted and not before[1]:
                yield Entry(f"{name} is being deleted")

    def is_deleted(self, pod_uid: str) -> bool:
        """Return whether a pod is being deleted, or is gone."""
        return self._pods.get(pod_uid, (None, True))[1]


def _requests(asked: Mapping[str, Any]) -> Iterator[str]:
    for request in asked.get("requests", []):
        for part in [request["exactly"]] if "exactly" in request else request.get("firstAvailable", []):
            name = request["name"] if "exactly" in request else f"{request['name']}/{part['name']}"
            wanted = "all devices" if part.get("allocationMode") == "All" else _wanted(part.get("count", 1))
            yield f"request {name}: {wanted} of class {part['deviceClassName']}"
            yield from (f"  {_one_line(selector)}" for selector in part.get("selectors", []))
            for capacity, amount in part.get("capacity", {}).get("requests", {}).items():
                yield f"  {amount} of its {capacity}"


def _one_line(selector: Mapping[str, Any]) -> str:
    return " ".join(selector["cel"]["expression"].split())


def _constraint(constraint: Mapping[str, Any]) -> str:
    of = f"devices of {', '.join(constraint['requests'])}" if constraint.get("requests") else "all devices"
    if "distinctAttribute" in constraint:
        return f"{of} differ in {constraint['distinctAttribute']}"
    return f"{of} have the same {constraint['matchAttribute']}"


def _wanted(number: int) -> str:
    return "a device" if number == 1 else f"{number} devices"
