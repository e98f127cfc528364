"""Groups of pods that are scheduled together: PodGroups and Workloads (scheduling.k8s.io/v1beta1).

The v1alpha1 of Kubernetes 1.35 and the v1alpha2 of 1.36 are not served. The gates CompositePodGroup,
PodGroupPreemptionPolicy and TopologyAwareWorkloadScheduling are always off.
"""

from __future__ import annotations

from typing import Final

from typing_extensions import override

from dra_kit.apiserver.kinds.kind import Kind, StatusStrategy, Strategy, StrategyContext, VersionLife
from dra_kit.apiserver.kinds.pods import priority_class
from dra_kit.apiserver.status_errors import forbidden_object
from dra_kit.apiserver.tables import AGE, NAME, NONE, Column, text_cell, true_condition
from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.resource.field_errors import FieldError, declarative_last
from dra_kit.kubernetes.resource.validation.pod_groups import (
    validate_pod_group,
    validate_pod_group_status,
    validate_workload,
)
from dra_kit.kubernetes.scheduler.pod_groups import POD_GROUP_PROTECTION
from dra_kit.kubernetes.values.json import Object

GATE: Final = "GenericWorkload"
"""The feature gate of the API."""
_CLAIMS_GATE: Final = "DRAWorkloadResourceClaims"
_GROUP: Final = "scheduling.k8s.io"


class PodGroupStrategy(StatusStrategy):
    """PodGroup: it stays until no pod needs it, and has the priority of its class."""

    @override
    def admit(self, obj: Object, old: Object | None, context: StrategyContext, subresource: str) -> None:
        """Add the finalizer, and set the priority."""
        if old is not None:
            return
        finalizers = obj["metadata"].get("finalizers") or []
        if POD_GROUP_PROTECTION not in finalizers:
            obj["metadata"]["finalizers"] = [*finalizers, POD_GROUP_PROTECTION]
        spec, name = obj["spec"], obj["metadata"].get("name") or obj["metadata"].get("generateName") or ""
        found = priority_class(spec, context, (_GROUP, "podgroups", name))
        priority = found.get("value", 0)
        if spec.get("priority") not in {None, priority}:
            cause = (
                f"priority set in the pod group ({spec['priority']}) must match the priority computed ({priority}) "
                "based on the priority class set in the spec"
            )
            raise forbidden_object(_GROUP, "podgroups", name, cause)
        spec["priority"] = priority

    @override
    def prepare_for_create(self, obj: Object, context: StrategyContext) -> None:
        """Drop the status and the fields of features that are off."""
        super().prepare_for_create(obj, context)
        _drop(obj["spec"], {}, context.release)

    @override
    def prepare_for_update(self, obj: Object, old: Object, context: StrategyContext) -> None:
        super().prepare_for_update(obj, old, context)
        _drop(obj["spec"], old["spec"], context.release)

    @override
    def prepare_for_status(self, obj: Object, old: Object, context: StrategyContext) -> None:
        """Drop the statuses of claims if the group cannot have claims."""
        if _CLAIMS_GATE not in context.release and not old["spec"].get("resourceClaims"):
            (obj.get("status") or {}).pop("resourceClaimStatuses", None)

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        return validate_pod_group(obj, context.release)

    @override
    def validate_update(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        return validate_pod_group(obj, context.release, old)

    @override
    def validate_status(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        return validate_pod_group_status(obj.get("status") or {}, obj["spec"], context.release)

    @override
    def reported(self, errors: list[FieldError], context: StrategyContext) -> list[FieldError]:
        return declarative_last(errors)


class PodGroupTemplatesStrategy(Strategy):
    """Workload: templates of PodGroups."""

    @override
    def prepare_for_create(self, obj: Object, context: StrategyContext) -> None:
        """Drop the fields of features that are off."""
        _drop_of_templates(obj["spec"], {}, context.release)

    @override
    def prepare_for_update(self, obj: Object, old: Object, context: StrategyContext) -> None:
        _drop_of_templates(obj["spec"], old["spec"], context.release)

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        return validate_workload(obj, context.release)

    @override
    def validate_update(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        return validate_workload(obj, context.release, old)

    @override
    def reported(self, errors: list[FieldError], context: StrategyContext) -> list[FieldError]:
        return declarative_last(errors)


def _drop(spec: Object, old: Object, release: Release) -> None:
    """Drop fields of features that are off, except claims that the old object has."""
    for field in ("parentCompositePodGroupName", "schedulingConstraints", "preemptionPolicy"):
        spec.pop(field, None)
    if _CLAIMS_GATE not in release and not old.get("resourceClaims"):
        spec.pop("resourceClaims", None)


def _drop_of_templates(spec: Object, old: Object, release: Release) -> None:
    spec.pop("compositePodGroupTemplates", None)
    former = old.get("podGroupTemplates") or ()
    for i, template in enumerate(spec.get("podGroupTemplates") or ()):
        _drop(template, former[i] if i < len(former) else {}, release)


def _policy(group: Object) -> str:
    return "Gang" if (group["spec"].get("schedulingPolicy") or {}).get("gang") is not None else "Basic"


def _state(group: Object) -> str:
    conditions = {item["type"]: item for item in (group.get("status") or {}).get("conditions") or ()}
    if "DisruptionTarget" in conditions:
        return str(conditions["DisruptionTarget"].get("reason", ""))
    if "PodGroupInitiallyScheduled" not in conditions:
        return "Pending"
    return "Scheduled" if true_condition(group, "PodGroupInitiallyScheduled") else "Unschedulable"


_LIVES: Final = {"v1beta1": VersionLife(introduced=37)}
GROUP_KINDS: Final = (
    Kind(_GROUP, "podgroups", "PodGroup", True, {"v1beta1": "scheduling/v1beta1.PodGroup"}, PodGroupStrategy(),
         status=True, unconditional_update=False, deletion_status=True, gate=GATE, lives=_LIVES,
         columns=(NAME, Column("Policy", _policy), Column("Workload", text_cell("spec.workloadRef.workloadName", NONE)),
                  Column("Status", _state), AGE)),
    Kind(_GROUP, "workloads", "Workload", True, {"v1beta1": "scheduling/v1beta1.Workload"}, PodGroupTemplatesStrategy(),
         unconditional_update=False, deletion_status=True, gate=GATE, lives=_LIVES),
)  # fmt: skip
