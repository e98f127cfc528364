"""The kinds of resource.k8s.io: versions, feature gates, validation, and who may write which status.

The subresources ``resourceclaims/binding`` and ``resourceclaims/driver``, and verbs such as ``associated-node:update``,
are only checked in RBAC; no request names them.

Source: Kubernetes 1.37 ``pkg/registry/resource/resourceclaim/strategy.go``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, TypeVar

from pydantic import BaseModel
from typing_extensions import override

from dra_kit.apiserver.authentication import NODE_NAME
from dra_kit.apiserver.authorization import AuthorizationAttributes, AuthorizationDecision, denied
from dra_kit.apiserver.kinds.kind import Kind, StatusStrategy, Strategy, StrategyContext, VersionLife, readers
from dra_kit.apiserver.status_errors import forbidden_object
from dra_kit.apiserver.tables import AGE, NAME, NONE, Column, format_age, number_cell, text_cell, true_condition
from dra_kit.kubernetes.release import Change
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.conversion import drop_disabled_fields, errors_in_version, from_v1, to_v1
from dra_kit.kubernetes.resource.field_errors import FieldError, forbidden, go_quote
from dra_kit.kubernetes.resource.matching import Node, node_matches
from dra_kit.kubernetes.resource.new_object import set_defaults, validate_new_object
from dra_kit.kubernetes.resource.schema.types import prune
from dra_kit.kubernetes.resource.validation.claim_status import validate_claim_status
from dra_kit.kubernetes.resource.validation.claims import (
    validate_claim_spec_update,
    validate_class,
    validate_template_update,
)
from dra_kit.kubernetes.resource.validation.slices import (
    taint_rule_warnings,
    validate_pool_status,
    validate_pool_status_request_update,
    validate_slice,
    validate_taint_rule,
    validate_taint_rule_status,
)
from dra_kit.kubernetes.values.json import Object

GROUP: Final = "resource.k8s.io"
_Model = TypeVar("_Model", bound=BaseModel)


class ResourceStrategy(Strategy):
    """A kind of resource.k8s.io."""

    kind: ClassVar[str]

    @override
    def default(self, obj: Object, context: StrategyContext) -> None:
        """Set the defaults of ``resource/defaults``."""
        set_defaults(obj, self.kind, context.api_version, context.now)

    @override
    def to_storage(self, obj: Object, api_version: str) -> Object:
        return to_v1(obj, self.kind, api_version)

    @override
    def from_storage(self, obj: Object, api_version: str) -> Object:
        return from_v1(obj, self.kind, api_version)

    @override
    def prepare_for_create(self, obj: Object, context: StrategyContext) -> None:
        """Drop the fields of features that are off."""
        super().prepare_for_create(obj, context)
        obj.update(drop_disabled_fields(obj, None, context.release))

    @override
    def prepare_for_update(self, obj: Object, old: Object, context: StrategyContext) -> None:
        """Prepare it as a new object, unless the old one uses the feature."""
        super().prepare_for_update(obj, old, context)
        obj.update(drop_disabled_fields(obj, old, context.release))

    @override
    def prepare_for_status(self, obj: Object, old: Object, context: StrategyContext) -> None:
        super().prepare_for_status(obj, old, context)
        obj.update(drop_disabled_fields(obj, old, context.release))

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        return validate_new_object(obj, self.kind, context.release)

    @override
    def reported(self, errors: list[FieldError], context: StrategyContext) -> list[FieldError]:
        """Return hand-written errors first; declarative ones have the paths of the request's version."""
        return errors_in_version(errors, context.api_version)


def _parsed(model: type[_Model], context: StrategyContext, *objects: Object) -> list[_Model]:
    return [_read(model, {**obj, "spec": obj.get("spec") or {}}, context) for obj in objects]


def _read(model: type[_Model], value: Object, context: StrategyContext) -> _Model:
    """Return a model whose quantities have the limits of the server's release."""
    return model.model_validate(value, context=context.release.version)


class DeviceClassStrategy(ResourceStrategy):
    """DeviceClass."""

    kind = "DeviceClass"

    @override
    def name_problems(self, name: str) -> list[str]:
        """Return no problem: the rule about names is declarative, and so there is none about their prefixes."""
        return []

    @override
    def validate_update(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        new, before = _parsed(v1.DeviceClass, context, obj, old)
        return validate_class(new, context.release, before)


class DeviceTaintRuleStrategy(ResourceStrategy, StatusStrategy):
    """DeviceTaintRule."""

    kind = "DeviceTaintRule"

    @override
    def prepare_for_update(self, obj: Object, old: Object, context: StrategyContext) -> None:
        """Set the time at which a changed effect begins."""
        super().prepare_for_update(obj, old, context)
        taint, before = (obj.get("spec") or {}).get("taint") or {}, old["spec"].get("taint") or {}
        if taint.get("effect") != before.get("effect") and taint.get("timeAdded") == before.get("timeAdded"):
            taint["timeAdded"] = context.now

    @override
    def validate_update(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        new, before = _parsed(v1.DeviceTaintRule, context, obj, old)
        return validate_taint_rule(new, context.release, before)

    @override
    def validate_status(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        conditions = (obj.get("status") or {}).get("conditions") or ()
        return validate_taint_rule_status([v1.Condition.model_validate(item) for item in conditions], context.release)

    @override
    def warnings(self, obj: Object, old: Object | None, context: StrategyContext) -> list[str]:
        [rule] = _parsed(v1.DeviceTaintRule, context, obj)
        return taint_rule_warnings(rule, context.release)


class ResourcePoolStatusRequestStrategy(ResourceStrategy, StatusStrategy):
    """ResourcePoolStatusRequest: neither spec nor status change once they are set."""

    kind = "ResourcePoolStatusRequest"

    @override
    def validate_update(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        return validate_pool_status_request_update(*_parsed(v1.ResourcePoolStatusRequest, context, obj, old))

    @override
    def validate_status(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        return validate_pool_status(obj.get("status"), old.get("status"), context.release)


def _claim_state(claim: Object) -> str:
    status = claim.get("status") or {}
    words = ["deleted"] if "deletionTimestamp" in claim["metadata"] else []
    if status.get("allocation"):
        words.append("allocated")
    if status.get("reservedFor"):
        words.append("reserved")
    return ",".join(words if "allocated" in words else [*words, "pending"])


def _of_pools(value: Callable[[Object], int]) -> Callable[[Object], str]:
    def cell(request: Object) -> str:
        if not request.get("status") or true_condition(request, "Failed"):
            return "-"
        return str(sum(map(value, request["status"].get("pools") or ())))

    return cell


def _answered(request: Object) -> str:
    return next((name for name in ("Failed", "Complete") if true_condition(request, name)), "Pending")


def _completed(request: Object) -> str:
    met = true_condition(request, "Complete")
    return format_age(met.get("lastTransitionTime"), datetime.now(UTC)) if met else NONE


# DeviceTaintRule and ResourcePoolStatusRequest are younger than their group
_LIVES: Final = {
    "v1": VersionLife(stored=35), "v1beta2": VersionLife(36, 39), "v1beta1": VersionLife(35, 38),
    "v1alpha3": VersionLife(introduced=36),
}  # fmt: skip
_TAINT_RULE_LIVES: Final = {
    "v1": VersionLife(introduced=37, stored=None), "v1beta2": VersionLife(39, 42, introduced=36, stored=37),
    "v1alpha3": VersionLife(36, 39, taken_back=True),
}  # fmt: skip


def _kind(plural: str, kind: str, strategy: Strategy, *, served: tuple[str, ...], **more: Any) -> Kind:
    types = {version: f"resource/{version}.{kind}" for version in served}
    off = tuple(version for version in served if version != "v1")
    lives = _TAINT_RULE_LIVES if kind == "DeviceTaintRule" else _LIVES
    return Kind(GROUP, plural, kind, types=types, strategy=strategy, off_by_default=off, lives=lives, **more)


_WRITTEN_METADATA: Final = ("labels", "annotations", "finalizers", "ownerReferences")
_V1: Final = ("v1", "v1beta2", "v1beta1")


class ResourceClaimStrategy(ResourceStrategy, StatusStrategy):
    """ResourceClaim: the spec never changes, the status is written by schedulers, controllers and drivers."""

    kind = "ResourceClaim"

    @override
    def metadata_owned(self, context: StrategyContext) -> tuple[str, ...]:
        owned = super().metadata_owned(context)
        return owned if context.release.has(Change.STATUS_WRITERS_OWN_NO_METADATA) else (*owned, *_WRITTEN_METADATA)

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        """Check the rules of ``resource/validation``, and who may have admin access."""
        spec = _read(v1.ResourceClaimSpec, obj.get("spec") or {}, context)
        return [*_admin_access(spec, obj, context), *super().validate(obj, context)]

    @override
    def validate_update(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        specs = (_read(v1.ResourceClaimSpec, item.get("spec") or {}, context) for item in (obj, old))
        return validate_claim_spec_update(*specs)

    @override
    def prepare_for_status(self, obj: Object, old: Object, context: StrategyContext) -> None:
        """Remove the status of devices that are no longer allocated."""
        super().prepare_for_status(obj, old, context)
        status, before = obj.get("status") or {}, old.get("status") or {}
        gone = _allocated(before) - _allocated(status)
        if gone and status.get("devices"):
            obj["status"] = {**status, "devices": [item for item in status["devices"] if _device(item) not in gone]}

    @override
    def validate_status(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        before = _read(v1.ResourceClaimStatus, old.get("status") or {}, context)
        claim = _read(v1.ResourceClaim, {**obj, "status": obj.get("status") or {}}, context)
        devices = [
            _read(v1.AllocatedDeviceStatus, item, context) for item in (obj.get("status") or {}).get("devices") or ()
        ]
        rights = claim_status_rights(obj, old, context) if _GRANULAR in context.release else ()
        errors = validate_claim_status(claim, devices, before, context.release)
        return [*rights, *_admin_results(claim, before, context), *errors]


class ResourceClaimTemplateStrategy(ResourceStrategy):
    """ResourceClaimTemplate: the spec never changes."""

    kind = "ResourceClaimTemplate"

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        """Check the rules of ``resource/validation``, and who may have admin access."""
        [template] = _parsed(v1.ResourceClaimTemplate, context, obj)
        return [*_admin_access(template.spec.spec, obj, context), *super().validate(obj, context)]

    @override
    def validate_update(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        new, before = _parsed(v1.ResourceClaimTemplate, context, obj, old)
        return validate_template_update(new, before, context.release)


class ResourceSliceStrategy(ResourceStrategy):
    """ResourceSlice."""

    kind = "ResourceSlice"
    counts_dropped = True

    @override
    def admit_valid(self, obj: Object, context: StrategyContext) -> None:
        """Reject devices that use resources of nodes on nodes without support for it (KEP-5517)."""
        if _ALLOCATABLE not in context.release:
            return
        [published] = _parsed(v1.ResourceSlice, context, obj)
        spec, nodes = published.spec, [Node.of(node) for node in context.listed("nodes")]
        for device in spec.devices:
            if not device.node_allocatable_resources:
                continue
            scope = device if spec.per_device_node_selection else spec
            if (problem := _without_support(device.name, scope, nodes)) is not None:
                raise forbidden_object(GROUP, "resourceslices", obj["metadata"].get("name") or "", problem)

    @override
    def validate_update(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        new, before = _parsed(v1.ResourceSlice, context, obj, old)
        return validate_slice(new, context.release, old=before)

    @override
    def same_spec(self, obj: Object, old: Object, context: StrategyContext) -> bool:
        """Return whether two specs are equal; different spellings of the same quantity are equal."""
        if super().same_spec(obj, old, context):
            return True
        new, before = _parsed(v1.ResourceSlice, context, obj, old)
        return new.spec == before.spec

    @override
    def warnings(self, obj: Object, old: Object | None, context: StrategyContext) -> list[str]:
        driver = obj["spec"].get("driver", "")
        if driver == driver.lower() or not context.release.has(Change.DRIVERS_IN_UPPER_CASE_WARN):
            return []
        return [f"spec.driver: driver names should be lowercase; {go_quote(driver)} contains uppercase characters"]


RESOURCE_API_KINDS: Final = (
    _kind("deviceclasses", "DeviceClass", DeviceClassStrategy(), served=_V1, namespaced=False, generation=True),
    _kind("resourceclaims", "ResourceClaim", ResourceClaimStrategy(), served=_V1, namespaced=True, status=True,
          columns=(NAME, Column("State", _claim_state), AGE)),
    _kind("resourceclaimtemplates", "ResourceClaimTemplate", ResourceClaimTemplateStrategy(), served=_V1,
          namespaced=True),
    _kind("resourceslices", "ResourceSlice", ResourceSliceStrategy(), served=_V1, namespaced=False, generation=True,
          fields=readers("spec.nodeName", "spec.driver", "spec.pool.name"), own_selectors=True,
          newer_fields={"spec.pool.name": Change.SLICES_ARE_SELECTED_BY_POOL},
          columns=(NAME, Column("Node", text_cell("spec.nodeName")), Column("Driver", text_cell("spec.driver")),
                   Column("Pool", text_cell("spec.pool.name")), AGE)),
    _kind("devicetaintrules", "DeviceTaintRule", DeviceTaintRuleStrategy(), served=("v1", "v1beta2", "v1alpha3"),
          namespaced=False, storage=f"{GROUP}/v1beta2", storage_type="resource/v1beta2.DeviceTaintRule", status=True,
          generation=True, unconditional_update=False, unconditional_versions=("v1beta2", "v1alpha3"),
          deletion_status=True,
          columns=(NAME, Column("Key", text_cell("spec.taint.key")), Column("Value", text_cell("spec.taint.value")),
                   Column("Effect", text_cell("spec.taint.effect")),
                   Column("TimeAdded", text_cell("spec.taint.timeAdded"), type="age"), AGE)),
    _kind("resourcepoolstatusrequests", "ResourcePoolStatusRequest", ResourcePoolStatusRequestStrategy(),
          served=("v1alpha3",), namespaced=False, status=True, unconditional_update=False,
          columns=(NAME, Column("Driver", text_cell("spec.driver")),
                   *(Column(name, _of_pools(number_cell(field))) for name, field in (
                       ("Total", "totalDevices"), ("Available", "availableDevices"), ("Allocated", "allocatedDevices"),
                       ("Unavailable", "unavailableDevices"))),
                   Column("Errors", _of_pools(lambda pool: bool(pool.get("validationError")))),
                   Column("Pools", number_cell("status.poolCount"), type="integer"), Column("Status", _answered),
                   Column("Completed", _completed))),
)  # fmt: skip
_GRANULAR: Final = "DRAResourceClaimGranularStatusAuthorization"
_ADMIN_LABEL: Final = "resource.kubernetes.io/admin-access"
_ADMIN_NAMESPACE: Final = (
    f"admin access to devices requires the `{_ADMIN_LABEL}: true` label on the containing namespace"
)


def _device(item: Object) -> tuple[str, ...]:
    return tuple(str(item.get(name) or "") for name in ("driver", "pool", "device", "shareID"))


def _allocated(status: Object) -> set[tuple[str, ...]]:
    devices = (status.get("allocation") or {}).get("devices") or {}
    return {_device(result) for result in devices.get("results") or ()}


def _admin_access(spec: v1.ResourceClaimSpec, obj: Object, context: StrategyContext) -> Iterable[FieldError]:
    """Check that the namespace allows admin access; the path is the API server's, in templates too."""
    wanted = [
        f"spec.devices.requests[{i}].adminAccess"
        for i, request in enumerate(spec.devices.requests)
        if request.exactly is not None and request.exactly.admin_access
    ]
    return _unless_allowed(wanted, obj["metadata"]["namespace"], context)


def _admin_results(
    claim: v1.ResourceClaim, before: v1.ResourceClaimStatus, context: StrategyContext
) -> Iterable[FieldError]:
    if claim.status.allocation is None or before.allocation is not None:
        return ()
    wanted = [
        f"status.allocation.devices.results[{i}].adminAccess"
        for i, result in enumerate(claim.status.allocation.devices.results)
        if result.admin_access
    ]
    return _unless_allowed(wanted, claim.metadata.namespace, context)


def _unless_allowed(paths: list[str], namespace: str, context: StrategyContext) -> Iterable[FieldError]:
    if not paths:
        return ()
    labels = ((context.lookup("namespaces", namespace) or {}).get("metadata") or {}).get("labels") or {}
    return [] if labels.get(_ADMIN_LABEL) == "true" else [forbidden(paths[0], _ADMIN_NAMESPACE)]


_ALLOCATABLE: Final = "DRANodeAllocatableResources"


def _without_support(device: str, scope: v1.Device | v1.ResourceSliceSpec, nodes: Iterable[Node]) -> str | None:
    """Return why a device may not be published for nodes; a scope without nodes is valid unless it names one."""
    selector = scope.node_selector
    try:
        concerned = [node for node in nodes if node_matches(node, scope.node_name, scope.all_nodes, selector)]
    except ValueError:
        return None  # validation says what is wrong with the selector
    if scope.node_name and not concerned:
        return f"node {go_quote(scope.node_name)} not found for device {go_quote(device)}"
    for node in concerned:
        if _ALLOCATABLE not in node.declared_features:
            return f"node {go_quote(node.name)} does not support {_ALLOCATABLE} feature"
    return None


_STATUS: Final = "resource/v1.ResourceClaimStatus"


def claim_status_rights(obj: Object, old: Object, context: StrategyContext) -> Iterator[FieldError]:
    """Yield the rights that the writer of a status lacks."""
    if context.user.is_master:
        return
    status, before = (prune(one.get("status") or {}, _STATUS, context.release.version) for one in (obj, old))
    if any((status.get(field) or None) != (before.get(field) or None) for field in ("allocation", "reservedFor")):
        asked = AuthorizationAttributes(context.verb, GROUP, "resourceclaims", "binding")
        decision = context.rbac.authorize(context.user, asked)
        if not decision.allowed:
            needed = f'resource="resourceclaims/binding", verb="{context.verb}"'
            what = "changing status.allocation or status.reservedFor"
            yield forbidden("status.allocation", _text(what, needed, context, asked, decision))
    allocation = status.get("allocation")
    if allocation:
        for driver in sorted(_changed(status, before)):
            yield from _driver(driver, obj["metadata"]["namespace"], allocation, context)


def _driver(driver: str, namespace: str, allocation: Object, context: StrategyContext) -> Iterator[FieldError]:
    scopes = ["arbitrary-node"]
    node = _node(allocation)
    if node is not None and context.user.extra.get(NODE_NAME) == node:
        scopes.insert(0, "associated-node")
    verbs = [f"{scope}:{context.verb}" for scope in scopes]
    asked = [AuthorizationAttributes(verb, GROUP, "resourceclaims", "driver", namespace, driver) for verb in verbs]
    decisions = [context.rbac.authorize(context.user, one) for one in asked]
    if not any(decision.allowed for decision in decisions):
        needed = f'resource="resourceclaims/driver", verb="[{" ".join(verbs)}]"'
        text = _text("changing status.devices", needed, context, asked[0], decisions[0])
        yield forbidden("status.devices", text)


def _text(
    what: str, needed: str, context: StrategyContext, asked: AuthorizationAttributes, decision: AuthorizationDecision
) -> str:
    return f"{what} requires {needed} permission: {denied(context.user, asked, decision).message}"


def _node(allocation: Object) -> tuple[str, ...] | None:
    """Return the only node of an allocation, as the token of a pod there names it; None if it is for others."""
    selector: Object = allocation.get("nodeSelector") or {}
    terms: list[Object] = selector.get("nodeSelectorTerms") or []
    fields = [field for term in terms for field in term.get("matchFields") or ()]
    if len(terms) != 1 or len(fields) != 1 or terms[0].get("matchExpressions"):
        return None
    values = tuple(fields[0].get("values") or ())
    by_name = (fields[0].get("key"), fields[0].get("operator")) == ("metadata.name", "In")
    return values if by_name and len(values) == 1 else None


def _changed(status: Object, before: Object) -> set[str]:
    """Return the drivers whose entries of ``status.devices`` changed."""
    new, old = ({_device(entry): entry for entry in one.get("devices") or ()} for one in (status, before))
    return {key[0] for key in {*new, *old} if new.get(key) != old.get(key)}
