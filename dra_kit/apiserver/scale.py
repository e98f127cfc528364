"""The subresource ``scale``.

Source: Kubernetes 1.37 ``pkg/registry/apps/*/storage`` and k8s.io/apimachinery 0.37 ``pkg/util/managedfields``,
``scalehandler.go``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from dra_kit.apiserver.api import Api, ApiRequest, ApiResponse
from dra_kit.apiserver.kinds.kind import AGE, Column, Kind, StrategyContext, number_cell, text_cell, written_selector
from dra_kit.apiserver.managed_fields import (
    ApplyConflict,
    FieldManager,
    after_apply,
    entries,
    managers_of,
    tracked_fields,
)
from dra_kit.apiserver.requests import WriteOptions
from dra_kit.apiserver.status_errors import bad_request, invalid_object, method_not_allowed, not_found
from dra_kit.apiserver.storage import StoredObject
from dra_kit.apiserver.verbs.decoding import decode_typed, read_object
from dra_kit.apiserver.verbs.patch import APPLY, configuration, conflicting, mentioned, patch_target, write_of
from dra_kit.apiserver.verbs.write import WriteRequest, precondition_failed, replace_object
from dra_kit.kubernetes.resource.field_errors import NOT_NEGATIVE
from dra_kit.kubernetes.resource.field_errors import invalid as invalid_field
from dra_kit.kubernetes.values.json import Object

_VERSION: Final = "autoscaling/v1"
_REPLICAS: Final = ("f:spec", "f:replicas")
_SHOWN: Final = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
_SCALE: Final = Kind(
    "autoscaling", "scales", "Scale", True, {"v1": "autoscaling/v1.Scale"},
    columns=(Column("Name", text_cell("metadata.name")),
             Column("Desired", number_cell("spec.replicas"), type="integer"),
             Column("Available", number_cell("status.replicas"), type="integer"), AGE),
)  # fmt: skip


async def serve_scale(api: Api, workload: Kind, request: ApiRequest) -> ApiResponse:
    """Get, update, patch or apply the scale of a workload.

    Raises:
        StatusError: the workload does not exist, or the request is invalid.
    """
    scale = _Scale(api, workload, request)
    if request.method == "HEAD":
        raise method_not_allowed()
    if request.method == "GET":
        return scale.answer(scale.stored().object)
    if request.method == "PUT":
        return await scale.update()
    return await scale.patch()


class _Scale:
    """The scale of one workload, as a separate object."""

    def __init__(self, api: Api, workload: Kind, request: ApiRequest) -> None:
        self._api, self._workload, self._request = api, workload, request
        target = request.target
        # what the client sends and sees is of another group than the path
        self._seen = replace(request, target=replace(target, group=_SCALE.group, version="v1"))
        self._options = WriteOptions(dry_run=False, field_manager="", field_validation="", force=False)

    def stored(self) -> StoredObject:
        kind, target = self._workload, self._request.target
        stored = self._api.storage.get(kind.resource, kind.key(target.namespace, target.name))
        if stored is None:
            raise not_found(kind.group, kind.plural, target.name)
        return stored

    def shown(self, stored: StoredObject) -> Object:
        """Return the scale with those of the workload's managers that own the number, in terms of the scale."""
        scale = _scale_of(stored.object)
        scale["metadata"]["managedFields"] = entries(_to_scale(managers_of(stored.object)))
        return scale

    async def update(self) -> ApiResponse:
        self._options = WriteOptions.parse(self._request.query, "UpdateOptions", self._request.agent)
        context = self._api.context(self._request)
        stored = self.stored()
        wire = read_object(self._seen, _SCALE, self._options.field_validation, context)
        name, given = self._request.target.name, wire["metadata"].get("name")
        if not given:
            raise bad_request(f"the name of the object ({name} based on URL) was undeterminable: name must be provided")
        if given != name:
            raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({name})")
        return await self.change(stored, wire, context)

    async def patch(self) -> ApiResponse:
        write = write_of(self._api, _SCALE, self._seen)
        self._options = write.options
        if self._request.content_type == APPLY:
            return await self._apply(write)
        return await patch_target(write, self)

    async def change(self, stored: StoredObject, wire: Object, context: StrategyContext) -> ApiResponse:
        """Set the workload's replicas to those of a sent or patched scale."""
        writer = WriteRequest(self._api, _SCALE, self._seen, self._options).manager("Update", context.now)
        managed = tracked_fields(self.shown(stored), wire, _SCALE.stored_type, writer)
        return await self._store(stored, wire, managers_of({"metadata": {"managedFields": managed}}), context)

    async def _apply(self, write: WriteRequest) -> ApiResponse:
        context = self._api.context(self._request)
        stored = self.stored()
        config = configuration(write)
        decoded = decode_typed(config, self._seen, _SCALE, self._options.field_validation, context)
        live = self.shown(stored)
        try:
            applied = after_apply(
                live, mentioned(config, decoded), _SCALE.stored_type, write.manager("Apply", context.now),
                managers_of(live), force=self._options.force,
            )  # fmt: skip
        except ApplyConflict as error:
            raise conflicting(error) from None
        wire = decode_typed(applied.obj, self._seen, _SCALE, "Ignore", context)
        wire["metadata"]["resourceVersion"] = decoded["metadata"].get("resourceVersion", "")
        return await self._store(stored, wire, applied.managers, context)

    async def _store(
        self, stored: StoredObject, scale: Object, managers: list[FieldManager], context: StrategyContext
    ) -> ApiResponse:
        kind, target = self._workload, self._request.target
        metadata = scale["metadata"]
        replicas = (scale.get("spec") or {}).get("replicas", 0)
        if metadata.get("namespace", target.namespace) != target.namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        uid, real = metadata.get("uid"), stored.object["metadata"]["uid"]
        if uid and uid != real:
            raise precondition_failed(kind, kind.key(target.namespace, target.name), "UID", uid, real)
        if replicas < 0:
            error = invalid_field("spec.replicas", replicas, NOT_NEGATIVE)
            raise invalid_object(_SCALE.group, _SCALE.kind, target.name, [error])
        workload = self._api.wire(kind, stored.object, target.api_version)
        workload = {
            **workload,
            "metadata": {**workload["metadata"], "resourceVersion": metadata.get("resourceVersion") or ""},
            "spec": {**workload["spec"], "replicas": replicas},
        }
        managed = entries(_to_workload(managers_of(stored.object), managers, target.api_version))
        write = WriteRequest(self._api, kind, self._request, self._options)
        answer = await replace_object(write, stored, workload, context, managed)
        assert answer.items is not None  # noqa: S101 - that of a write has its object
        return self.answer(answer.items[0], context)

    def answer(self, workload: Object, context: StrategyContext | None = None) -> ApiResponse:
        scale = _scale_of(workload)
        return ApiResponse(scale, kind=_SCALE, items=[scale], warnings=context.warnings if context else ())


def _scale_of(workload: Object) -> Object:
    metadata, spec, status = workload["metadata"], workload["spec"], workload.get("status") or {}
    wanted = spec.get("replicas", 0)
    return {
        "kind": _SCALE.kind,
        "apiVersion": _VERSION,
        "metadata": {name: metadata[name] for name in _SHOWN if name in metadata},
        "spec": {"replicas": wanted} if wanted else {},
        "status": {"replicas": status.get("replicas", 0), "selector": written_selector(spec.get("selector"))},
    }


def _to_scale(managers: Iterable[FieldManager]) -> list[FieldManager]:
    return [
        replace(manager, api_version=_VERSION, fields=frozenset({_REPLICAS}))
        for manager in managers
        if _REPLICAS in manager.fields
    ]


def _to_workload(
    managers: Iterable[FieldManager], of_scale: Iterable[FieldManager], api_version: str
) -> list[FieldManager]:
    """Return the managers of a workload after its scale was written; the scale decides who owns the replica count."""
    before, owners = list(managers), [owner for owner in of_scale if _REPLICAS in owner.fields]
    retained = [
        manager
        if _REPLICAS not in manager.fields or any(manager.same(owner) for owner in owners)
        else replace(manager, fields=manager.fields - {_REPLICAS})
        for manager in before
    ]
    # a new manager has no time, nor does one that wrote the replica count by a write other than apply
    added = [
        replace(owner, api_version=api_version, fields=frozenset({_REPLICAS}), time="")
        for owner in owners
        if not any(owner.same(manager) for manager in before)
    ]
    return [*retained, *added]
