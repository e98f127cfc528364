"""The subresource ``scale``.

Source: Kubernetes 1.37 ``pkg/registry/apps/*/storage`` and k8s.io/apimachinery 0.37 ``pkg/util/managedfields``,
``scalehandler.go``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from dra_kit.apiserver.status_errors import invalid_object, method_not_allowed
from dra_kit.apiserver.storage import StoredObject
from dra_kit.apiserver.verbs.decoding import decode_typed, read_object
from dra_kit.apiserver.verbs.patch import APPLY, configuration, conflicting, mentioned, patch_stored, write_of
from dra_kit.apiserver.verbs.write import WriteRequest, check_name, check_namespace, precondition_failed, replace_object
from dra_kit.kubernetes.resource.field_errors import NOT_NEGATIVE, invalid
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
    if request.method == "HEAD":
        raise method_not_allowed()
    if request.method == "GET":
        return _answer(api.stored(workload, request.target).object)
    # what the client sends and sees is of another group than the path
    seen = replace(request, target=replace(request.target, group=_SCALE.group, version="v1"))
    if request.method == "PUT":
        options = WriteOptions.parse(request.query, "UpdateOptions", request.agent)
        return await _Scale(workload, request, WriteRequest(api, _SCALE, seen, options)).update()
    write = write_of(api, _SCALE, seen)
    scale = _Scale(workload, request, write)
    if request.content_type == APPLY:
        return await scale.apply()
    return await patch_stored(write, scale.stored, scale.shown, scale.change)


class _Scale:
    """A write of the scale of one workload, as of a separate object."""

    def __init__(self, workload: Kind, request: ApiRequest, write: WriteRequest) -> None:
        self._workload, self._request, self._write = workload, request, write

    def stored(self) -> StoredObject:
        return self._write.api.stored(self._workload, self._request.target)

    def shown(self, stored: StoredObject) -> Object:
        """Return the scale with those of the workload's managers that own the number, in terms of the scale."""
        scale = _scale_of(stored.object)
        scale["metadata"]["managedFields"] = entries(_to_scale(managers_of(stored.object)))
        return scale

    async def update(self) -> ApiResponse:
        write = self._write
        context = write.api.context(self._request)
        stored = self.stored()
        wire = read_object(write.request, _SCALE, write.options.field_validation, context)
        check_name(wire["metadata"].get("name"), self._request.target.name)
        return await self.change(stored, wire, context)

    async def change(self, stored: StoredObject, wire: Object, context: StrategyContext) -> ApiResponse:
        """Set the workload's replicas to those of a sent or patched scale."""
        writer = self._write.manager("Update", context.now)
        managed = tracked_fields(self.shown(stored), wire, _SCALE.stored_type, writer)
        return await self._store(stored, wire, managers_of({"metadata": {"managedFields": managed}}), context)

    async def apply(self) -> ApiResponse:
        write = self._write
        context = write.api.context(self._request)
        stored = self.stored()
        config = configuration(write)
        decoded = decode_typed(config, write.request, _SCALE, write.options.field_validation, context)
        live = self.shown(stored)
        try:
            applied = after_apply(
                live, mentioned(config, decoded), _SCALE.stored_type, write.manager("Apply", context.now),
                managers_of(live), force=write.options.force,
            )  # fmt: skip
        except ApplyConflict as error:
            raise conflicting(error) from None
        wire = decode_typed(applied.obj, write.request, _SCALE, "Ignore", context)
        wire["metadata"]["resourceVersion"] = decoded["metadata"].get("resourceVersion", "")
        return await self._store(stored, wire, applied.managers, context)

    async def _store(
        self, stored: StoredObject, scale: Object, managers: list[FieldManager], context: StrategyContext
    ) -> ApiResponse:
        api, kind, target = self._write.api, self._workload, self._request.target
        metadata = scale["metadata"]
        replicas = (scale.get("spec") or {}).get("replicas", 0)
        check_namespace(scale, self._request)
        uid, real = metadata.get("uid"), stored.object["metadata"]["uid"]
        if uid and uid != real:
            raise precondition_failed(kind, kind.key(target.namespace, target.name), "UID", uid, real)
        if replicas < 0:
            error = invalid("spec.replicas", replicas, NOT_NEGATIVE)
            raise invalid_object(_SCALE.group, _SCALE.kind, target.name, [error])
        workload = api.wire(kind, stored.object, target.api_version)
        workload = {
            **workload,
            "metadata": {**workload["metadata"], "resourceVersion": metadata.get("resourceVersion") or ""},
            "spec": {**workload["spec"], "replicas": replicas},
        }
        managed = entries(_to_workload(managers_of(stored.object), managers, target.api_version))
        write = WriteRequest(api, kind, self._request, self._write.options)
        answer = await replace_object(write, stored, workload, context, managed)
        assert answer.items is not None  # noqa: S101 - that of a write has its object
        return _answer(answer.items[0], context.warnings)


def _answer(workload: Object, warnings: Sequence[str] = ()) -> ApiResponse:
    scale = _scale_of(workload)
    return ApiResponse(scale, kind=_SCALE, items=[scale], warnings=warnings)


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
