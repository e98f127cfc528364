"""Records a live cluster, which is only watched, in the format of a sandbox's timeline.

Objects are redacted as in a support bundle: without environments, commands, images and most annotations, and without
the values of opaque configuration, also where messages quote them.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from msgspec import Struct

from dra_kit import __version__
from dra_kit.client.api import Client, discover_release
from dra_kit.client.informer import Informer, ObjectChange
from dra_kit.client.resources import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from dra_kit.diagnosis.live_cluster import CONSEQUENCES
from dra_kit.diagnosis.support_bundle import HiddenWords, redact_object, secrets_in_objects, secrets_of_pods
from dra_kit.errors import Forbidden, NotFound
from dra_kit.kubernetes.release import KubernetesVersion, Release
from dra_kit.kubernetes.resource.objects import object_key, pod_reference
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.records import (
    ObjectChanged,
    PodScheduled,
    PodUnschedulable,
    Record,
    RecordingStarted,
    ResourceNotRecorded,
    RunReported,
    object_uid,
)
from dra_kit.sandbox.timeline.recording import RecordFile, Timeline, record_line

RESOURCES: Final = (
    NODES,
    DEVICE_CLASSES,
    RESOURCE_SLICES,
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    PODS,
    EVENTS,
)
"""What is recorded."""
_CONFIGURED: Final = (DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES)
_FIRST: Final[dict[Resource, tuple[Resource, ...]]] = {
    RESOURCE_CLAIMS: _CONFIGURED,
    PODS: (*_CONFIGURED, RESOURCE_CLAIMS),
    EVENTS: (*_CONFIGURED, RESOURCE_CLAIMS, PODS),
}
"""What must be known before the objects of a resource are read: the words that their messages may quote."""
_NOT_AUTHENTICATED: Final = 401
_STALE_WORDS: Final = 1_000
_FREE_TEXT: Final = frozenset({"annotations", "message", "note", "labels", "networkData"})
"""Fields that may quote a secret; a word that occurs elsewhere too, such as a node's name, is none there."""


class ObjectRedaction:
    """Removes secrets from objects, and the secrets of one object from the messages of all."""

    def __init__(self) -> None:
        self._words: dict[str, frozenset[str]] = {}  # of present objects, by UID
        self._stale = 0  # words of objects that are gone
        self._hidden = HiddenWords(())

    def redacted(self, resource: Resource, obj: dict[str, Any]) -> dict[str, Any]:
        """Return an object without secrets; names, states and references are unchanged, whatever a user hides."""
        words = frozenset(secrets_in_objects([obj]) | (secrets_of_pods([obj]) if resource == PODS else set()))
        if words:
            self._hidden.add(words - self._words.get(object_uid(obj), frozenset()))
            self._words[object_uid(obj)] = words
        cleaned = redact_object(resource.kind, obj)
        # a node has no messages, and selectors refer to its labels
        safe: dict[str, Any] = cleaned if resource == NODES else self._safe(cleaned)
        return safe

    def _safe(self, value: Any, *, free: bool = False) -> Any:
        match value:
            case Mapping():
                return {key: self._safe(item, free=free or key in _FREE_TEXT) for key, item in value.items()}
            case list():
                return [self._safe(item, free=free) for item in value]
            case str() if free:
                return self._hidden.safe_text(value)
        return value

    def forget(self, obj: ObjectView) -> None:
        """Forget the secrets of an object that is gone, once there are many of them."""
        self._stale += len(self._words.pop(object_uid(obj), ()))
        if self._stale > _STALE_WORDS:
            self._stale = 0
            self._hidden = HiddenWords(word for words in self._words.values() for word in words)


class RecordingEnd(Struct, frozen=True):
    """How a recording ended.

    Attributes:
        records: how many were written.
        problem: why it ended early; empty if it did not.
    """

    records: int
    problem: str = ""


class ClusterRecorder:
    """Records one cluster into a file, until it is interrupted, the time is over or the file is full.

    Each record is in the file before the next change is looked at: a process that is killed loses at most the last one.

    Args:
        client: with the right to list and watch; lost connections and expired watches are resumed.
        open_file: opens the file to write, once the cluster has answered.
        namespace: what to record of resources that may not be read in all namespaces; also of Events.
        all_events: record Events of all namespaces.
        alpha: the alpha features of the cluster are on.
        report: notified of each resource and each object that is not recorded.
    """

    def __init__(
        self,
        client: Client,
        open_file: Callable[[], RecordFile],
        *,
        namespace: str,
        all_events: bool = False,
        alpha: bool = False,
        report: Callable[[ResourceNotRecorded | RunReported], object] = lambda _: None,
    ) -> None:
        self._client = client
        self._open_file = open_file
        self._file: RecordFile | None = None
        self._namespace = namespace
        self._events_of = None if all_events else namespace
        self._alpha = alpha
        self._report = report
        self._timeline = Timeline()
        self._timeline.subscribe(self._write)
        self._redaction = ObjectRedaction()
        self._shown: dict[tuple[str, str], bytes] = {}  # a hash of what was recorded last, by resource and UID
        self._skipped: set[tuple[str, str]] = set()  # objects that cannot be recorded, like those shown
        self._waiting: dict[str, str] = {}  # the scheduler's last message about each pod, by UID
        self._written = 0
        self._problem = ""
        self._failed = asyncio.Event()

    async def run(self, seconds: float | None, interrupted: asyncio.Event, *, server: str = "") -> RecordingEnd:
        """Record for so many seconds; None for no limit.

        Raises:
            Forbidden: the credentials are rejected, or nothing may be read.
            ConfigurationError: the cluster does not serve resource.k8s.io/v1; or as ``open_file``.
            KubeError: the server does not answer at first, or rejects a request.
        """
        ends = {asyncio.create_task(event.wait()) for event in (interrupted, self._failed)}
        discovery = asyncio.create_task(discover_release(self._client))
        tasks: set[asyncio.Task[Any]] = {*ends, discovery}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if discovery.done():
                version = discovery.result()
                self._file = self._open_file()
                self._start(version, server)
                settled = {resource: asyncio.Event() for resource in RESOURCES}
                following = {asyncio.create_task(self._follow(resource, settled)) for resource in RESOURCES}
                tasks |= {*following, asyncio.create_task(self._begin(settled))}
                await _until_any(ends, following, seconds)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._file is not None:
                self._file.close()
        return RecordingEnd(self._written, self._problem)

    # --- inside

    def _start(self, version: KubernetesVersion, server: str) -> None:
        release = Release.alpha(version) if self._alpha else Release.of(version)
        self._timeline.append(
            RecordingStarted(
                release=__version__,
                source="cluster",
                version=f"v{version}",
                gates=tuple(sorted(release.enabled)),
                title=urlsplit(server).hostname or "",
            )
        )

    def _write(self, record: Record) -> None:
        if self._problem or self._file is None:
            return
        try:
            self._file.append(record_line(record))
        except OSError as error:
            self._problem = error.strerror or str(error)
            self._failed.set()
        except (ValueError, RecursionError):  # invalid Unicode, or nested too deeply: no record of it is possible
            pass
        else:
            self._written += 1

    async def _begin(self, settled: Mapping[Resource, asyncio.Event]) -> None:
        """Record what there was when the recording began."""
        for event in settled.values():
            await event.wait()
        counts = [
            f"{number} {resource.kind if number == 1 else _plural(resource.kind)}"
            for resource in RESOURCES
            if (number := sum(name == resource.full_name for name, _ in self._shown))
        ]
        self._timeline.append(RunReported(text="the recording begins", details=(", ".join(counts) or "no objects",)))

    async def _follow(self, resource: Resource, all_settled: Mapping[Resource, asyncio.Event]) -> None:
        """Record the changes of a resource, or that it is not recorded."""
        settled = all_settled[resource]
        try:
            for earlier in _FIRST.get(resource, ()):
                await all_settled[earlier].wait()
            for version in resource.versions:
                with suppress(NotFound):  # the release does not have the version
                    await self._changes(version, self._events_of if resource == EVENTS else None, settled)
        except Forbidden as error:
            if error.status == _NOT_AUTHENTICATED:
                raise
            await self._restricted(resource, settled)
        finally:
            settled.set()

    async def _restricted(self, resource: Resource, settled: asyncio.Event) -> None:
        """Record the objects of one namespace, if they may be read."""
        namespace = self._namespace if resource.namespaced else ""
        if namespace:
            try:  # without reading any
                await self._client.list(resource, namespace, field_selector="metadata.name=none")
            except Forbidden:
                namespace = ""
        self._not_recorded(resource, namespace)
        if namespace:
            try:
                await self._changes(resource, namespace, settled)
            except Forbidden:
                self._not_recorded(resource, "")

    def _not_recorded(self, resource: Resource, namespace: str) -> None:
        record = ResourceNotRecorded(
            resource=resource.plural,
            group=resource.group,
            object_kind=resource.kind,
            namespace=namespace,
            consequence=CONSEQUENCES.get(resource.kind, ""),
        )
        self._timeline.append(record)
        self._report(record)

    async def _changes(self, resource: Resource, namespace: str | None, settled: asyncio.Event) -> None:
        informer = Informer(self._client, resource, namespace)
        synced = asyncio.create_task(_set_after(informer.synced, settled))
        try:
            async with aclosing(informer.changes()) as changes:
                async for change in changes:
                    self._changed(resource, change, existing=not informer.synced.is_set())
        finally:
            synced.cancel()

    def _changed(self, resource: Resource, change: ObjectChange, *, existing: bool) -> None:
        key = resource.full_name, object_uid(change.object)
        try:
            obj = self._redaction.redacted(resource, change.object)
            content = record_line(ObjectChanged(change="ADDED", resource="", object=obj))
        except (ValueError, RecursionError):
            if change.type != "DELETED":
                self._skip(resource, change.object)
                return
            content, metadata = b"", change.object["metadata"]
            obj = {"metadata": {name: metadata[name] for name in ("name", "namespace", "uid") if name in metadata}}
        if change.type == "DELETED":
            self._redaction.forget(change.object)
            self._waiting.pop(key[1], None)
            self._skipped.discard(key)
            if self._shown.pop(key, None) is not None:
                self._timeline.append(ObjectChanged(change="DELETED", resource=resource.full_name, object=obj))
            return
        state = hashlib.blake2b(content, digest_size=16).digest()
        if self._shown.get(key) == state:
            return  # only what is not recorded has changed, such as a heartbeat
        kind: Literal["ADDED", "MODIFIED"] = "MODIFIED" if key in self._shown else "ADDED"
        record = ObjectChanged(change=kind, resource=resource.full_name, object=obj, existing=existing)
        self._shown[key] = state
        self._timeline.append(record)
        if resource == PODS:
            self._decided(obj)

    def _skip(self, resource: Resource, obj: ObjectView) -> None:
        """Report once that an object is not recorded."""
        key = resource.full_name, object_uid(obj)
        if key not in self._skipped:
            self._skipped.add(key)
            name = "/".join(filter(None, object_key(obj)))
            why = "it is nested too deeply, or has invalid Unicode"
            record = RunReported(text=f"{resource.kind} {name} is not recorded: {why}")
            self._timeline.append(record)
            self._report(record)

    def _decided(self, pod: ObjectView) -> None:
        """Record what the scheduler decided about a pod since its last change."""
        uid, node = object_uid(pod), pod["spec"].get("nodeName")
        if node:
            if self._waiting.pop(uid, None) is not None:
                self._timeline.append(PodScheduled(pod=pod_reference(pod), node=node))
            return
        for condition in (pod.get("status") or {}).get("conditions") or ():
            if (condition.get("type"), condition.get("status")) == ("PodScheduled", "False"):
                reason, message = str(condition.get("reason", "")), str(condition.get("message", ""))
                if self._waiting.get(uid) != message:
                    self._waiting[uid] = message
                    self._timeline.append(PodUnschedulable(pod=pod_reference(pod), reason=reason, message=message))
                return
        self._waiting.setdefault(uid, "")


async def _until_any(
    ends: Iterable[asyncio.Task[Any]], following: Iterable[asyncio.Task[None]], seconds: float | None
) -> None:
    """Wait for one of the ends, at most so many seconds.

    Raises:
        Forbidden: nothing is followed any more.
        KubeError: following a resource has failed.
    """
    ends, following = set(ends), set(following)
    over = None if seconds is None else time.monotonic() + seconds
    while not any(task.done() for task in ends):
        if not following:
            raise Forbidden("nothing may be recorded: grant the rights to list and watch", status=403)
        left = None if over is None else max(over - time.monotonic(), 0.0)
        done, _ = await asyncio.wait({*following, *ends}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            return  # the time is over
        for task in done & following:
            task.result()
        following -= done


def _plural(kind: str) -> str:
    return f"{kind}es" if kind.endswith("s") else f"{kind}s"


async def _set_after(event: asyncio.Event, then: asyncio.Event) -> None:
    await event.wait()
    then.set()
