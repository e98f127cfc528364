"""Panes of the screen: devices, claims, pods, calls, log; and how they share it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len
from rich.text import Text

from dra_kit.client.resources import PODS
from dra_kit.kubelet.cdi.spec import SpecEdits, merge_edits
from dra_kit.kubernetes.resource.objects import ObjectKey, object_key, object_name
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.records import PREPARE, CallEnded, CallStarted, ContainerStarted, ObjectChanged, Record
from dra_kit.sandbox.views.devices import (
    PoolKey,
    PoolState,
    allocation_results,
    counter_lines,
    device_taints,
    pool_state,
)
from dra_kit.sandbox.views.live import shown_edits
from dra_kit.text import counted, escape_unprintable

_NO_SCHEDULE: Final = "yellow"
_BAD: Final = "red"
_GOOD: Final = "green"
_FAINT: Final = "dim"
_WAITS: Final = "yellow"
_PHASES: Final = {"Running": _GOOD, "Succeeded": _GOOD, "Failed": _BAD, "Pending": _WAITS}


class PaneRow(Struct, frozen=True):
    """One line."""

    cells: tuple[str, ...]
    style: str = ""


class Pane(Struct, frozen=True):
    """One part of the screen."""

    title: str
    rows: tuple[PaneRow, ...]
    summary: str = ""
    newest_last: bool = False


def devices_pane(
    driver: str, slices: Iterable[ObjectView], claims: Sequence[ObjectView], rules: Sequence[ObjectView] = ()
) -> Pane:
    """Return the devices of the driver, pool by pool, each with the claims that have it, and what blocks it.

    ``rules`` are the DeviceTaintRules of the cluster.
    """
    own = sorted((item for item in slices if item["spec"]["driver"] == driver), key=_place)
    pools: dict[tuple[str, str], list[ObjectView]] = {}
    for item in own:
        pools.setdefault((item["spec"]["pool"]["name"], item["spec"].get("nodeName", "")), []).append(item)
    rows: list[PaneRow] = []
    for (pool, node), items in pools.items():
        pool_text = _pool(pool, node, items)
        if len(pools) > 1:
            rows.append(PaneRow((pool_text,), "bold"))
        counters = [one for item in items for one in item["spec"].get("sharedCounters", [])]
        rows += [PaneRow((f"counters {line}",), _FAINT) for line in counter_lines(counters)]
        state = pool_state((driver, pool), items, claims)
        rows += [_device((driver, pool), device, state, rules) for item in items
                 for device in item["spec"].get("devices") or ()]  # fmt: skip
        rows += [PaneRow((name, _short_names(found), "in use and not published now"), _BAD)
                 for name, found in state.vanished.items()]  # fmt: skip
    number = sum(len(item["spec"].get("devices") or ()) for item in own)
    if not own:
        return Pane("Devices", (PaneRow(("no ResourceSlice is published",), _WAITS),))
    ((pool, node), items), several = next(iter(pools.items())), len(pools) > 1
    where = f"in {len(pools)} pools" if several else f"in {_pool(pool, node, items)}"
    return Pane("Devices", tuple(rows) or (PaneRow(("none",), _WAITS),), f"{number} {where}")


def _place(item: ObjectView) -> tuple[str, str, str]:
    return item["spec"].get("nodeName", ""), item["spec"]["pool"]["name"], item["metadata"]["name"]


def _pool(name: str, node: str, items: Sequence[ObjectView]) -> str:
    generation = max(item["spec"]["pool"]["generation"] for item in items)
    where = f" on {node}" if node and node != name else ""
    return f"pool {name}{where}, generation {generation}, {counted(len(items), 'slice')}"


def _device(pool: PoolKey, device: ObjectView, state: PoolState, rules: Sequence[ObjectView]) -> PaneRow:
    name = device["name"]
    values = [f"{name}={_value(value)}" for name, value in device.get("attributes", {}).items()]
    values += [f"{name}={value['value']}" for name, value in device.get("capacity", {}).items()]
    taints = device_taints((*pool, name), device, rules)
    holders, blocked = state.holders.get(name, ()), state.blocked.get(name, "")
    reported = [blocked, *(f"taint {text}" for text in taints), " ".join(values)]
    style = _NO_SCHEDULE if taints else _GOOD if holders else _FAINT if blocked else ""
    use = _short_names(holders) if holders else "blocked" if blocked else "free"
    return PaneRow((name, use, "; ".join(filter(None, reported))), style)


def _short_names(claims: Iterable[str]) -> str:
    return ", ".join(name.removeprefix("default/") for name in claims)


def _value(value: Mapping[str, Any]) -> str:
    content = next(iter(value.values()), "")
    if isinstance(content, list):
        return ",".join(map(str, content))
    return str(content).lower() if isinstance(content, bool) else str(content)


def claims_pane(
    claims: Iterable[ObjectView], reasons: Mapping[ObjectKey, str], prepared: Mapping[str, KubeletCall]
) -> Pane:
    """Return the claims pane: the state of each claim, and its devices or why it has none.

    ``reasons`` are those of claims that are not allocated, ``prepared`` the driver's last answers, by claim UID.
    """
    rows = [_claim(claim, reasons, prepared) for claim in sorted(claims, key=object_key)]
    return Pane("Claims", tuple(rows) or (PaneRow(("none",), _FAINT),), _count(rows))


def _claim(claim: ObjectView, reasons: Mapping[ObjectKey, str], prepared: Mapping[str, KubeletCall]) -> PaneRow:
    name, uid = _name(claim), claim["metadata"]["uid"]
    devices = ", ".join(dict.fromkeys(str(result["device"]) for result in allocation_results(claim)))
    call = prepared.get(uid)
    if "deletionTimestamp" in claim["metadata"]:
        return PaneRow((name, "deleting", devices), _WAITS)
    if not devices:
        return PaneRow((name, "pending", reasons.get(object_key(claim), "no pod that asks for it is waiting")), _WAITS)
    if call is not None and call.error:
        return PaneRow((name, "not prepared", f"{devices}: {_line(call.error)}"), _BAD)
    users = [str(item["name"]) for item in claim["status"].get("reservedFor", [])]
    user = f" for {', '.join(users)}" if users else ""
    return PaneRow((name, "prepared" if call else "allocated", f"{devices}{user}"), _GOOD if call else "")


def pods_pane(
    pods: Iterable[ObjectView],
    got: Mapping[str, Iterable[SpecEdits]],
    reasons: Mapping[str, str],
    *,
    hint: str = "none; start with -f pod.yaml, or use kubectl with the kubeconfig above",
) -> Pane:
    """Return the pods pane: the state of each pod, and by UID what it got from its claims or why it does not run.

    ``hint`` is shown without pods.
    """
    rows = [_pod(pod, got, reasons) for pod in sorted(pods, key=object_key)]
    return Pane("Pods", tuple(rows) or (PaneRow((hint,), _FAINT),), _count(rows))


def _pod(pod: ObjectView, got: Mapping[str, Iterable[SpecEdits]], reasons: Mapping[str, str]) -> PaneRow:
    uid, phase = pod["metadata"]["uid"], str(pod.get("status", {}).get("phase", "Pending"))
    texts = [text for edits in got.get(uid, ()) for text in edits_in_brief(edits)]
    what = ", ".join(dict.fromkeys(texts))
    if "deletionTimestamp" in pod["metadata"]:
        phase = "Terminating"
    reason = _line(reasons.get(uid, "")) if phase in {"Pending", "Failed"} else ""
    return PaneRow((_name(pod), phase, pod["spec"].get("nodeName", "-"), reason or what), _PHASES.get(phase, _WAITS))


def edits_in_brief(edits: SpecEdits) -> Iterator[str]:
    """Yield what a container gets, in few words each."""
    yield from edits.env
    yield from (node.path for node in edits.device_nodes)
    yield from (f"mount {mount.container_path}" for mount in edits.mounts)


def calls_pane(calls: Sequence[KubeletCall]) -> Pane:
    """Return the calls of the kubelets, newest first."""
    rows = [_call_row(call) for call in calls]
    return Pane("Calls", tuple(rows) or (PaneRow(("none",), _FAINT),))


def _call_row(call: KubeletCall) -> PaneRow:
    at = time.strftime("%H:%M:%S", time.localtime(call.at))
    claims = ", ".join(name.removeprefix("default/") for name in call.claims)
    if call.seconds is None:
        return PaneRow((at, call.method, "…", f"{claims}: not answered yet"), _WAITS)
    took = f"{call.seconds * 1000:.1f} ms"
    if call.error:
        return PaneRow((at, call.method, took, f"{claims}: {_line(call.error)}"), _BAD)
    result = ", ".join(call.devices) or "done"
    return PaneRow((at, call.method, took, f"{claims}: {result}"))


def log_pane(lines: Iterable[str]) -> Pane:
    """Return the driver's log, and what it printed."""
    rows = tuple(PaneRow((line,), _level(line)) for line in lines)
    return Pane("Log", rows or (PaneRow(("nothing",), _FAINT),), newest_last=True)


def _level(line: str) -> str:
    words = line.split(" ", 2)
    return {"ERROR": _BAD, "WARNING": _WAITS}.get(words[1], "") if len(words) > 1 else ""


def _count(rows: Sequence[PaneRow]) -> str:
    return str(len(rows)) if rows else ""


def _name(obj: ObjectView) -> str:
    return object_name(obj).removeprefix("default/")


def _line(text: str) -> str:
    return " ".join(text.split())


_COLUMN_MAX: Final = 40
_GAP: Final = 2
_NEWS_MAX: Final = 4
"""Lines of one text above: what is wrong with new code is to be read whole."""


class Headline(Struct, frozen=True):
    """The text above the panes: a title, and the results of the last changes."""

    title: str
    news: Sequence[tuple[str, str]]


class Focus(Struct):
    """The pane that is shown alone.

    Attributes:
        pane: the index of the pane; None for all panes.
        offset: the number of rows above the visible part, or below it in a pane with the newest rows last.
    """

    pane: int | None = None
    offset: int = 0


def lay_out(
    headline: Headline, panes: Sequence[Pane], footer: str, *, width: int, height: int, focus: Focus
) -> list[Text]:
    """Return the lines of the screen, ``height`` of them, none wider than ``width`` cells.

    The offset of the focus is brought into its bounds.
    """
    top = [_cut(Text(escape_unprintable(headline.title), "bold reverse"), width, fill=True)]
    for text, style in headline.news:
        top += _wrapped(text, style, width)
    room = max(height - len(top) - 1, 0)
    if focus.pane is not None and focus.pane < len(panes):
        pane = panes[focus.pane]
        focus.offset = max(min(focus.offset, len(pane.rows) - (room - 1)), 0)
        middle = [_title(focus.pane, pane, width), *_rows(pane, room - 1, width, focus.offset)]
    else:
        middle = []
        shares = _shares([len(pane.rows) for pane in panes], room)
        for index, (pane, share) in enumerate(zip(panes, shares, strict=True)):
            if share > 0:
                middle += [_title(index, pane, width), *_rows(pane, share - 1, width, 0)]
    middle = [*middle[:room], *(Text() for _ in range(room - len(middle)))]
    return [*top, *middle, _cut(Text(footer, "dim"), width)][:height]


def _shares(needs: Sequence[int], room: int) -> list[int]:
    """Return the lines of each pane, with its title: one for each, then in turns; the rest goes to the last."""
    shares = [0] * len(needs)
    for index in range(len(needs)):
        if room >= 2:
            shares[index], room = 2, room - 2
    while room:
        hungry = [index for index, need in enumerate(needs) if 0 < shares[index] < need + 1]
        if not hungry:
            break
        for index in hungry[:room]:
            shares[index] += 1
            room -= 1
    if shares and shares[-1]:
        shares[-1] += room
    return shares


def _wrapped(text: str, style: str, width: int) -> list[Text]:
    text = escape_unprintable(text)
    lines: list[Text] = []
    while text and len(lines) < _NEWS_MAX:
        line = text if len(text) <= width else text[:width].rpartition(" ")[0] or text[:width]
        if len(lines) == _NEWS_MAX - 1:
            line = text
        lines.append(_cut(Text(line, style), width))
        text = text[len(line) :].lstrip()
    return lines


def _title(index: int, pane: Pane, width: int) -> Text:
    text = Text(f"{index + 1} {pane.title}", "bold cyan")
    if pane.summary:
        text.append(f"  {escape_unprintable(pane.summary)}", "cyan")
    text.append(" " + "─" * max(width - text.cell_len - 1, 0), "dim cyan")
    return _cut(text, width)


def _rows(pane: Pane, number: int, width: int, offset: int) -> list[Text]:
    """Return so many rows, and how many there are beside them."""
    if number <= 0:
        return []
    total = len(pane.rows)
    if pane.newest_last:
        end = total - offset
        return list(_aligned(pane.rows[max(end - number, 0) : end], width))
    shown = pane.rows[offset : offset + number]
    below = total - offset - len(shown)
    if below and number > 1:
        return [*_aligned(shown[:-1], width), _cut(Text(f"… and {below + 1} more", "dim"), width)]
    return list(_aligned(shown, width))


def _aligned(rows: Sequence[PaneRow], width: int) -> Iterable[Text]:
    cells = [[escape_unprintable(cell, keep="") for cell in row.cells] for row in rows]
    columns = max((len(row) for row in cells), default=0)
    widths = [
        min(max((cell_len(row[column]) for row in cells if len(row) > column + 1), default=0), _COLUMN_MAX)
        for column in range(columns)
    ]
    for row, texts in zip(rows, cells, strict=True):
        line = Text(style=row.style)
        for column, cell in enumerate(texts):
            piece = Text(cell)
            if column < len(texts) - 1:
                piece.truncate(widths[column], overflow="ellipsis", pad=True)
                piece.append(" " * _GAP)
            line.append_text(piece)
        yield _cut(line, width)


def _cut(text: Text, width: int, *, fill: bool = False) -> Text:
    text.truncate(width, overflow="ellipsis", pad=fill)
    text.no_wrap = True
    return text


_CALLS_MAX: Final = 200


class KubeletCall(Struct, frozen=True):
    """One call; ``at`` is when it started or was answered, ``seconds`` is None while it runs."""

    at: float
    node: str
    method: str
    claims: tuple[str, ...]
    uids: tuple[str, ...]
    seconds: float | None = None
    devices: tuple[str, ...] = ()
    error: str = ""


class CallHistory:
    """Stores the newest calls, and the last result for each claim; :meth:`read` is a reader of a timeline."""

    def __init__(self) -> None:
        self._calls: deque[KubeletCall] = deque(maxlen=_CALLS_MAX)
        self.prepared: dict[str, KubeletCall] = {}
        """The last answered NodePrepareResources of each claim that was not released since, by UID."""

    @property
    def newest_first(self) -> Sequence[KubeletCall]:
        """The stored calls, the newest first."""
        return tuple(reversed(self._calls))

    def read(self, record: Record) -> None:
        """Take a record."""
        match record:
            case CallStarted():
                self._calls.append(_kubelet_call(record))
            case CallEnded():
                self._ended(record)
            case _:
                pass

    def _ended(self, record: CallEnded) -> None:
        begun = _kubelet_call(record)
        for call in self._calls:
            if call.seconds is None and (call.node, call.method, call.uids) == (begun.node, begun.method, begun.uids):
                self._calls.remove(call)
                break
        devices = tuple(device.device for device in record.devices)
        ended = replace(begun, seconds=record.duration, devices=devices, error=record.error)
        self._calls.append(ended)
        if record.method == PREPARE:
            self.prepared.update(dict.fromkeys(ended.uids, ended))
        elif not ended.error:
            for uid in ended.uids:
                self.prepared.pop(uid, None)


def _kubelet_call(record: CallStarted | CallEnded) -> KubeletCall:
    claims = tuple(map(str, record.claims))
    return KubeletCall(
        record.at.timestamp(), record.node, record.method, claims, tuple(claim.uid for claim in record.claims)
    )


class ClaimEdits:
    """Knows it of every pod that is there; :meth:`read` is a reader of a timeline."""

    def __init__(self) -> None:
        self._edits: dict[str, dict[str, SpecEdits]] = {}

    @property
    def by_uid(self) -> Mapping[str, Collection[SpecEdits]]:
        """What each pod's containers got, by the pod's UID."""
        return {uid: tuple(edits.values()) for uid, edits in self._edits.items()}

    def read(self, record: Record) -> None:
        """Take a record."""
        match record:
            case ContainerStarted(container=container):
                self._edits.setdefault(container.pod.uid, {})[container.name] = merge_edits(shown_edits(record))
            case ObjectChanged(change="DELETED", resource=PODS.full_name, object=pod):
                self._edits.pop(pod["metadata"]["uid"], None)
            case _:
                pass
