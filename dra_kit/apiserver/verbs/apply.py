"""Server-side apply."""

from __future__ import annotations

from typing import Any

from dra_kit.apiserver.answers import Refusal, bad_request, conflict, not_found
from dra_kit.apiserver.api import Answer
from dra_kit.apiserver.managed import ApplyConflict, after_apply, entries, managers_of
from dra_kit.apiserver.patches.fieldsets import repetitions, shown
from dra_kit.apiserver.verbs.bodies import parse_yaml, typed
from dra_kit.apiserver.verbs.write import Write, change, create_object, require_create
from dra_kit.kubernetes.manifests.files import UnreadableText
from dra_kit.kubernetes.resource.field_errors import go_quote
from dra_kit.kubernetes.resource.schema.decode import StrictDecoding, TypeMismatch, decode, json_type
from dra_kit.kubernetes.values.json import Object


async def apply(write: Write) -> Answer:
    """Apply: create the object, or merge the configuration into it.

    Raises:
        Refusal: 409 for fields that others own, and all that a create or update may raise.
    """
    api, kind, request, options = write.api, write.kind, write.request, write.options
    target = request.target
    context = api.context(request)
    config = configuration(write)
    decoded = typed(config, request, kind, options.field_validation, context)
    if decoded["metadata"].get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    stored = api.storage.get(kind.resource, kind.key(target.namespace, target.name))
    if stored is None and target.subresource:
        raise not_found(kind.group, kind.plural, target.name)
    uid = decoded["metadata"].get("uid")
    if stored is None and uid:
        cause = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
        raise conflict(kind.group, kind.plural, target.name, cause)
    live = {} if stored is None else api.wire(kind, stored.object, target.api_version)
    writer = write.manager("Apply", context.now)
    try:
        applied = after_apply(
            live, _written(write, mentioned(config, decoded)), write.type_name, writer,
            managers_of(live) if live else [], force=options.force,
        )  # fmt: skip
    except ApplyConflict as error:
        raise conflicting(error) from None
    wire = typed(applied.obj, request, kind, "Ignore", context)
    managed_fields = entries(applied.managers)
    if stored is None:
        version = wire["metadata"].pop("resourceVersion", "")  # there is none yet that it could mean
        if version and not version.isdecimal():
            raise Refusal(500, "", f"strconv.ParseUint: parsing {go_quote(version)}: invalid syntax")
        require_create(write, target.name)
        return await create_object(write, wire, context, managed_fields)
    if decoded["metadata"].get("resourceVersion"):
        wire["metadata"]["resourceVersion"] = decoded["metadata"]["resourceVersion"]
    return await change(write, stored, wire, context, managed_fields)


def conflicting(error: ApplyConflict) -> Refusal:
    """Return 409 for fields that other managers own."""
    return Refusal(409, "Conflict", str(error), {"causes": error.causes()})


def _written(write: Write, config: Object) -> Object:
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


def configuration(write: Write) -> Object:
    """Return the configuration that is applied, as it was sent.

    Raises:
        Refusal: 400 or 500, it is none of the kind that the path names.
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
    _check_name(value, write)
    return value


def _check_type(value: Object, write: Write) -> None:
    api_version, kind_name = (item if isinstance(item := value.get(key), str) else "" for key in ("apiVersion", "kind"))
    if (api_version, kind_name) != (write.request.target.api_version, write.kind.kind):
        group, _, version = api_version.rpartition("/")
        raise bad_request(f"invalid object type: {group}/{version}, Kind={kind_name}")


def _check_name(value: Object, write: Write) -> None:
    target = write.request.target
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not name:
        raise bad_request(
            f"the name of the object ({target.name} based on URL) was undeterminable: name must be provided"
        )
    if name != target.name:
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({target.name})")


def _check_fields(value: Object, write: Write) -> None:
    """Refuse fields that the schema does not have, whatever the field validation: an apply takes none."""
    strictness = StrictDecoding()
    try:
        decode(value, write.type_name, strictness)
    except TypeMismatch as error:
        raise _no_typed_patch(value, write, str(error)) from None
    if strictness.unknown:
        raise _no_typed_patch(value, write, f".{strictness.unknown[0]}: field not declared in schema")
    if (repeated := next(repetitions(value, write.type_name), None)) is not None:
        *path, item = repeated
        raise _no_typed_patch(value, write, f"{shown(tuple(path))}: duplicate entries for key {shown((item,))}")


def _no_typed_patch(value: Object, write: Write, cause: str) -> Refusal:
    metadata = value.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    name, namespace = (item if isinstance(item := metadata.get(key), str) else "" for key in ("name", "namespace"))
    group, _, version = write.request.target.api_version.rpartition("/")
    what = f"({namespace}/{name}; {group}/{version}, Kind={write.kind.kind})"
    return Refusal(500, "", f"failed to create typed patch object {what}: {cause}")
