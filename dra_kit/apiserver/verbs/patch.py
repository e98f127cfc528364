"""Patch: from the stored object to the one that an update would have sent."""

from __future__ import annotations

from typing import Any, Final, Protocol

from dra_kit.apiserver.answers import Refusal, bad_request, invalid, not_found
from dra_kit.apiserver.api import Answer, Api, Request, encode
from dra_kit.apiserver.kinds.kind import Kind
from dra_kit.apiserver.kinds.strategy import Context
from dra_kit.apiserver.patches import json as json_patch
from dra_kit.apiserver.patches import merge, strategic
from dra_kit.apiserver.patches.gotext import go_text, restore_text
from dra_kit.apiserver.requests.requests import WriteOptions
from dra_kit.apiserver.storage import Stored
from dra_kit.apiserver.verbs.apply import apply
from dra_kit.apiserver.verbs.bodies import NotOfKind, typed
from dra_kit.apiserver.verbs.patch_bodies import (
    APPLY,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    formed,
    parse_patch,
    problems_of,
)
from dra_kit.apiserver.verbs.write import Write, change
from dra_kit.kubernetes.resource.field_errors import invalid as invalid_field
from dra_kit.kubernetes.values.json import Object

_ATTEMPTS: Final = 5


async def patch(api: Api, kind: Kind, request: Request) -> Answer:
    """Patch an object or its status; try again when the object changes in the meantime.

    Raises:
        Refusal: the object is not changed.
    """
    write = write_of(api, kind, request)
    if request.content_type == APPLY:
        return await apply(write)
    return await patch_subject(write, _Whole(write))


def write_of(api: Api, kind: Kind, request: Request) -> Write:
    """Return the write that a PATCH asks for.

    Raises:
        Refusal: 415 or 422, there is no such patch, or no such option.
    """
    supported = {JSON_PATCH, MERGE_PATCH, APPLY}
    if not api.registry.is_custom(kind):
        supported.add(STRATEGIC_PATCH)
    if request.content_type not in supported:
        raise Refusal(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
    is_apply = request.content_type == APPLY
    return Write(api, kind, request, WriteOptions.parse(request.query, "PatchOptions", request.agent, apply=is_apply))


class Subject(Protocol):
    """What is patched: an object, or a part of one that is shown as an object of its own."""

    def stored(self) -> Stored:
        """Return the object as it is now.

        Raises:
            Refusal: 404.
        """
        ...

    def shown(self, stored: Stored) -> Object:
        """Return what the client sees of it."""
        ...

    async def change(self, stored: Stored, wire: Object, context: Context) -> Answer:
        """Store what the patch made of it.

        Raises:
            Refusal: it is not changed.
        """
        ...


class _Whole:
    """An object, or its status."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def stored(self) -> Stored:
        kind, target = self._write.kind, self._write.request.target
        stored = self._write.api.storage.get(kind.resource, kind.key(target.namespace, target.name))
        if stored is None:
            raise not_found(kind.group, kind.plural, target.name)
        return stored

    def shown(self, stored: Stored) -> Object:
        return self._write.api.wire(self._write.kind, stored.object, self._write.request.target.api_version)

    async def change(self, stored: Stored, wire: Object, context: Context) -> Answer:
        return await change(self._write, stored, wire, context)


async def patch_subject(write: Write, subject: Subject) -> Answer:
    """Patch a subject; tried again when it changes in the meantime.

    Args:
        write: of the kind that the client sees.
        subject: what is patched.

    Raises:
        Refusal: it is not changed.
    """
    request = write.request
    body = parse_patch(request)
    for attempt in range(_ATTEMPTS):
        stored = subject.stored()
        context = write.api.context(request)
        wire = _patched(write, subject.shown(stored), formed(body, request), context)
        _check_identity(wire, stored.object)
        try:
            return await subject.change(stored, wire, context)
        except Refusal as refusal:
            changed_meanwhile = refusal.reason == "Conflict" and subject.stored() is not stored
            if not changed_meanwhile or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt answers or raises")


def _patched(write: Write, current: Object, body: Any, context: Context) -> Object:
    kind, request = write.kind, write.request
    api_version = request.target.api_version
    try:
        if request.content_type == JSON_PATCH:
            value = json_patch.apply(current, body)
        elif request.content_type == MERGE_PATCH:
            value = merge.apply(current, body)
        else:
            value = strategic.apply(current, body, kind.type_of(api_version))
    except json_patch.PatchInvalid as error:
        raise bad_request(f"error decoding patch: {error}") from None
    except json_patch.PatchFailed:
        raise Refusal(422, "Invalid", "the server rejected our request due to an error in our request", {}) from None
    except strategic.PatchInvalid as error:
        raise bad_request(str(error)) from None
    except strategic.PatchFailed as error:
        raise Refusal(500, "", str(error)) from None
    given = (value.get("kind") or kind.kind, value.get("apiVersion") or api_version) if isinstance(value, dict) else ()
    if given != (kind.kind, api_version):
        detail = "a patch may not change apiVersion or kind"
        raise invalid("", "", "", [invalid_field("patch", value, detail)])
    value = _sorted(value)
    try:
        return typed(value, request, kind, write.options.field_validation, context, problems=problems_of(body))
    except NotOfKind as refusal:
        # the API server shows a strategic patch as Go prints it, and what the others made of the object
        if request.content_type == STRATEGIC_PATCH:
            detail = refusal.detail if refusal.mistyped is None else restore_text(refusal.mistyped)
            raise invalid("", "", "", [invalid_field("patch", go_text(body), detail)]) from None
        raise invalid("", "", "", [invalid_field("patch", encode(value).decode(), refusal.detail)]) from None


def _sorted(value: Any) -> Any:
    """Return JSON with the entries of its objects by name, as the API server's patches leave it."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def _check_identity(wire: Object, old: Object) -> None:
    name, expected = wire["metadata"].get("name"), old["metadata"]["name"]
    if not name:
        raise bad_request(f"the name of the object ({expected} based on URL) was undeterminable: name must be provided")
    if name != expected:
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({expected})")
