"""Patch and apply: reads a patch, applies it to the stored object and stores the result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final

from dra_kit.apiserver import patches as json_patch
from dra_kit.apiserver.api import Api, ApiRequest, ApiResponse, encode
from dra_kit.apiserver.kinds.kind import Kind, StrategyContext
from dra_kit.apiserver.managed_fields import (
    ApplyConflict,
    after_apply,
    entries,
    format_path,
    managers_of,
    repetitions,
    undeclared_fields,
)
from dra_kit.apiserver.patches import (
    StrategicPatchFailed,
    StrategicPatchInvalid,
    after_patch,
    before_patch,
    go_text,
    merge_patch,
    restore_text,
    strategic_merge_patch,
)
from dra_kit.apiserver.requests import WriteOptions
from dra_kit.apiserver.status_errors import StatusError, bad_request, conflict, invalid_object, not_found
from dra_kit.apiserver.storage import StoredObject
from dra_kit.apiserver.verbs.decoding import WrongKindError, decode_typed, parse_json, parse_yaml
from dra_kit.apiserver.verbs.write import WriteRequest, check_name, create_object, replace_object, require_create
from dra_kit.kubernetes.manifests.files import UnreadableText
from dra_kit.kubernetes.release import Change
from dra_kit.kubernetes.resource.field_errors import go_quote, invalid
from dra_kit.kubernetes.resource.schema.types import SchemaField, StrictDecoding, TypeMismatch, decode, json_type
from dra_kit.kubernetes.values.json import DuplicateKeysObject, Object

_ATTEMPTS: Final = 5


async def patch(api: Api, kind: Kind, request: ApiRequest) -> ApiResponse:
    """Patch an object or its status; retry if the object changes in the meantime.

    Raises:
        StatusError: the object is not changed.
    """
    write = write_of(api, kind, request)
    if request.content_type == APPLY:
        return await apply(write)
    return await patch_stored(
        write,
        partial(api.stored, kind, request.target),
        lambda stored: api.wire(kind, stored.object, request.target.api_version),
        partial(replace_object, write),
    )


def write_of(api: Api, kind: Kind, request: ApiRequest) -> WriteRequest:
    """Return the write of a PATCH request.

    Raises:
        StatusError: 415 or 422, the type of the patch or an option is not supported.
    """
    supported = {JSON_PATCH, MERGE_PATCH, APPLY}
    if not api.registry.is_custom(kind):
        supported.add(STRATEGIC_PATCH)
    if request.content_type not in supported:
        raise StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
    is_apply = request.content_type == APPLY
    return WriteRequest(
        api, kind, request, WriteOptions.parse(request.query, "PatchOptions", request.agent, apply=is_apply)
    )


async def patch_stored(
    write: WriteRequest,
    read: Callable[[], StoredObject],
    shown: Callable[[StoredObject], Object],
    change: Callable[[StoredObject, Object, StrategyContext], Awaitable[ApiResponse]],
) -> ApiResponse:
    """Patch an object, or a part of one that is served as a separate object; retry if it changes in the meantime.

    Args:
        write: the write.
        read: returns the stored object as it is now.
        shown: returns what the patch is for, in the version of the request.
        change: stores the patched one.

    Raises:
        StatusError: it is not changed.
    """
    request = write.request
    try:
        body = parse_json(request.body)
    except ValueError as error:
        if write.api.release.has(Change.PATCHES_ARE_READ_FIRST):
            raise bad_request("invalid JSON patch") from None
        read()
        raise bad_request(
            f"{'' if request.content_type == STRATEGIC_PATCH else 'error decoding patch: '}{error}"
        ) from None
    for attempt in range(_ATTEMPTS):
        stored = read()
        context = write.api.context(request)
        wire = _patched(write, shown(stored), formed(body, request), context)
        check_name(wire["metadata"].get("name"), stored.object["metadata"]["name"])
        try:
            return await change(stored, wire, context)
        except StatusError as refusal:
            changed_meanwhile = refusal.reason == "Conflict" and read() is not stored
            if not changed_meanwhile or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt answers or raises")


def _patched(write: WriteRequest, current: Object, body: Any, context: StrategyContext) -> Object:
    kind, request = write.kind, write.request
    api_version = request.target.api_version
    current = before_patch(current, as_maps=request.content_type == STRATEGIC_PATCH)
    try:
        if request.content_type == JSON_PATCH:
            value = json_patch.json_patch(current, body)
        elif request.content_type == MERGE_PATCH:
            value = merge_patch(current, body)
        else:
            value = strategic_merge_patch(current, body, kind.type_of(api_version))
    except json_patch.PatchInvalid as error:
        raise bad_request(f"error decoding patch: {error}") from None
    except json_patch.PatchFailed:
        raise StatusError(
            422, "Invalid", "the server rejected our request due to an error in our request", {}
        ) from None
    except StrategicPatchInvalid as error:
        raise bad_request(str(error)) from None
    except StrategicPatchFailed as error:
        raise StatusError(500, "", str(error)) from None
    given = (value.get("kind") or kind.kind, value.get("apiVersion") or api_version) if isinstance(value, dict) else ()
    if given != (kind.kind, api_version):
        detail = "a patch may not change apiVersion or kind"
        raise invalid_object("", "", "", [invalid("patch", value, detail)])
    value = after_patch(value)
    try:
        return decode_typed(value, request, kind, write.options.field_validation, context, problems=problems_of(body))
    except WrongKindError as refusal:
        # the API server shows a strategic patch as Go prints it, and what the others made of the object
        if request.content_type == STRATEGIC_PATCH:
            detail = refusal.detail if refusal.mistyped is None else restore_text(refusal.mistyped)
            raise invalid_object("", "", "", [invalid("patch", go_text(body), detail)]) from None
        raise invalid_object("", "", "", [invalid("patch", encode(value).decode(), refusal.detail)]) from None


JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"
_OPERATIONS_MAX: Final = 10_000
_OPERATION: Final = {"op", "path", "from", "value"}


def formed(value: Any, request: ApiRequest) -> Any:
    """Return the operations of a JSON patch, the object of the others.

    Raises:
        StatusError: 400 or 413.
    """
    if request.content_type == JSON_PATCH:
        return _operations(value)
    if value is None and request.content_type == MERGE_PATCH:
        raise bad_request("Invalid JSON Patch")
    value = {} if value is None else value
    if not isinstance(value, dict):
        cause = f"json: cannot unmarshal {json_type(value)} into Go value of type map[string]interface {{}}"
        raise bad_request(cause if request.content_type == STRATEGIC_PATCH else f"error decoding patch: {cause}")
    return value


def _operations(value: Any) -> list[Any]:
    value = [] if value is None else value
    if not isinstance(value, list):
        cause = f"json: cannot unmarshal {json_type(value)} into Go value of type []handlers.jsonPatchOp"
        raise bad_request(f"error decoding patch: {cause}")
    if len(value) > _OPERATIONS_MAX:
        cause = f"The allowed maximum operations in a JSON patch is {_OPERATIONS_MAX}, got {len(value)}"
        raise StatusError(413, "RequestEntityTooLarge", f"Request entity too large: {cause}")
    return [{} if item is None else item for item in value]


def problems_of(body: Any) -> list[str]:
    """Return the strict decoding errors of a patch itself."""
    if isinstance(body, dict):
        return [f'duplicate field "{path}"' for path in _duplicates(body, "")]
    return [
        f'json patch unknown field "[{i}].{name}"'
        for i, operation in enumerate(body)
        for name in operation
        if name not in _OPERATION
    ]


def _duplicates(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, DuplicateKeysObject):
        yield from (f"{path}{key}" for key in value.duplicates)
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _duplicates(item, f"{path}{key}.")


async def apply(write: WriteRequest) -> ApiResponse:
    """Apply: create the object, or merge the configuration into it.

    Raises:
        StatusError: 409 for fields that others own, and all that a create or update may raise.
    """
    api, kind, request, options = write.api, write.kind, write.request, write.options
    target = request.target
    context = api.context(request)
    config = configuration(write)
    decoded = decode_typed(config, request, kind, options.field_validation, context)
    if decoded["metadata"].get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    stored = api.storage.get(kind.resource, kind.key(target.namespace, target.name))
    if stored is None and target.subresource:
        raise not_found(kind.group, kind.plural, target.name)
    uid = decoded["metadata"].get("uid")
    if stored is None and uid:
        cause = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
        raise conflict(kind.group, kind.plural, target.name, cause)
    live: Object = {}
    if stored is not None:
        live = before_patch(api.wire(kind, stored.object, target.api_version), as_maps=True)
    writer = write.manager("Apply", context.now)
    try:
        applied = after_apply(
            live, _written(write, mentioned(config, decoded)), write.type_name, writer,
            managers_of(live) if live else [], version=api.release.version, force=options.force,
        )  # fmt: skip
    except ApplyConflict as error:
        raise conflicting(error) from None
    wire = decode_typed(applied.obj, request, kind, "Ignore", context)
    managed_fields = entries(applied.managers)
    if stored is None:
        version = wire["metadata"].pop("resourceVersion", "")  # there is none yet that it could mean
        if version and not version.isdecimal():
            raise StatusError(500, "", f"strconv.ParseUint: parsing {go_quote(version)}: invalid syntax")
        require_create(write, target.name)
        return await create_object(write, wire, context, managed_fields)
    if decoded["metadata"].get("resourceVersion"):
        wire["metadata"]["resourceVersion"] = decoded["metadata"]["resourceVersion"]
    return await replace_object(write, stored, wire, context, managed_fields)


def conflicting(error: ApplyConflict) -> StatusError:
    """Return 409 for fields that other managers own."""
    return StatusError(409, "Conflict", str(error), {"causes": error.causes()})


def _written(write: WriteRequest, config: Object) -> Object:
    """Return the part of a configuration that a request can write: its status, or everything else."""
    if write.subresource == "status":
        return {key: value for key, value in config.items() if key != "spec"}
    return {key: value for key, value in config.items() if key != "status"} if write.kind.status else config


def mentioned(config: Object, decoded: Object) -> Object:
    """Return the decoded configuration without what decoding filled in."""
    return {key: _only(decoded.get(key), value) for key, value in config.items() if key in decoded}


def _only(decoded: Any, given: Any) -> Any:
    if isinstance(decoded, dict) and isinstance(given, dict):
        return {key: _only(value, given[key]) for key, value in decoded.items() if key in given}
    if isinstance(decoded, list) and isinstance(given, list):
        return [_only(value, item) for value, item in zip(decoded, given, strict=True)]
    return decoded


def configuration(write: WriteRequest) -> Object:
    """Return the applied configuration as the client sent it.

    Raises:
        StatusError: 400 or 500, the configuration is not of the kind that the path names.
    """
    body = write.request.body
    try:
        document = parse_yaml(body)
    except UnreadableText as error:
        raise bad_request(f"error decoding YAML: {error.within(body.decode(errors='replace'))}") from None
    value = None if document is None else document.value
    repeated = None if document is None else next(document.repeated(everywhere=True), None)
    if repeated is not None:
        _, node = repeated
        line = body.decode()[: node.start].count("\n") + 1
        raise bad_request(
            "error strict decoding patch: error converting YAML to JSON: yaml: unmarshal errors:\n"
            f'  line {line}: key "{node.text}" already set in map'
        )
    value = {} if value is None else value
    if not isinstance(value, dict):
        cause = f"json: cannot unmarshal {json_type(value)} into Go value of type map[string]interface {{}}"
        raise bad_request(f"error decoding patch: error unmarshaling JSON: while decoding JSON: {cause}")
    _check_type(value, write)
    _check_fields(value, write)
    metadata = value.get("metadata")
    check_name(metadata.get("name") if isinstance(metadata, dict) else None, write.request.target.name)
    return value


def _check_type(value: Object, write: WriteRequest) -> None:
    api_version, kind_name = (item if isinstance(item := value.get(key), str) else "" for key in ("apiVersion", "kind"))
    if (api_version, kind_name) != (write.request.target.api_version, write.kind.kind):
        group, _, version = api_version.rpartition("/")
        raise bad_request(f"invalid object type: {group}/{version}, Kind={kind_name}")


def _check_fields(value: Object, write: WriteRequest) -> None:
    """Reject unknown fields regardless of the field validation, as the API server does for an apply."""
    version = write.api.release.version
    try:
        decode(value, write.type_name, StrictDecoding(version))
    except TypeMismatch as error:
        raise _no_typed_patch(value, write, str(error)) from None
    paths = undeclared_fields(value, SchemaField(write.type_name), version)
    unknown = [f"{path}: field not declared in schema" for path in paths]
    if unknown:
        raise _no_typed_patch(value, write, "\n  ".join(["errors:", *unknown]) if len(unknown) > 1 else unknown[0])
    if (repeated := next(repetitions(value, write.type_name), None)) is not None:
        *path, item = repeated
        raise _no_typed_patch(
            value, write, f"{format_path(tuple(path))}: duplicate entries for key {format_path((item,))}"
        )


def _no_typed_patch(value: Object, write: WriteRequest, cause: str) -> StatusError:
    metadata = value.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    name, namespace = (item if isinstance(item := metadata.get(key), str) else "" for key in ("name", "namespace"))
    group, _, version = write.request.target.api_version.rpartition("/")
    what = f"({namespace}/{name}; {group}/{version}, Kind={write.kind.kind})"
    return StatusError(500, "", f"failed to create typed patch object {what}: {cause}")
