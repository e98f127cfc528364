"""What the screen shows, in rows of cells. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from dra_kit.dev.screen.calls import Call
from dra_kit.kubelet.cdi.spec import SpecEdits
from dra_kit.kubernetes.resource.objects import ObjectKey, object_key, object_name
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.timeline.view.tables import counter_lines

_NO_SCHEDULE: Final = "yellow"
_BAD: Final = "red"
_GOOD: Final = "green"
_FAINT: Final = "dim"
_WAITS: Final = "yellow"
_PHASES: Final = {"Running": _GOOD, "Succeeded": _GOOD, "Failed": _BAD, "Pending": _WAITS}


class Row(Struct, frozen=True):
    """One line.

    Attributes:
        cells: side by side; the last one takes the room that is left.
        style: of the line, as rich names it.
    """

    cells: tuple[str, ...]
    style: str = ""


class Pane(Struct, frozen=True):
    """One part of the screen.

    Attributes:
        title: what it shows.
        rows: all of them, the most interesting first.
        summary: beside the title.
        newest_last: the last rows are the most interesting ones.
    """

    title: str
    rows: tuple[Row, ...]
    summary: str = ""
    newest_last: bool = False


def devices_pane(driver: str, slices: Iterable[ObjectView], claims: Iterable[ObjectView]) -> Pane:
    """Return the devices of the driver, pool by pool, each with the claims that have it."""
    own = sorted((item for item in slices if item["spec"]["driver"] == driver), key=_place)
    pools: dict[tuple[str, str], list[ObjectView]] = {}
    for item in own:
        pools.setdefault((item["spec"]["pool"]["name"], item["spec"].get("nodeName", "")), []).append(item)
    holders = _holders(driver, claims)
    rows: list[Row] = []
    for (pool, node), items in pools.items():
        pool_text = _pool(pool, node, items)
        if len(pools) > 1:
            rows.append(Row((pool_text,), "bold"))
        counters = [one for item in items for one in item["spec"].get("sharedCounters", [])]
        rows += [Row((f"counters {line}",), _FAINT) for line in counter_lines(counters)]
        rows += [_device(device, holders.get((pool, device["name"]), ())) for item in items
                 for device in item["spec"].get("devices", [])]  # fmt: skip
    number = sum(len(item["spec"].get("devices", [])) for item in own)
    if not own:
        return Pane("Devices", (Row(("no ResourceSlice is published",), _WAITS),))
    ((pool, node), items), several = next(iter(pools.items())), len(pools) > 1
    where = f"in {len(pools)} pools" if several else f"in {_pool(pool, node, items)}"
    return Pane("Devices", tuple(rows) or (Row(("none",), _WAITS),), f"{number} {where}")


def _place(item: ObjectView) -> tuple[str, str, str]:
    return item["spec"].get("nodeName", ""), item["spec"]["pool"]["name"], item["metadata"]["name"]


def _pool(name: str, node: str, items: Sequence[ObjectView]) -> str:
    generation = max(item["spec"]["pool"]["generation"] for item in items)
    where = f" on {node}" if node and node != name else ""
    slices = "1 slice" if len(items) == 1 else f"{len(items)} slices"
    return f"pool {name}{where}, generation {generation}, {slices}"


def _device(device: Mapping[str, Any], holders: Sequence[str]) -> Row:
    values = [f"{name}={_value(value)}" for name, value in device.get("attributes", {}).items()]
    values += [f"{name}={value['value']}" for name, value in device.get("capacity", {}).items()]
    taints = [
        f"{taint['key']}{'=' if taint.get('value') else ''}{taint.get('value', '')}:{taint['effect']}"
        for taint in device.get("taints", [])
    ]
    reported = [*(f"taint {text}" for text in taints), " ".join(values)]
    style = _NO_SCHEDULE if taints else _GOOD if holders else ""
    return Row((device["name"], ", ".join(holders) or "free", "; ".join(filter(None, reported))), style)


def _value(value: Mapping[str, Any]) -> str:
    content = next(iter(value.values()), "")
    if isinstance(content, list):
        return ",".join(map(str, content))
    return str(content).lower() if isinstance(content, bool) else str(content)


def _holders(driver: str, claims: Iterable[ObjectView]) -> dict[tuple[str, str], list[str]]:
    """Return the claims that have each device, by pool and name."""
    found: dict[tuple[str, str], list[str]] = {}
    for claim in claims:
        for result in _results(claim):
            if result["driver"] == driver:
                holders = found.setdefault((result["pool"], result["device"]), [])
                if (name := _name(claim)) not in holders:
                    holders.append(name)
    return found


def _results(claim: ObjectView) -> Sequence[Mapping[str, Any]]:
    allocation = claim.get("status", {}).get("allocation") or {}
    results: Sequence[Mapping[str, Any]] = allocation.get("devices", {}).get("results", [])
    return results


def claims_pane(claims: Iterable[ObjectView], reasons: Mapping[ObjectKey, str], prepared: Mapping[str, Call]) -> Pane:
    """Return the claims: where they stand, and what they have, or why they have nothing.

    Args:
        claims: all of them.
        reasons: why one is not allocated, by key.
        prepared: what the driver answered last, by UID.
    """
    rows = [_claim(claim, reasons, prepared) for claim in sorted(claims, key=object_key)]
    return Pane("Claims", tuple(rows) or (Row(("none",), _FAINT),), _count(rows))


def _claim(claim: ObjectView, reasons: Mapping[ObjectKey, str], prepared: Mapping[str, Call]) -> Row:
    name, uid = _name(claim), claim["metadata"]["uid"]
    devices = ", ".join(dict.fromkeys(str(result["device"]) for result in _results(claim)))
    call = prepared.get(uid)
    if "deletionTimestamp" in claim["metadata"]:
        return Row((name, "deleting", devices), _WAITS)
    if not devices:
        return Row((name, "pending", reasons.get(object_key(claim), "no pod that asks for it is waiting")), _WAITS)
    if call is not None and call.error:
        return Row((name, "not prepared", f"{devices}: {_line(call.error)}"), _BAD)
    users = [str(item["name"]) for item in claim["status"].get("reservedFor", [])]
    user = f" for {', '.join(users)}" if users else ""
    return Row((name, "prepared" if call else "allocated", f"{devices}{user}"), _GOOD if call else "")


def pods_pane(pods: Iterable[ObjectView], got: Mapping[str, Iterable[SpecEdits]], reasons: Mapping[str, str]) -> Pane:
    """Return the pods: where they stand, and what they got from their claims, or what stands in their way.

    Args:
        pods: all of them.
        got: what claims brought to the containers of a pod, by UID.
        reasons: why a pod does not run, by UID.
    """
    rows = [_pod(pod, got, reasons) for pod in sorted(pods, key=object_key)]
    hint = "none; start with -f pod.yaml, or use kubectl with the kubeconfig above"
    return Pane("Pods", tuple(rows) or (Row((hint,), _FAINT),), _count(rows))


def _pod(pod: ObjectView, got: Mapping[str, Iterable[SpecEdits]], reasons: Mapping[str, str]) -> Row:
    uid, phase = pod["metadata"]["uid"], str(pod.get("status", {}).get("phase", "Pending"))
    texts = [text for edits in got.get(uid, ()) for text in edits_in_brief(edits)]
    what = ", ".join(dict.fromkeys(texts))
    if "deletionTimestamp" in pod["metadata"]:
        phase = "Terminating"
    reason = _line(reasons.get(uid, "")) if phase in {"Pending", "Failed"} else ""
    return Row((_name(pod), phase, pod["spec"].get("nodeName", "-"), reason or what), _PHASES.get(phase, _WAITS))


def edits_in_brief(edits: SpecEdits) -> Iterator[str]:
    """Yield what a container gets, in few words each."""
    yield from edits.env
    yield from (node.path for node in edits.device_nodes)
    yield from (f"mount {mount.container_path}" for mount in edits.mounts)


def calls_pane(calls: Sequence[Call]) -> Pane:
    """Return the calls of the kubelets, newest first."""
    rows = [_call(call) for call in calls]
    return Pane("Calls", tuple(rows) or (Row(("none",), _FAINT),))


def _call(call: Call) -> Row:
    at = time.strftime("%H:%M:%S", time.localtime(call.at))
    claims = ", ".join(name.removeprefix("default/") for name in call.claims)
    if call.seconds is None:
        return Row((at, call.method, "…", f"{claims}: not answered yet"), _WAITS)
    took = f"{call.seconds * 1000:.1f} ms"
    if call.error:
        return Row((at, call.method, took, f"{claims}: {_line(call.error)}"), _BAD)
    result = ", ".join(call.devices) or "done"
    return Row((at, call.method, took, f"{claims}: {result}"))


def log_pane(lines: Iterable[str]) -> Pane:
    """Return the driver's log, and what it printed."""
    rows = tuple(Row((line,), _level(line)) for line in lines)
    return Pane("Log", rows or (Row(("nothing",), _FAINT),), newest_last=True)


def _level(line: str) -> str:
    words = line.split(" ", 2)
    return {"ERROR": _BAD, "WARNING": _WAITS}.get(words[1], "") if len(words) > 1 else ""


def _count(rows: Sequence[Row]) -> str:
    return str(len(rows)) if rows else ""


def _name(obj: ObjectView) -> str:
    return object_name(obj).removeprefix("default/")


def _line(text: str) -> str:
    return " ".join(text.split())
