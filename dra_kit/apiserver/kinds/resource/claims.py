"""ResourceClaim and ResourceClaimTemplate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from typing_extensions import override

from dra_kit.apiserver.kinds.resource.claim_authorization import status_rights
from dra_kit.apiserver.kinds.resource.versioned import ResourceStrategy
from dra_kit.apiserver.kinds.strategy import Context, StatusStrategy
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.field_errors import FieldError, forbidden
from dra_kit.kubernetes.resource.validation.claim_status import validate_claim_status
from dra_kit.kubernetes.resource.validation.claims import validate_claim_spec_update, validate_template_update
from dra_kit.kubernetes.values.json import Object

_GRANULAR: Final = "DRAResourceClaimGranularStatusAuthorization"
_ADMIN_LABEL: Final = "resource.kubernetes.io/admin-access"
_ADMIN_NAMESPACE: Final = (
    f"admin access to devices requires the `{_ADMIN_LABEL}: true` label on the containing namespace"
)


class ClaimStrategy(ResourceStrategy, StatusStrategy):
    """ResourceClaim: the spec never changes, the status is written by schedulers, controllers and drivers."""

    kind = "ResourceClaim"

    @override
    def validate(self, obj: Object, context: Context) -> list[FieldError]:
        """Check the rules of ``resource/validation``, and who may have admin access."""
        spec = v1.ResourceClaimSpec.model_validate(obj.get("spec") or {})
        return [*_admin_access(spec, obj, context), *super().validate(obj, context)]

    @override
    def validate_update(self, obj: Object, old: Object, context: Context) -> list[FieldError]:
        """Check that the spec stays."""
        specs = (v1.ResourceClaimSpec.model_validate(item.get("spec") or {}) for item in (obj, old))
        return validate_claim_spec_update(*specs)

    @override
    def prepare_for_status(self, obj: Object, old: Object, context: Context) -> None:
        """Remove the status of devices that are no longer allocated."""
        super().prepare_for_status(obj, old, context)
        status, before = obj.get("status") or {}, old.get("status") or {}
        gone = _allocated(before) - _allocated(status)
        if gone and status.get("devices"):
            obj["status"] = {**status, "devices": [item for item in status["devices"] if _device(item) not in gone]}

    @override
    def validate_status(self, obj: Object, old: Object, context: Context) -> list[FieldError]:
        """Check the rules of ``resource/validation``."""
        before = v1.ResourceClaimStatus.model_validate(old.get("status") or {})
        claim = v1.ResourceClaim.model_validate({**obj, "status": obj.get("status") or {}})
        devices = [
            v1.AllocatedDeviceStatus.model_validate(item) for item in (obj.get("status") or {}).get("devices") or ()
        ]
        rights = status_rights(obj, old, context) if _GRANULAR in context.gates else ()
        return [*rights, *_admin_results(claim, before, context), *validate_claim_status(claim, devices, before)]


def _device(item: Object) -> tuple[str, ...]:
    return tuple(str(item.get(name) or "") for name in ("driver", "pool", "device", "shareID"))


def _allocated(status: Object) -> set[tuple[str, ...]]:
    devices = (status.get("allocation") or {}).get("devices") or {}
    return {_device(result) for result in devices.get("results") or ()}


class TemplateStrategy(ResourceStrategy):
    """ResourceClaimTemplate: the spec never changes."""

    kind = "ResourceClaimTemplate"

    @override
    def validate(self, obj: Object, context: Context) -> list[FieldError]:
        """Check the rules of ``resource/validation``, and who may have admin access."""
        return [*_admin_access(_template(obj).spec.spec, obj, context), *super().validate(obj, context)]

    @override
    def validate_update(self, obj: Object, old: Object, context: Context) -> list[FieldError]:
        """Check the rules of ``resource/validation``."""
        return validate_template_update(_template(obj), _template(old), context.gates)


def _template(obj: Object) -> v1.ResourceClaimTemplate:
    return v1.ResourceClaimTemplate.model_validate({**obj, "spec": obj.get("spec") or {}})


def _admin_access(spec: v1.ResourceClaimSpec, obj: Object, context: Context) -> Iterable[FieldError]:
    """Check that the namespace allows admin access; the path is the API server's, in templates too."""
    wanted = [
        f"spec.devices.requests[{i}].adminAccess"
        for i, request in enumerate(spec.devices.requests)
        if request.exactly is not None and request.exactly.admin_access
    ]
    return _unless_allowed(wanted, obj["metadata"]["namespace"], context)


def _admin_results(claim: v1.ResourceClaim, before: v1.ResourceClaimStatus, context: Context) -> Iterable[FieldError]:
    if claim.status.allocation is None or before.allocation is not None:
        return ()
    wanted = [
        f"status.allocation.devices.results[{i}].adminAccess"
        for i, result in enumerate(claim.status.allocation.devices.results)
        if result.admin_access
    ]
    return _unless_allowed(wanted, claim.metadata.namespace, context)


def _unless_allowed(paths: list[str], namespace: str, context: Context) -> Iterable[FieldError]:
    if not paths:
        return ()
    labels = ((context.lookup("namespaces", namespace) or {}).get("metadata") or {}).get("labels") or {}
    return [] if labels.get(_ADMIN_LABEL) == "true" else [forbidden(paths[0], _ADMIN_NAMESPACE)]
