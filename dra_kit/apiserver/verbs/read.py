"""Get an object, and list objects in pages."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from dra_kit.apiserver.api import Api, ApiRequest, ApiResponse, encode
from dra_kit.apiserver.kinds.kind import Kind, readers
from dra_kit.apiserver.requests import CONTINUE_EXPIRED, EXPIRED, Query, parse_resource_version, too_large
from dra_kit.apiserver.selectors import FieldSelector, parse_field_selector, parse_label_selector
from dra_kit.apiserver.status_errors import bad_request, expired, invalid_object
from dra_kit.apiserver.storage import Compacted, StoredObject
from dra_kit.kubernetes.resource.field_errors import FieldError, forbidden, unsupported
from dra_kit.kubernetes.resource.matching import LabelSelector
from dra_kit.kubernetes.values.json import Object

_META_FIELDS: Final = readers("metadata.name", "metadata.namespace")


class ListSelection(Struct, frozen=True):
    """The objects of a collection that a request selects."""

    prefix: str
    labels: LabelSelector
    fields: FieldSelector

    @classmethod
    def of(cls, kind: Kind, request: ApiRequest) -> ListSelection:
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
        return cls(prefix, parse_label_selector(query.text("labelSelector")), selected)

    def __bool__(self) -> bool:
        return bool(self.labels) or bool(self.fields)

    def matches(self, obj: Object) -> bool:
        """Return whether a stored object is one of them; its key is not compared."""
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
    revision = parse_resource_version(request.query.text("resourceVersion"), code=500)
    if revision > api.storage.revision:
        raise too_large(revision, api.storage.revision)
    target = request.target
    stored = api.stored(kind, target)
    return ApiResponse(api.encoded(kind, stored, target.api_version), kind=kind, items=[stored.object])


def list_objects(api: Api, kind: Kind, request: ApiRequest) -> ApiResponse:
    """Return a collection, or a page of it.

    Raises:
        StatusError: 400, 410 or 504.
    """
    selection = ListSelection.of(kind, request)
    page = _page(api, kind, request.query, selection)
    metadata: Object = {"resourceVersion": str(page.revision)}
    if page.next_key:
        metadata["continue"] = _token(page.revision, page.next_key)
        if not selection:
            metadata["remainingItemCount"] = page.remaining
    return list_response(api, kind, request.target.api_version, metadata, page.items)


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
        revision = parse_resource_version(version, code=400)
        if revision > storage.revision:
            raise too_large(revision, storage.revision)
        exact = match == "Exact" or (not match and limit and version not in {"", "0"})
        revision = revision if exact else storage.revision
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
