"""Delete one object or a collection: preconditions, finalizers, grace periods, orphans."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import Struct

from dra_kit.apiserver.api import AdmissionAttributes, Api, ApiRequest, ApiResponse, success, time_text
from dra_kit.apiserver.kinds.kind import Kind, StrategyContext
from dra_kit.apiserver.status_errors import (
    StatusError,
    bad_request,
    conflict,
    forbidden_object,
    invalid_object,
    subject,
)
from dra_kit.apiserver.storage import StoredObject
from dra_kit.apiserver.verbs.decoding import BodyParseError, parse_body
from dra_kit.apiserver.verbs.read import ListSelection, list_response
from dra_kit.kubernetes.release import Change, Release
from dra_kit.kubernetes.resource.field_errors import ErrorKind, FieldError, invalid, unsupported
from dra_kit.kubernetes.resource.schema.types import TypeMismatch, decode
from dra_kit.kubernetes.values.json import Object

ORPHAN: Final = "orphan"
FOREGROUND: Final = "foregroundDeletion"
_POLICIES: Final = ("Foreground", "Background", "Orphan")


class DeleteOptions(Struct, frozen=True):
    """``metav1.DeleteOptions``."""

    dry_run: bool = False
    grace_seconds: int | None = None
    policy: str = ""
    uid: str | None = None
    resource_version: str | None = None

    @classmethod
    def parse(cls, request: ApiRequest, release: Release) -> DeleteOptions:
        """Read the options from the body, or from the query if the body is empty.

        Raises:
            StatusError: 400 or 422; 500 for a body that is not DeleteOptions, before Kubernetes 1.35.
        """
        value: Any = {}
        if request.body:
            try:
                value = parse_body(request.body, request.content_type, {"DeleteOptions": "meta/v1.DeleteOptions"})
                if value is not None and not isinstance(value, dict):
                    raise _unreadable("couldn't get version/kind; json parse error: the body is not an object", release)
                value = decode(value or {}, "meta/v1.DeleteOptions", release.version)
                if value.get("kind", "DeleteOptions") != "DeleteOptions":
                    text = f'no kind "{value["kind"]}" is registered for version "{value.get("apiVersion")}"'
                    raise _unreadable(text, release)
            except (BodyParseError, TypeMismatch) as error:
                raise _unreadable(str(error), release) from None
        else:
            query = request.query
            value = {
                "gracePeriodSeconds": query.number("gracePeriodSeconds"),
                "propagationPolicy": query.text("propagationPolicy") or None,
                "dryRun": list(query.values.get("dryRun", ())),
                "orphanDependents": query.flag("orphanDependents") if "orphanDependents" in query.values else None,
            }
        return cls._checked(value, request)

    @classmethod
    def _checked(cls, value: Object, request: ApiRequest) -> DeleteOptions:
        errors: list[FieldError] = []
        policy, orphan = value.get("propagationPolicy"), value.get("orphanDependents")
        if policy is not None and orphan is not None:
            detail = "orphanDependents and deletionPropagation cannot be both set"
            errors.append(invalid("propagationPolicy", policy, detail))
        if policy is not None and policy not in _POLICIES:
            errors.append(unsupported("propagationPolicy", policy, (*_POLICIES, "nil"), in_order=True))
        dry_run = value.get("dryRun") or list(request.query.values.get("dryRun", ()))
        if any(item != "All" for item in dry_run):
            errors.append(FieldError("dryRun", ErrorKind.UNSUPPORTED, dry_run, 'supported values: "All"'))
        if errors:
            raise invalid_object("meta.k8s.io", "DeleteOptions", "", errors)
        if orphan is not None:
            policy = "Orphan" if orphan else "Background"
        preconditions = value.get("preconditions") or {}
        return cls(
            bool(dry_run), value.get("gracePeriodSeconds"), policy or "", preconditions.get("uid"),
            preconditions.get("resourceVersion"),
        )  # fmt: skip


def _unreadable(text: str, release: Release) -> StatusError:
    """Return the error of a body that is not DeleteOptions."""
    return bad_request(text) if release.has(Change.UNREADABLE_OPTIONS_ARE_BAD) else StatusError(500, "", text)


async def delete(api: Api, kind: Kind, request: ApiRequest) -> ApiResponse:
    """Delete one object.

    Raises:
        StatusError: it is not deleted.
    """
    options = DeleteOptions.parse(request, api.release)
    target = request.target
    if reason := kind.strategy.undeletable(target.name):
        raise forbidden_object(kind.group, kind.plural, target.name, reason)
    stored = api.stored(kind, target)
    context = api.context(request)
    check_preconditions(options, stored, kind)
    await api.admission.review(_deletion(api, kind, request, options, stored), context.warnings)
    return _answer(api, kind, request, *delete_stored(api, kind, stored, options, context))


def _deletion(
    api: Api, kind: Kind, request: ApiRequest, options: DeleteOptions, stored: StoredObject
) -> AdmissionAttributes:
    return AdmissionAttributes(api, kind, request, options.dry_run, "DELETE", None, stored.object)


def check_preconditions(options: DeleteOptions, stored: StoredObject, kind: Kind) -> None:
    """Reject a deletion if UID or resource version differ from the preconditions.

    Raises:
        StatusError: 409.
    """
    metadata = stored.object["metadata"]
    name = metadata["name"]
    text = (
        "the {what} in the precondition ({given}) does not match the {what} in record ({real}). "
        "The object might have been {how}"
    )
    if options.uid is not None and options.uid != metadata["uid"]:
        cause = text.format(what="UID", given=options.uid, real=metadata["uid"], how="deleted and then recreated")
        raise conflict(kind.group, kind.kind, name, cause)
    given, real = options.resource_version, metadata["resourceVersion"]
    if given is not None and given != real:
        cause = text.format(what="ResourceVersion", given=given, real=real, how="modified")
        raise conflict(kind.group, kind.kind, name, cause)


def delete_stored(
    api: Api, kind: Kind, stored: StoredObject, options: DeleteOptions, context: StrategyContext
) -> tuple[Object, bool]:
    """Mark or remove an object; return it and whether it is gone."""
    obj = stored.object
    metadata = dict(obj["metadata"])
    key = kind.key(metadata.get("namespace", ""), metadata["name"])
    finalizers = _with_policy(metadata.get("finalizers") or [], options.policy)
    grace = kind.strategy.grace_period(obj, options.grace_seconds)
    gone = not finalizers and not grace and kind.strategy.removable(obj)
    if gone:
        if kind.strategy.graceful:
            obj = {**obj, "metadata": _marked(kind, metadata, 0, context.now)}
        if options.dry_run:
            return obj, True
        if kind.strategy.graceful:
            api.storage.update(kind.resource, key, obj)
        return api.storage.delete(kind.resource, key).object, True
    marked = "deletionTimestamp" in metadata
    old_grace = metadata.get("deletionGracePeriodSeconds")
    if not marked or (old_grace is not None and grace < old_grace):
        metadata = _marked(kind, metadata, grace, context.now)
    if finalizers != (metadata.get("finalizers") or []):
        metadata["finalizers"] = finalizers
    changed = kind.strategy.deleting({**obj, "metadata": metadata})
    if changed == obj or options.dry_run:
        return changed, False
    return api.storage.update(kind.resource, key, api.pruned(kind, changed)).object, False


def _marked(kind: Kind, metadata: Object, grace: int, now: str) -> Object:
    deletion = datetime.fromisoformat(now) + timedelta(seconds=grace)
    marks = {"deletionTimestamp": time_text(deletion), "deletionGracePeriodSeconds": grace}
    if "deletionTimestamp" not in metadata and kind.generation:
        marks["generation"] = metadata.get("generation", 0) + 1
    return {**metadata, **marks}


def _with_policy(finalizers: list[str], policy: str) -> list[str]:
    """Return the finalizers that make a garbage collector orphan dependents, or delete them first."""
    wanted = {"Orphan": ORPHAN, "Foreground": FOREGROUND}.get(policy)
    if not policy:
        return finalizers
    retained = [item for item in finalizers if item not in {ORPHAN, FOREGROUND}]
    return [*retained, wanted] if wanted else retained


def _answer(api: Api, kind: Kind, request: ApiRequest, obj: Object, gone: bool) -> ApiResponse:
    metadata = obj["metadata"]
    if gone and kind.deletion_status:
        details = subject(kind.group, kind.plural, metadata["name"]) | {"uid": metadata["uid"]}
        return ApiResponse(success(api.release, obj, details=details))
    return ApiResponse(api.encoded_wire(kind, obj, request.target.api_version), kind=kind, items=[obj])


async def delete_collection(api: Api, kind: Kind, request: ApiRequest) -> ApiResponse:
    """Delete all objects that the selectors match; answer with their list before the deletion.

    Raises:
        StatusError: the deletion of one object is rejected.
    """
    selection = ListSelection.of(kind, request)
    options = DeleteOptions.parse(request, api.release)
    context = api.context(request)
    found = [
        stored for _, stored in api.storage.items(kind.resource, selection.prefix) if selection.matches(stored.object)
    ]
    revision = api.storage.revision
    for stored in found:
        check_preconditions(options, stored, kind)
        try:
            await api.admission.review(_deletion(api, kind, request, options, stored), context.warnings)
        except StatusError as refusal:
            if refusal.code == 404:  # as if another client had deleted it
                continue
            raise
        metadata = stored.object["metadata"]
        current = api.storage.get(kind.resource, kind.key(metadata.get("namespace", ""), metadata["name"]))
        if current is not None:
            delete_stored(api, kind, current, options, context)
    return list_response(api, kind, request.target.api_version, {"resourceVersion": str(revision)}, found)
