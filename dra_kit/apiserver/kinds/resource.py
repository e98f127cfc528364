"""resource.k8s.io: slices, claims, templates, classes, taint rules and pool status requests."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from dra_kit.apiserver.kinds.ages import age
from dra_kit.apiserver.kinds.columns import NONE, number
from dra_kit.apiserver.kinds.kind import AGE, NAME, Column, Kind, readers
from dra_kit.apiserver.kinds.resource.claims import ClaimStrategy, TemplateStrategy
from dra_kit.apiserver.kinds.resource.slices import SliceStrategy
from dra_kit.apiserver.kinds.resource.versioned import GROUP, ResourceStrategy
from dra_kit.apiserver.kinds.strategy import Context, StatusStrategy, Strategy
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.field_errors import FieldError
from dra_kit.kubernetes.resource.validation.claims import validate_class
from dra_kit.kubernetes.resource.validation.slices import (
    validate_pool_status,
    validate_pool_status_request_update,
    validate_taint_rule,
    validate_taint_rule_status,
)
from dra_kit.kubernetes.values.json import Object, value_at

if TYPE_CHECKING:
    from dra_kit.kubernetes.resource.v1 import ResourcePoolStatusRequest


class ClassStrategy(ResourceStrategy):
    """DeviceClass."""

    kind = "DeviceClass"

    @override
    def name_problems(self, name: str) -> list[str]:
        """Return no problem: the rule about names is declarative, and so there is none about their prefixes."""
        return []

    @override
    def validate_update(self, obj: Object, old: Object, context: Context) -> list[FieldError]:
        """Check the rules of ``resource/validation``."""
        return validate_class(_class(obj), _class(old), context.gates)


def _class(obj: Object) -> v1.DeviceClass:
    return v1.DeviceClass.model_validate({**obj, "spec": obj.get("spec") or {}})


class TaintRuleStrategy(ResourceStrategy, StatusStrategy):
    """DeviceTaintRule."""

    kind = "DeviceTaintRule"

    @override
    def prepare_for_update(self, obj: Object, old: Object, context: Context) -> None:
        """Set the time at which another effect begins."""
        super().prepare_for_update(obj, old, context)
        taint, before = (obj.get("spec") or {}).get("taint") or {}, old["spec"].get("taint") or {}
        if taint.get("effect") != before.get("effect") and taint.get("timeAdded") == before.get("timeAdded"):
            taint["timeAdded"] = context.now

    @override
    def validate_update(self, obj: Object, old: Object, context: Context) -> list[FieldError]:
        """Check the rules of ``resource/validation``."""
        return validate_taint_rule(_rule(obj), _rule(old))

    @override
    def validate_status(self, obj: Object, old: Object, context: Context) -> list[FieldError]:
        """Check the rules of ``resource/validation``."""
        conditions = (obj.get("status") or {}).get("conditions") or ()
        return validate_taint_rule_status([v1.Condition.model_validate(item) for item in conditions])


def _rule(obj: Object) -> v1.DeviceTaintRule:
    return v1.DeviceTaintRule.model_validate({**obj, "spec": obj.get("spec") or {}})


class PoolStatusStrategy(ResourceStrategy, StatusStrategy):
    """ResourcePoolStatusRequest: neither spec nor status change once they are set."""

    kind = "ResourcePoolStatusRequest"

    @override
    def validate_update(self, obj: Object, old: Object, context: Context) -> list[FieldError]:
        """Check that the spec stays."""
        return validate_pool_status_request_update(_pool_request(obj), _pool_request(old))

    @override
    def validate_status(self, obj: Object, old: Object, context: Context) -> list[FieldError]:
        """Check that the status stays."""
        return validate_pool_status(obj.get("status"), old.get("status"))


def _pool_request(obj: Object) -> ResourcePoolStatusRequest:
    from dra_kit.kubernetes.resource.v1 import (
        ResourcePoolStatusRequest,  # an alpha kind, of which hardly any cluster has an object
    )

    return ResourcePoolStatusRequest.model_validate({**obj, "spec": obj.get("spec") or {}})


def _claim_state(claim: Object) -> str:
    status = claim.get("status") or {}
    words = ["deleted"] if "deletionTimestamp" in claim["metadata"] else []
    if status.get("allocation"):
        words.append("allocated")
    if status.get("reservedFor"):
        words.append("reserved")
    return ",".join(words if "allocated" in words else [*words, "pending"])


def _spec(*path: str) -> Callable[[Object], str]:
    return lambda obj: str(value_at(obj["spec"], path) or "")


def _met(request: Object, type_: str) -> Object | None:
    """Return a condition of a ResourcePoolStatusRequest, if it is true."""
    conditions = (request.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one.get("type") == type_ and one.get("status") == "True"), None)


def _of_pools(value: Callable[[Object], int]) -> Callable[[Object], str]:
    def cell(request: Object) -> str:
        if not request.get("status") or _met(request, "Failed"):
            return "-"
        return str(sum(map(value, request["status"].get("pools") or ())))

    return cell


def _devices(field: str) -> Callable[[Object], str]:
    return _of_pools(lambda pool: pool.get(field) or 0)


_pool_errors: Final = _of_pools(lambda pool: bool(pool.get("validationError")))


def _answered(request: Object) -> str:
    return next((name for name in ("Failed", "Complete") if _met(request, name)), "Pending")


def _completed(request: Object) -> str:
    met = _met(request, "Complete")
    return age(met.get("lastTransitionTime"), datetime.now(UTC)) if met else NONE


# deprecated in, removed in; DeviceTaintRule is younger than its group
_DEPRECATIONS: Final = {"v1beta1": ("1.35", "1.38"), "v1beta2": ("1.36", "1.39")}
_TAINT_RULE_DEPRECATIONS: Final = {"v1alpha3": ("1.36", "1.39")}


def _kind(plural: str, kind: str, strategy: Strategy, *, served: tuple[str, ...], **more: Any) -> Kind:
    deprecations = _TAINT_RULE_DEPRECATIONS if kind == "DeviceTaintRule" else _DEPRECATIONS
    deprecated = {
        version: f"{GROUP}/{version} {kind} is deprecated in v{since}+, unavailable in v{until}+"
        for version, (since, until) in deprecations.items()
        if version in served
    }
    more.setdefault("deprecated", deprecated)
    types = {version: f"resource/{version}.{kind}" for version in served}
    return Kind(GROUP, plural, kind, types=types, strategy=strategy, **more)


_V1: Final = ("v1", "v1beta2", "v1beta1")
KINDS: Final = (
    _kind("deviceclasses", "DeviceClass", ClassStrategy(), served=_V1, namespaced=False, generation=True),
    _kind("resourceclaims", "ResourceClaim", ClaimStrategy(), served=_V1, namespaced=True, status=True,
          columns=(NAME, Column("State", _claim_state), AGE)),
    _kind("resourceclaimtemplates", "ResourceClaimTemplate", TemplateStrategy(), served=_V1, namespaced=True),
    _kind("resourceslices", "ResourceSlice", SliceStrategy(), served=_V1, namespaced=False, generation=True,
          fields=readers("spec.nodeName", "spec.driver", "spec.pool.name"), own_selectors=True,
          columns=(NAME, Column("Node", _spec("nodeName")), Column("Driver", _spec("driver")),
                   Column("Pool", _spec("pool", "name")), AGE)),
    _kind("devicetaintrules", "DeviceTaintRule", TaintRuleStrategy(), served=("v1", "v1beta2", "v1alpha3"),
          namespaced=False, storage=f"{GROUP}/v1beta2", storage_type="resource/v1beta2.DeviceTaintRule", status=True,
          generation=True, unconditional_update=False, unconditional_versions=("v1beta2", "v1alpha3"),
          deletion_status=True,
          columns=(NAME, Column("Key", _spec("taint", "key")), Column("Value", _spec("taint", "value")),
                   Column("Effect", _spec("taint", "effect")),
                   Column("TimeAdded", _spec("taint", "timeAdded"), type="age"), AGE)),
    _kind("resourcepoolstatusrequests", "ResourcePoolStatusRequest", PoolStatusStrategy(), served=("v1alpha3",),
          namespaced=False, status=True, unconditional_update=False, deprecated={},
          columns=(NAME, Column("Driver", _spec("driver")),
                   *(Column(name, _devices(field)) for name, field in (
                       ("Total", "totalDevices"), ("Available", "availableDevices"), ("Allocated", "allocatedDevices"),
                       ("Unavailable", "unavailableDevices"))),
                   Column("Errors", _pool_errors), Column("Pools", number("status.poolCount"), type="integer"),
                   Column("Status", _answered), Column("Completed", _completed))),
)  # fmt: skip
