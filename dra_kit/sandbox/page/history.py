"""The timeline as the page reads it: records in short form, bounded, and the objects of the cluster at any moment."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from dra_kit.client.resources import EVENTS, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kit.diagnosis.explain.claims import ClaimExplainer
from dra_kit.diagnosis.explain.cluster import ClusterView, MissingRight
from dra_kit.diagnosis.explain.documents import ReportPage
from dra_kit.diagnosis.explain.pods import explain_pod
from dra_kit.diagnosis.explain.text import render_claim, render_pod
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.resource.objects import object_key
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.informers import SCHEDULING_RESOURCES
from dra_kit.sandbox.records import (
    ContainerOutput,
    ObjectChanged,
    Record,
    RecordsLost,
    ResourceNotRecorded,
    object_uid,
)
from dra_kit.sandbox.timeline.recording import LatestRecords, record_line

LIMIT: Final = 32 << 20
"""Bytes of the records of a page: when there are more, the older half is reduced to what still holds."""
_MOST_OUTPUT: Final = 1 << 20
"""Bytes of the output of one container that the page shows: the newest."""
_KINDS: Final = {resource.full_name: resource.kind for resource in (*SCHEDULING_RESOURCES, EVENTS)}
_FIELDS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    NODES.full_name: {
        "metadata": ("name", "uid", "labels", "creationTimestamp"),
        "spec": ("taints", "unschedulable"),
        "status": ("allocatable",),
    },
    PODS.full_name: {
        "metadata": ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp"),
        "spec": ("nodeName", "resourceClaims", "schedulingGates"),
        "status": (
            "phase", "reason", "message", "conditions", "containerStatuses", "initContainerStatuses",
            "resourceClaimStatuses", "extendedResourceClaimStatus",
        ),
    },
    RESOURCE_CLAIMS.full_name: {
        "metadata": ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp"),
        "spec": ("devices",),
        "status": ("allocation", "reservedFor", "devices"),
    },
    RESOURCE_SLICES.full_name: {
        "metadata": ("name", "uid"),
        "spec": (
            "driver", "nodeName", "allNodes", "nodeSelector", "perDeviceNodeSelection", "pool", "devices",
            "sharedCounters",
        ),
    },
    EVENTS.full_name: {
        "metadata": ("name", "namespace", "uid"),
        "regarding": ("kind", "namespace", "name"),
        "": ("reason", "note", "type"),
    },
    "devicetaintrules.resource.k8s.io": {"metadata": ("name", "uid"), "spec": ("deviceSelector", "taint")},
}  # fmt: skip
"""What the page gets of an object, by resource and part, its own fields last; of other resources, it gets none."""


class PageEntry(Struct, frozen=True):
    """A record, and what the page gets of it: a line of JSON, empty where it gets nothing."""

    record: Record
    line: bytes

    @property
    def size(self) -> int:
        """Bytes that it takes, about."""
        held = len(self.record.text) if isinstance(self.record, ContainerOutput) else 0
        return 2 * len(self.line) + held + 200


class PageHistory:
    """Holds the records that a page shows; :meth:`read` is a reader of a timeline. For one event loop.

    Args:
        release: release and gates of the scheduler, for explanations.
        limit: bytes of all records.

    Attributes:
        generation: how many times older records were reduced; readers from before start again.
        closed: no record follows.
    """

    def __init__(self, release: Release, limit: int = LIMIT) -> None:
        self.generation: int = 0
        self.closed: bool = False
        self._release = release
        self._gaps: dict[str, MissingRight] = {}  # by kind
        self._limit = limit
        self._entries: list[PageEntry] = []
        self._size = 0
        self._shown: dict[tuple[str, str], bytes] = {}  # the newest state of each object that the page has
        self._lost = 0
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def last(self) -> int:
        """The number of the newest record; 0 without any."""
        return self._entries[-1].record.number if self._entries else 0

    # --- records come in

    def read(self, record: Record) -> None:
        """Take a record, unless it changes nothing that the page shows."""
        if isinstance(record, ResourceNotRecorded):
            gap = MissingRight(record.object_kind, record.group, record.resource, record.consequence)
            self._gaps[record.object_kind] = gap
        try:
            entry = self._entry(record)
        except (ValueError, RecursionError):  # invalid Unicode, or an object nested too deeply: JSON cannot have it
            return
        if entry is None:
            return
        self._entries.append(entry)
        self._size += entry.size
        if self._size > self._limit:
            self._reduce()
        self._wake()

    def close(self) -> None:
        """Let those who wait for records know that none follows."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def _entry(self, record: Record) -> PageEntry | None:
        if isinstance(record, ContainerOutput):
            return PageEntry(record, record_line(replace(record, text="")))
        if not isinstance(record, ObjectChanged):
            return PageEntry(record, record_line(record))
        if record.resource not in _KINDS:
            return None
        fields = _FIELDS.get(record.resource)
        if fields is None:
            return PageEntry(record, b"")
        key, short = (record.resource, object_uid(record.object)), _short(record.object, fields)
        state = record_line(ObjectChanged(change="MODIFIED", resource=record.resource, object=short))
        if record.change == "DELETED":
            self._shown.pop(key, None)
        elif self._shown.get(key) == state:
            return None
        else:
            self._shown[key] = state
        return PageEntry(record, record_line(replace(record, object=short)))

    def _reduce(self) -> None:
        """Drop the older half of the records, but for the newest of each thing that still exists."""
        half, older, size = self._size // 2, 0, 0
        while size < half:
            size += self._entries[older].size
            older += 1
        before, after = self._entries[:older], self._entries[older:]
        latest = LatestRecords()
        for position, entry in enumerate(before):
            latest.add(position, entry.record)
        remaining = [before[position] for position in latest.positions()]
        self._lost += sum(not isinstance(entry.record, RecordsLost) for entry in before) - len(remaining)
        lost = RecordsLost(
            number=after[0].record.number - 1 if after else self.last,
            at=before[-1].record.at,
            seconds=before[-1].record.seconds,
            lost=self._lost,
        )
        self._entries = [*remaining, PageEntry(lost, record_line(lost)), *after]
        self._size = sum(entry.size for entry in self._entries)
        if self._size > self._limit:  # a large cluster needs more than the limit: reduce again when it has doubled
            self._limit = 2 * self._size
        self.generation += 1

    # --- what the page asks for

    def lines(self, since: int, most: int = 1 << 18) -> tuple[list[bytes], int]:
        """Return what the page gets of the records after a number, up to so many bytes, and the last number."""
        found, size, last = list[bytes](), 0, since
        for entry in self._entries[self._position(since) :]:
            if size > most:
                break
            last = entry.record.number
            if entry.line:
                found.append(entry.line.rstrip(b"\n"))
                size += len(entry.line)
        return found, last

    async def wait(self, number: int, generation: int, seconds: float) -> None:
        """Wait until there is a record after a number, the older ones are reduced, or nothing follows."""
        if self.last > number or self.closed or self.generation != generation:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await waiter
        if waiter in self._waiting:
            self._waiting.remove(waiter)

    def output(self, container: str, at: int) -> str:
        """Return what a container had written when a record was the newest: at most the last mebibyte."""
        found = [
            entry.record
            for entry in self._until(at)
            if isinstance(entry.record, ContainerOutput) and entry.record.container.id == container
        ]
        found.sort(key=lambda output: output.offset)
        texts, size, end = list[str](), 0, -1
        for output in reversed(found):
            if size > _MOST_OUTPUT:
                texts.append("… older output is left out\n")
                break
            if end >= 0 and output.offset + output.size != end:
                texts.append("… output is missing here\n")
            texts.append(output.text)
            size, end = size + output.size, output.offset
        return "".join(reversed(texts))

    def explanation(self, uid: str, at: int) -> Callable[[], ReportPage] | None:
        """Return what explains a pod or a claim as of a record; it takes a while, so that a thread should call it.

        Returns:
            None if no such pod or claim existed.
        """
        documents = self.objects(at)
        for kind in ("Pod", "ResourceClaim"):
            for found in documents[kind]:
                if object_uid(found) == uid:
                    return lambda: self._explain(documents, kind, found)
        return None

    def objects(self, at: int) -> Mapping[str, Sequence[ObjectView]]:
        """Return the objects of the cluster when a record was the newest, by kind."""
        objects: dict[str, dict[str, ObjectView]] = {kind: {} for kind in _KINDS.values()}
        for entry in self._until(at):
            record = entry.record
            if isinstance(record, ObjectChanged):
                known = objects[_KINDS[record.resource]]
                known.pop(object_uid(record.object), None)
                if record.change != "DELETED":
                    known[object_uid(record.object)] = record.object
        return {kind: list(known.values()) for kind, known in objects.items()}

    # --- inside

    def _explain(self, documents: Mapping[str, Sequence[ObjectView]], kind: str, found: ObjectView) -> ReportPage:
        version = str(self._release.version)
        cluster = ClusterView(
            documents,
            gates=AllocatorRules.of(self._release),
            version=version,
            gaps=self._gaps.values(),
            extended_resources="DRAExtendedResource" in self._release,
        )
        explainer, namespace_name = ClaimExplainer(cluster), object_key(found)
        noun = "Pod" if kind == "Pod" else "ResourceClaim"
        page = ReportPage(f"{noun} {'/'.join(namespace_name)}", version)
        if kind == "Pod":
            render_pod(page, explain_pod(explainer, found))
        else:
            render_claim(page, explainer.explain(cluster.claims[namespace_name]))
        return page

    def _until(self, at: int) -> Iterable[PageEntry]:
        return self._entries[: self._position(at)]

    def _position(self, number: int) -> int:
        """Return the position after the record of a number."""
        return bisect_right(self._entries, number, key=lambda entry: entry.record.number)


def _short(obj: ObjectView, fields: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    short = {
        part: {name: content[name] for name in names if name in content}
        for part, names in fields.items()
        if part and (content := obj.get(part)) is not None
    }
    return short | {name: obj[name] for name in fields.get("", ()) if name in obj}
