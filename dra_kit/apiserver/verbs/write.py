"""Create and update objects: what the server sets in metadata, validation, admission, storing.

Source: k8s.io/apimachinery 0.37 ``pkg/api/validation/objectmeta.go`` and k8s.io/apiserver 0.37 ``pkg/registry/rest``.
"""

from __future__ import annotations

import uuid
from typing import Any, Final

from msgspec import Struct

from dra_kit.apiserver.api import AdmissionAttributes, Api, ApiRequest, ApiResponse
from dra_kit.apiserver.authorization import AuthorizationAttributes as Authorized
from dra_kit.apiserver.authorization import require_allowed
from dra_kit.apiserver.kinds.kind import Kind, StrategyContext, generated_name
from dra_kit.apiserver.managed_fields import FieldManager, Operation, tracked_fields
from dra_kit.apiserver.requests import WriteOptions
from dra_kit.apiserver.status_errors import (
    MODIFIED,
    StatusError,
    already_exists,
    bad_request,
    conflict,
    invalid_object,
    not_found,
)
from dra_kit.apiserver.storage import StoredObject
from dra_kit.apiserver.verbs.decoding import read_object
from dra_kit.kubernetes.release import Change, Release
from dra_kit.kubernetes.resource.field_errors import FieldError, forbidden, go_quote, invalid
from dra_kit.kubernetes.resource.new_object import apply_defaults
from dra_kit.kubernetes.resource.validation.fields import validate_object_meta
from dra_kit.kubernetes.values.json import Object


class WriteRequest(Struct, frozen=True):
    """One write."""

    api: Api
    kind: Kind
    request: ApiRequest
    options: WriteOptions

    @property
    def subresource(self) -> str:
        """The subresource of the path, empty for none; only ``status`` is treated specially here."""
        return self.request.target.subresource

    @property
    def type_name(self) -> str:
        """The type of the request's version."""
        return self.kind.type_of(self.request.target.api_version)

    def manager(self, operation: Operation, time: str) -> FieldManager:
        """Return the writer, without fields."""
        version = self.request.target.api_version
        return FieldManager(self.options.field_manager, operation, version, self.subresource, frozenset(), time)

    def invalid(self, name: str, errors: list[FieldError]) -> None:
        """Raise if there are errors."""
        if errors:
            raise invalid_object(self.kind.storage_api_version.rpartition("/")[0], self.kind.kind, name, errors)

    def attributes(self, operation: str, obj: Object | None, old: Object | None) -> AdmissionAttributes:
        """Return the write for admission plugins."""
        return AdmissionAttributes(self.api, self.kind, self.request, self.options.dry_run, operation, obj, old)

    def answer(self, stored: StoredObject | Object, context: StrategyContext, code: int = 200) -> ApiResponse:
        """Return the written object in the request's version."""
        api_version = self.request.target.api_version
        if isinstance(stored, StoredObject):
            body, obj = self.api.encoded(self.kind, stored, api_version), stored.object
        else:
            body, obj = self.api.encoded_wire(self.kind, stored, api_version), stored
        return ApiResponse(body, code, self.kind, [obj], context.warnings)


async def create(api: Api, kind: Kind, request: ApiRequest) -> ApiResponse:
    """Create an object by a POST to a collection.

    Raises:
        StatusError: the object is not created.
    """
    options = WriteOptions.parse(request.query, "CreateOptions", request.agent)
    context = api.context(request)
    obj = read_object(request, kind, options.field_validation, context)
    return await create_object(WriteRequest(api, kind, request, options), obj, context)


async def create_object(
    write: WriteRequest, obj: Object, context: StrategyContext, managed_fields: list[Object] | None = None
) -> ApiResponse:
    """Create a decoded object of the request's version; without ``managed_fields`` the writer owns what it writes."""
    api, kind, request = write.api, write.kind, write.request
    api_version = request.target.api_version
    apply_defaults(obj, kind.type_of(api_version), api.release.version)
    kind.strategy.default(obj, context)
    if managed_fields is None:
        # a create does not own status fields of a kind with a status subresource, even if the status is stored
        written = {key: value for key, value in obj.items() if key != "status" or not kind.status}
        written["metadata"] = {key: value for key, value in obj["metadata"].items() if key not in _SET_BY_DELETION}
        managed_fields = tracked_fields(
            None, written, write.type_name, write.manager("Update", context.now), api.release.version
        )
    obj = api.to_storage(kind, obj, api_version)
    _set_namespace(obj, kind, request)
    context.warnings += deduplicate_owners(obj)
    api.require_namespace(kind, request, obj["metadata"].get("name") or "")
    kind.strategy.admit(obj, None, context, "")
    obj = await api.admission.mutate(write.attributes("CREATE", obj, None), context.warnings)
    _set_namespace(obj, kind, request)  # webhooks may have changed it
    kind.strategy.permit(obj, None, context)
    meta = obj["metadata"]
    if meta.get("resourceVersion") not in {None, "", "0"}:
        raise StatusError(500, "", "resourceVersion should not be set on objects to be created")
    meta.pop("resourceVersion", None)
    fill_for_create(obj, kind, context.now)
    kind.strategy.prepare_for_create(obj, context)
    errors = validate(obj, kind, context.release)
    errors += kind.strategy.validate(obj, context)
    write.invalid(meta.get("name") or "", kind.strategy.reported(errors, context))
    context.warnings += kind.strategy.warnings(obj, None, context)
    _set_managed_fields(obj, managed_fields)
    obj = api.pruned(kind, obj)
    kind.strategy.admit_valid(obj, context)
    await api.admission.review(write.attributes("CREATE", obj, None), context.warnings)
    name = obj["metadata"]["name"]
    key = kind.key(request.target.namespace, name)
    present = api.storage.get(kind.resource, key)
    if present is not None:
        deleted = "deletionTimestamp" in present.object["metadata"]
        generated = bool(obj["metadata"].get("generateName"))
        raise already_exists(kind.group, kind.plural, name, deleted=deleted, generated=generated)
    if write.options.dry_run:
        return write.answer(obj, context, 201)
    return write.answer(api.storage.create(kind.resource, key, obj), context, 201)


def _set_namespace(obj: Object, kind: Kind, request: ApiRequest) -> None:
    if kind.namespaced:
        check_namespace(obj, request)
        obj["metadata"]["namespace"] = request.target.namespace
    else:
        obj["metadata"].pop("namespace", None)


def check_namespace(obj: Object, request: ApiRequest) -> None:
    """Reject an object of another namespace than that of the path.

    Raises:
        StatusError: 400.
    """
    if obj["metadata"].get("namespace") not in {None, "", request.target.namespace}:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")


async def update(api: Api, kind: Kind, request: ApiRequest) -> ApiResponse:
    """Update an object or its status by a PUT.

    Raises:
        StatusError: the object is not changed.
    """
    options = WriteOptions.parse(request.query, "UpdateOptions", request.agent)
    context = api.context(request)
    wire = read_object(request, kind, options.field_validation, context)
    name = request.target.name
    check_name(wire["metadata"].get("name"), name)
    key = kind.key(request.target.namespace, name)
    stored = api.storage.get(kind.resource, key)
    write = WriteRequest(api, kind, request, options)
    if stored is None:
        if kind.create_on_update and not request.target.subresource:
            require_create(write, name)
            return await create_object(write, wire, context)
        raise not_found(kind.group, kind.plural, name)
    uid, old_uid = wire["metadata"].get("uid"), stored.object["metadata"]["uid"]
    if uid and uid != old_uid:
        raise precondition_failed(kind, key, "UID", uid, old_uid)
    return await replace_object(write, stored, wire, context)


def check_name(given: Any, expected: str) -> None:
    """Reject an object whose name is not that of the path.

    Raises:
        StatusError: 400.
    """
    if not given:
        raise bad_request(f"the name of the object ({expected} based on URL) was undeterminable: name must be provided")
    if given != expected:
        raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({expected})")


def require_create(write: WriteRequest, name: str) -> None:
    """Reject an update or apply that creates an object if the user may not create it.

    Raises:
        StatusError: 403.
    """
    kind, request = write.kind, write.request
    attributes = Authorized("create", kind.group, kind.plural, namespace=request.target.namespace, name=name)
    require_allowed(write.api.rbac, request.user, attributes)


def precondition_failed(kind: Kind, key: str, what: str, given: str, real: str) -> StatusError:
    """Return a 409 with the message of the storage layer, as the API server does."""
    cause = (
        f"StorageError: invalid object, Code: 4, Key: /registry/{kind.plural}/{key}, ResourceVersion: 0, "
        f"AdditionalErrorMsg: Precondition failed: {what} in precondition: {given}, {what} in object meta: {real}"
    )
    return conflict(kind.group, kind.plural, key.rpartition("/")[2], cause)


async def replace_object(
    write: WriteRequest,
    stored: StoredObject,
    wire: Object,
    context: StrategyContext,
    managed_fields: list[Object] | None = None,
) -> ApiResponse:
    """Replace a stored object by a decoded one of the request's version.

    Without ``managed_fields``, those of an apply, the writer owns what it changes.

    Raises:
        StatusError: 409 when the object changed in the meantime, or the object is not valid.
    """
    api, kind, request = write.api, write.kind, write.request
    api_version = request.target.api_version
    old = stored.object
    name = old["metadata"]["name"]
    apply_defaults(wire, kind.type_of(api_version), api.release.version)
    kind.strategy.default(wire, context)
    if managed_fields is None:
        before = api.wire(kind, old, api_version)
        managed_fields = _tracked(write, before, wire, context)
    obj = api.to_storage(kind, wire, api_version)
    _set_namespace(obj, kind, request)
    context.warnings += deduplicate_owners(obj)
    _check_version(obj, stored, kind, write.request.target.version)
    kind.strategy.admit(obj, old, context, write.subresource)
    obj = await api.admission.mutate(write.attributes("UPDATE", obj, old), context.warnings)
    _set_namespace(obj, kind, request)  # webhooks may have changed it
    if not write.subresource:
        kind.strategy.permit(obj, old, context)
    sent = api.pruned(kind, obj) if kind.strategy.counts_dropped else None
    obj = _prepared(write, obj, old, context)
    fill_for_update(obj, old)
    errors = validate_update(obj, old, api.release) + validate(obj, kind, context.release)
    if write.subresource == "status":
        errors += kind.strategy.validate_status(obj, old, context)
    else:
        errors += kind.strategy.validate_update(obj, old, context)
    write.invalid(name, kind.strategy.reported(errors, context))
    if write.subresource != "status":
        context.warnings += kind.strategy.warnings(obj, old, context)
    obj["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
    _set_managed_fields(obj, managed_fields)
    obj = api.pruned(kind, obj)
    counted = obj if sent is None else sent
    if kind.generation and write.subresource != "status" and not kind.strategy.same_spec(counted, old, context):
        obj["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
    kind.strategy.admit_valid(obj, context)
    await api.admission.review(write.attributes("UPDATE", obj, old), context.warnings)
    return _store(write, stored, obj, context)


def _set_managed_fields(obj: Object, managed_fields: list[Object] | None) -> None:
    if managed_fields:
        obj["metadata"]["managedFields"] = managed_fields
    else:
        obj["metadata"].pop("managedFields", None)


def _tracked(write: WriteRequest, before: Object, wire: Object, context: StrategyContext) -> list[Object] | None:
    """Return managed fields after an update; parts outside the subresource count as unchanged."""
    if write.subresource == "status":
        metadata, owned = wire["metadata"], write.kind.strategy.metadata_owned(context)
        taken = {name: metadata[name] for name in ("managedFields", *owned) if name in metadata}
        wire = {**before, "status": wire.get("status"), "metadata": {**before["metadata"], **taken}}
    elif write.kind.status and "status" in before:
        wire = {**wire, "status": before["status"]}
    writer = write.manager("Update", context.now)
    return tracked_fields(before, wire, write.type_name, writer, write.api.release.version)


def _check_version(obj: Object, stored: StoredObject, kind: Kind, served: str) -> None:
    version = obj["metadata"].get("resourceVersion") or "0"
    if not version.isdecimal():
        raise StatusError(500, "", f'strconv.ParseUint: parsing "{version}": invalid syntax')
    if version == "0" and not kind.unconditional_update and served not in kind.unconditional_versions:
        error = invalid("metadata.resourceVersion", 0, "must be specified for an update")
        raise invalid_object(kind.group, kind.plural, stored.object["metadata"]["name"], [error])
    if int(version) not in {0, stored.revision}:
        raise conflict(kind.group, kind.plural, stored.object["metadata"]["name"], MODIFIED)


def _prepared(write: WriteRequest, obj: Object, old: Object, context: StrategyContext) -> Object:
    strategy = write.kind.strategy
    if write.subresource != "status":
        strategy.prepare_for_update(obj, old, context)
        return obj
    meta = dict(old["metadata"])
    for field in ("uid", "resourceVersion", "managedFields", *strategy.metadata_with_status):
        if field in obj["metadata"]:
            meta[field] = obj["metadata"][field]
        else:
            meta.pop(field, None)
    changed = {**old, "metadata": meta, "status": obj.get("status")}
    strategy.prepare_for_status(changed, old, context)
    return changed


def _store(write: WriteRequest, stored: StoredObject, obj: Object, context: StrategyContext) -> ApiResponse:
    api, kind = write.api, write.kind
    meta = obj["metadata"]
    key = kind.key(meta.get("namespace", ""), meta["name"])
    if api.storage.get(kind.resource, key) is not stored:
        raise conflict(kind.group, kind.plural, meta["name"], MODIFIED)
    finished = (
        "deletionTimestamp" in meta
        and not meta.get("finalizers")
        and not meta.get("deletionGracePeriodSeconds")
        and kind.strategy.removable(obj)
    )
    if finished:
        if not write.options.dry_run:
            deleted = api.storage.delete(kind.resource, key)
            if api.release.has(Change.LAST_UPDATES_HAVE_VERSIONS_OF_DELETIONS):
                meta["resourceVersion"] = str(deleted.revision)
        return write.answer(obj, context)
    if obj == stored.object:
        return write.answer(stored, context)
    if write.options.dry_run:
        return write.answer(obj, context)
    return write.answer(api.storage.update(kind.resource, key, obj), context)


IMMUTABLE: Final = "field is immutable"


def deduplicate_owners(obj: Object) -> list[str]:
    """Remove repeated owner references; return the warning about them."""
    metadata = obj["metadata"]
    distinct: list[Any] = []
    repeated: dict[str, None] = {}
    for owner in metadata.get("ownerReferences") or ():
        if owner in distinct:
            repeated[str(owner.get("uid") or "")] = None
        else:
            distinct.append(owner)
    if not repeated:
        return []
    metadata["ownerReferences"] = distinct
    warning = (
        ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may "
        "reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: "
    )
    return [warning + ",".join(repeated)]


_SET_BY_DELETION: Final = ("deletionTimestamp", "deletionGracePeriodSeconds")


def fill_for_create(obj: Object, kind: Kind, now: str) -> None:
    """Set the fields that only the server sets."""
    metadata = obj["metadata"]
    for name in (*_SET_BY_DELETION, "selfLink", "managedFields"):
        metadata.pop(name, None)
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = now
    if kind.generation:
        metadata["generation"] = 1
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = generated_name(metadata["generateName"])


def fill_for_update(obj: Object, old: Object) -> None:
    """Copy from the old object the fields that clients cannot change."""
    metadata, before = obj["metadata"], old["metadata"]
    for name in ("generation", "selfLink", "creationTimestamp"):
        _take(metadata, before, name)
    for name in _SET_BY_DELETION:
        if name in before:
            _take(metadata, before, name)
    if not metadata.get("uid"):
        _take(metadata, before, "uid")


def _take(metadata: Object, before: Object, name: str) -> None:
    if name in before:
        metadata[name] = before[name]
    else:
        metadata.pop(name, None)


def validate(obj: Object, kind: Kind, release: Release) -> list[FieldError]:
    """Check the metadata of new and changed objects."""
    problems = kind.strategy.name_problems
    return validate_object_meta(obj["metadata"], namespaced=kind.namespaced, name_problems=problems, release=release)


def validate_update(obj: Object, old: Object, release: Release) -> list[FieldError]:
    """Check changed metadata: identity is immutable, and a deletion that has begun cannot be blocked."""
    metadata, before = obj["metadata"], old["metadata"]
    errors: list[FieldError] = []
    if "deletionTimestamp" in before:
        added = [item for item in metadata.get("finalizers") or [] if item not in (before.get("finalizers") or [])]
        if added:
            found = f"[]string{{{', '.join(map(go_quote, added))}}}"  # as Go prints it
            detail = f"no new finalizers can be added if the object is being deleted, found new finalizers {found}"
            errors.append(forbidden("metadata.finalizers", detail))
    identity = ("name", "namespace", "uid", *_SET_BY_DELETION)
    changed = [name for name in identity if metadata.get(name) != before.get(name)]
    shown = {} if release.has(Change.IMMUTABLE_METADATA_IS_NOT_SHOWN) else metadata
    return errors + [invalid(f"metadata.{name}", shown.get(name), IMMUTABLE) for name in changed]
