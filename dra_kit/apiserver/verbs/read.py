"""Get an object, list objects in pages, and watch them, with bookmarks and initial events."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from dra_kit.apiserver.api import Api, ApiRequest, ApiResponse, encode
from dra_kit.apiserver.kinds.kind import Kind, readers
from dra_kit.apiserver.requests import CONTINUE_EXPIRED, EXPIRED, Query, parse_resource_version, too_large
from dra_kit.apiserver.selectors import (
    FieldSelector,
    ShardSelector,
    parse_field_selector,
    parse_label_selector,
    parse_shard_selector,
)
from dra_kit.apiserver.status_errors import StatusError, bad_request, expired, invalid_object
from dra_kit.apiserver.storage import INDEXED, Compacted, StorageChange, StoredObject
from dra_kit.kubernetes.release import Change, Release
from dra_kit.kubernetes.resource.field_errors import FieldError, forbidden, unsupported
from dra_kit.kubernetes.resource.matching import LabelSelector
from dra_kit.kubernetes.values.json import Object

_META_FIELDS: Final = readers("metadata.name", "metadata.namespace")


class ListSelection(Struct, frozen=True):
    """The objects of a collection that a request selects."""

    prefix: str
    labels: LabelSelector
    fields: FieldSelector
    shard: ShardSelector | None = None

    @classmethod
    def of(cls, kind: Kind, request: ApiRequest, release: Release) -> ListSelection:
        """Read it from a request.

        Raises:
            StatusError: 400, a selector does not read.
        """
        target, query = request.target, request.query
        readable = {"metadata.name": _META_FIELDS["metadata.name"], **kind.fields}
        if kind.namespaced:
            readable["metadata.namespace"] = _META_FIELDS["metadata.namespace"]
        selected = parse_field_selector(query.text("fieldSelector"), readable, _unknown_field(kind, target.api_version))
        if target.watch and target.name:
            selected = selected or parse_field_selector(f"metadata.name={target.name}", readable, str)
            if selected.value("metadata.name") != target.name:
                raise bad_request("fieldSelector metadata.name doesn't match requested name")
        prefix = f"{target.namespace}/" if target.namespace else ""
        labels, shard = parse_label_selector(query.text("labelSelector")), query.text("shardSelector")
        sharded = shard != "" and "ShardedListAndWatch" in release
        return cls(prefix, labels, selected, parse_shard_selector(shard) if sharded else None)

    def __bool__(self) -> bool:
        return bool(self.labels) or bool(self.fields) or self.shard is not None

    @property
    def metadata(self) -> Object:
        """What the metadata of a list says about the selection."""
        return {} if self.shard is None else {"shardInfo": {"selector": str(self.shard)}}

    @property
    def indexed(self) -> str | None:
        """The value that all of them have in the indexed field; None if they may differ in it."""
        return self.fields.value(INDEXED)

    def matches(self, obj: Object) -> bool:
        """Return whether a stored object is one of them; its key is not compared."""
        if self.shard is not None and not self.shard.matches(obj):
            return False
        return self.fields.matches(obj) and self.labels.matches(obj)


def _unknown_field(kind: Kind, api_version: str) -> Callable[[str], str]:
    def text(field: str) -> str:
        if kind.own_selectors:
            return f"field label not supported for {api_version}, Kind={kind.kind}: {field}"
        if not kind.group and kind.fields:
            return f"field label not supported: {field}"
        return f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"'

    return text


def get(api: Api, kind: Kind, request: ApiRequest) -> ApiResponse:
    """Return one object.

    Raises:
        StatusError: 404 or 504.
    """
    target = request.target
    revision = _wanted_revision(api, kind, request)
    if revision > api.storage.revision:
        raise too_large(revision, api.storage.revision)
    stored = api.stored(kind, target)
    return ApiResponse(api.encoded(kind, stored, target.api_version), kind=kind, items=[stored.object])


def _wanted_revision(api: Api, kind: Kind, request: ApiRequest) -> int:
    """Return the revision that an object is wanted of, or a later one; 0 for any.

    Raises:
        StatusError: it is not a number.
    """

    def refusal(error: FieldError) -> StatusError:
        if api.release.has(Change.WRONG_VERSIONS_ARE_INVALID):
            return invalid_object(kind.group, kind.plural, request.target.name, [error])
        return _failed(error)

    return parse_resource_version(request.query.text("resourceVersion"), refusal)


def _failed(error: FieldError) -> StatusError:
    return StatusError(500, "", str(error))


def list_objects(api: Api, kind: Kind, request: ApiRequest) -> ApiResponse:
    """Return a collection, or a page of it.

    Raises:
        StatusError: 400, 410 or 504.
    """
    selection = ListSelection.of(kind, request, api.release)
    page = _page(api, kind, request.query, selection)
    metadata: Object = {"resourceVersion": str(page.revision)}
    if page.next_key:
        metadata["continue"] = _token(page.revision, page.next_key)
        if not selection:
            metadata["remainingItemCount"] = page.remaining
    return list_response(api, kind, request.target.api_version, metadata | selection.metadata, page.items)


def list_response(
    api: Api, kind: Kind, api_version: str, metadata: Object, found: Sequence[StoredObject]
) -> ApiResponse:
    """Return a list of objects with its metadata."""
    items = [api.encoded(kind, stored, api_version) for stored in found]
    if not api.registry.is_custom(kind):  # typed lists name the type of their items nowhere
        skipped = len(encode({"kind": kind.kind, "apiVersion": api_version}))
        items = [b"{" + item[skipped:] for item in items]
    head = {"kind": kind.list_kind or f"{kind.kind}List", "apiVersion": api_version, "metadata": metadata}
    body = encode(head)[:-1] + b',"items":[' + b",".join(items) + b"]}"
    objects = [stored.object for stored in found]
    return ApiResponse(body, kind=kind, items=objects, list_metadata=metadata, listed=found)


class _Page(Struct):
    items: list[StoredObject]
    revision: int
    next_key: str = ""
    remaining: int = 0


def _page(api: Api, kind: Kind, query: Query, selection: ListSelection) -> _Page:
    storage = api.storage
    limit = max(query.number("limit") or 0, 0)
    version, match = query.text("resourceVersion"), query.text("resourceVersionMatch")
    token = query.text("continue")
    _check_options(version, match, token, "sendInitialEvents" in query.values)
    limit = 0 if version == "0" else limit
    start = selection.prefix
    if token:
        revision, start = _read_token(token)
    else:
        revision = parse_resource_version(version, lambda error: bad_request(f"invalid resource version: {error}"))
        if revision > storage.revision:
            raise too_large(revision, storage.revision)
        exact = match == "Exact" or (not match and limit and version not in {"", "0"})
        revision = revision if exact else storage.revision
    if selection.indexed is not None and revision == storage.revision:
        found = storage.items_indexed(kind.resource, selection.indexed, selection.prefix)
    else:
        try:
            found = storage.items_at(revision, kind.resource, selection.prefix)
        except Compacted:
            raise expired(CONTINUE_EXPIRED if token else EXPIRED) from None
    if start > selection.prefix:
        found = [(key, stored) for key, stored in found if key >= start]
    page: list[StoredObject] = []
    for i, (key, stored) in enumerate(found):
        if limit and len(page) == limit:
            # whether the rest matches is not looked at
            return _Page(page, revision, key, len(found) - i)
        if selection.matches(stored.object):
            page.append(stored)
    return _Page(page, revision)


def _check_options(version: str, match: str, token: str, initial_events: bool) -> None:
    errors: list[FieldError] = []
    if initial_events:
        errors.append(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    if match:
        conditions = (("unless resourceVersion is provided", not version), ("when continue is provided", bool(token)))
        errors += [
            forbidden("resourceVersionMatch", f"resourceVersionMatch is forbidden {condition}")
            for condition, met in conditions
            if met
        ]
        if match not in {"Exact", "NotOlderThan"}:
            errors.append(unsupported("resourceVersionMatch", match, ("Exact", "NotOlderThan", ""), in_order=True))
        elif match == "Exact" and version == "0":
            detail = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
            errors.append(forbidden("resourceVersionMatch", detail))
    if errors:
        raise invalid_object("meta.k8s.io", "ListOptions", "", errors)
    if token and version not in {"", "0"}:
        raise bad_request("specifying resource version is not allowed when using continue")


def _token(revision: int, key: str) -> str:
    text = json.dumps({"v": "meta.k8s.io/v1", "rv": revision, "start": key}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _read_token(token: str) -> tuple[int, str]:
    try:
        value = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return int(value["rv"]), str(value["start"])
    except (binascii.Error, ValueError, KeyError, TypeError) as error:
        raise bad_request(f"continue key is not valid: {error}") from None


BOOKMARK_SECONDS: Final = 60
DEFAULT_TIMEOUT_SECONDS: Final = 1800
PENDING: Final = 1_000
"""Changes that wait for a client, at most: as many as a watcher of Kubernetes' cache has room for."""
_NOT_OLDER: Final = "NotOlderThan"
_INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"


class EventEncoder(Protocol):
    """Writes events in the form that the client asked for."""

    def event(self, type_: str, stored: StoredObject) -> bytes:
        """Return an event about an object."""
        ...

    def error(self, status: Object) -> bytes:
        """Return the event that ends a watch with an error."""
        ...


class _Options(Struct):
    version: int
    bookmarks: bool
    initial_events: bool
    timeout: float

    @classmethod
    def parse(cls, request: ApiRequest) -> _Options:
        query = request.query
        text, match = query.text("resourceVersion"), query.text("resourceVersionMatch")
        send_initial, initial_given = query.flag("sendInitialEvents"), "sendInitialEvents" in query.values
        if text in {"", "0"} and not initial_given and not match:  # the default of such a watch
            initial_given, match = True, _NOT_OLDER
        cls._check(match, initial_given=initial_given, continued=bool(query.text("continue")))
        version = parse_resource_version(text, _failed)
        timeout = query.number("timeoutSeconds") or DEFAULT_TIMEOUT_SECONDS
        from_start = version == 0 and "sendInitialEvents" not in query.values
        return cls(version, query.flag("allowWatchBookmarks"), send_initial or from_start, timeout)

    @staticmethod
    def _check(match: str, *, initial_given: bool, continued: bool) -> None:
        errors: list[FieldError] = []
        path = "resourceVersionMatch"
        if initial_given and match != _NOT_OLDER:
            errors.append(forbidden(path, f"sendInitialEvents requires setting resourceVersionMatch to {_NOT_OLDER}"))
        if match and not initial_given:
            detail = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            errors.append(forbidden(path, detail))
        if match and match != _NOT_OLDER:
            errors.append(unsupported(path, match, (_NOT_OLDER,)))
        if match and continued:
            errors.append(forbidden(path, "resourceVersionMatch is forbidden when continue is provided"))
        if errors:
            raise invalid_object("meta.k8s.io", "ListOptions", "", errors)


class WatchStream:
    """One open watch; it sees every change from its creation on.

    Raises:
        StatusError: the request is not a valid watch.
    """

    def __init__(self, api: Api, kind: Kind, request: ApiRequest) -> None:
        self._api, self._kind, self._request = api, kind, request
        self._selection = ListSelection.of(kind, request, api.release)
        self._options = options = _Options.parse(request)
        storage = api.storage
        self._pending: deque[StorageChange] = deque()
        self._wake = asyncio.Event()
        self._failure: StatusError | None = None
        self._initial: list[StoredObject] = []
        self._seen = max(storage.revision, options.version)
        if options.initial_events and options.version > storage.revision:
            self._failure = too_large(options.version, storage.revision)
        elif options.initial_events:
            items = storage.items(kind.resource, self._selection.prefix)
            self._initial = [stored for _, stored in items if self._selection.matches(stored.object)]
        elif options.version:
            try:
                self._pending.extend(storage.changes_since(options.version, kind.resource))
            except Compacted:
                self._failure = expired(f"too old resource version: {options.version} ({storage.compacted})")
        self._room = len(self._pending) + PENDING
        self._stop: Callable[[], None] | None = storage.listen(
            kind.resource, self._on_change, indexed=self._selection.indexed
        )

    def _on_change(self, change: StorageChange) -> None:
        if change.revision <= self._options.version:
            return  # the watch begins with a version that has not been yet
        if next(self._selected(change), None) is None:
            return  # with a watch of each node, nearly all changes are for others
        if len(self._pending) < self._room:
            self._pending.append(change)
        else:  # its client is too slow, and finds the rest when it watches again or lists
            self._pending.clear()
            self.close()
        self._wake.set()

    def close(self) -> None:
        """Stop receiving changes."""
        if self._stop is not None:
            self._stop()
            self._stop = None

    async def events(self, encoder: EventEncoder, bookmark_seconds: float = BOOKMARK_SECONDS) -> AsyncIterator[bytes]:
        """Yield the events until the time of the request is over or its client falls behind."""
        if self._failure is not None:
            yield encoder.error(self._failure.status())
            return
        for stored in self._initial:
            yield encoder.event("ADDED", stored)
        if self._options.bookmarks and self._request.query.flag("sendInitialEvents"):
            yield encoder.event("BOOKMARK", self._bookmark(initial_end=True))
        loop = asyncio.get_running_loop()
        end = loop.time() + self._options.timeout
        bookmark = loop.time() + bookmark_seconds
        while True:
            while self._pending:
                change = self._pending.popleft()
                self._seen = change.revision
                for type_, stored in self._selected(change):
                    yield encoder.event(type_, stored)
            self._wake.clear()
            now = loop.time()
            if now >= end or self._stop is None:
                return
            if now >= bookmark:
                bookmark = now + bookmark_seconds
                if self._options.bookmarks:
                    yield encoder.event("BOOKMARK", self._bookmark())
            try:
                async with asyncio.timeout(min(end, bookmark) - now):
                    await self._wake.wait()
            except TimeoutError:
                self._seen = max(self._seen, self._api.storage.revision) if not self._pending else self._seen

    def _selected(self, change: StorageChange) -> Iterator[tuple[str, StoredObject]]:
        """Yield what a change is for the client, if anything."""
        if not change.key.startswith(self._selection.prefix):
            return
        matches = self._selection.matches
        before = change.previous is not None and matches(change.previous.object)
        after = change.type != "DELETED" and matches(change.stored.object)
        if after:
            yield "MODIFIED" if before else "ADDED", change.stored
        elif before:
            yield "DELETED", self._last(change)

    @staticmethod
    def _last(change: StorageChange) -> StoredObject:
        """Return the object as the client knew it, with the revision at which it left its view."""
        if change.type == "DELETED" or change.previous is None:
            return change.stored
        metadata: Object = {**change.previous.object["metadata"], "resourceVersion": str(change.revision)}
        return StoredObject({**change.previous.object, "metadata": metadata}, change.revision)

    def _bookmark(self, *, initial_end: bool = False) -> StoredObject:
        """Return an object of the kind with nothing but its resource version."""
        revision = max(self._seen, 1)
        metadata: dict[str, Any] = {"resourceVersion": str(revision)}
        if initial_end:
            metadata["annotations"] = {_INITIAL_EVENTS_END: "true"}
        obj = {"kind": self._kind.kind, "apiVersion": self._kind.storage_api_version, "metadata": metadata}
        return StoredObject(self._api.pruned(self._kind, obj), revision)  # with what a typed object writes besides
