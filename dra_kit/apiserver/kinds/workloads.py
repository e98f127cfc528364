"""Deployments, ReplicaSets, StatefulSets and DaemonSets."""

from __future__ import annotations

from typing import Final

from typing_extensions import override

from dra_kit.apiserver.kinds.kind import Kind, StatusStrategy, StrategyContext
from dra_kit.apiserver.kinds.pods import drop_gated_fields
from dra_kit.apiserver.tables import AGE, NAME, NONE, SELECTOR, TEMPLATE, Column, labels_cell, number_cell
from dra_kit.kubernetes.resource.field_errors import NOT_NEGATIVE, FieldError, invalid, required
from dra_kit.kubernetes.resource.new_object import set_pull_policies
from dra_kit.kubernetes.values.json import Object

SCALABLE: Final = ("deployments.apps", "replicasets.apps", "statefulsets.apps")
"""Those with the subresource ``scale``."""
_TEMPLATE_GENERATION: Final = "deprecated.daemonset.template.generation"


class WorkloadStrategy(StatusStrategy):
    """A workload with a pod template."""

    @override
    def default(self, obj: Object, context: StrategyContext) -> None:
        """Set the template's ``imagePullPolicy``, and the deprecated field of the service account."""
        template = (obj.get("spec") or {}).get("template") or {}
        if "spec" in template:
            set_pull_policies(template)
            account = template["spec"].get("serviceAccountName") or template["spec"].get("serviceAccount")
            if account:
                template["spec"] |= {"serviceAccountName": account, "serviceAccount": account}

    @override
    def prepare_for_create(self, obj: Object, context: StrategyContext) -> None:
        """Drop the fields of the template whose features are off, as of a pod."""
        super().prepare_for_create(obj, context)
        drop_gated_fields(_pod_spec(obj), {}, context.gates)

    @override
    def prepare_for_update(self, obj: Object, old: Object, context: StrategyContext) -> None:
        super().prepare_for_update(obj, old, context)
        drop_gated_fields(_pod_spec(obj), _pod_spec(old), context.gates)

    @override
    def validate_status(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        observed = (obj.get("status") or {}).get("observedGeneration", 0)
        return [invalid("status.observedGeneration", observed, NOT_NEGATIVE)] if observed < 0 else []


def _pod_spec(workload: Object) -> Object:
    template: Object = (workload.get("spec") or {}).get("template") or {}
    return template.get("spec") or {}


def _fill_rolling_update(strategy: Object, defaults: Object) -> None:
    """Set the missing values of a rolling update; other strategies have none."""
    if strategy.get("type") == "RollingUpdate":
        strategy["rollingUpdate"] = {**defaults, **(strategy.get("rollingUpdate") or {})}


class DeploymentStrategy(WorkloadStrategy):
    """A Deployment."""

    @override
    def default(self, obj: Object, context: StrategyContext) -> None:
        """Set a rolling update of 25 % at a time."""
        super().default(obj, context)
        _fill_rolling_update(
            (obj.get("spec") or {}).get("strategy") or {}, {"maxUnavailable": "25%", "maxSurge": "25%"}
        )


class StatefulSetStrategy(WorkloadStrategy):
    """A StatefulSet."""

    @override
    def default(self, obj: Object, context: StrategyContext) -> None:
        """Set a rolling update of one pod at a time, from the last; nothing where only its type is given."""
        super().default(obj, context)
        strategy = (obj.get("spec") or {}).get("updateStrategy")
        if strategy is not None and (not strategy.get("type") or strategy.get("rollingUpdate") is not None):
            strategy["type"] = strategy.get("type") or "RollingUpdate"
            _fill_rolling_update(strategy, {"partition": 0, "maxUnavailable": 1})


class DaemonSetStrategy(WorkloadStrategy):
    """A DaemonSet, which counts the changes of its template in an annotation."""

    @override
    def default(self, obj: Object, context: StrategyContext) -> None:
        """Set a rolling update of one node at a time, without a second pod on it."""
        super().default(obj, context)
        _fill_rolling_update((obj.get("spec") or {}).get("updateStrategy") or {}, {"maxUnavailable": 1, "maxSurge": 0})

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        """Check that a rolling update replaces pods in one of the two ways."""
        strategy = (obj.get("spec") or {}).get("updateStrategy") or {}
        if strategy.get("type") != "RollingUpdate":
            return []
        path = "spec.updateStrategy.rollingUpdate"
        unavailable, surge = (strategy["rollingUpdate"].get(name) for name in ("maxUnavailable", "maxSurge"))
        if _is_some(unavailable) and _is_some(surge):
            return [invalid(f"{path}.maxSurge", surge, "may not be set when maxUnavailable is non-zero")]
        if not _is_some(unavailable) and not _is_some(surge):
            return [required(f"{path}.maxUnavailable", "cannot be 0 when maxSurge is 0")]
        return []

    @override
    def prepare_for_create(self, obj: Object, context: StrategyContext) -> None:
        """Set the generation of the first template."""
        super().prepare_for_create(obj, context)
        _annotate(obj, 1)

    @override
    def prepare_for_update(self, obj: Object, old: Object, context: StrategyContext) -> None:
        """Set the generation of another template: the next one."""
        super().prepare_for_update(obj, old, context)
        former = int((old["metadata"].get("annotations") or {}).get(_TEMPLATE_GENERATION, 1))
        _annotate(obj, former + (obj["spec"].get("template") != old["spec"].get("template")))


def _is_some(count: int | str | None) -> bool:
    """Return whether a number of nodes, or a percentage of them, is not zero."""
    return count not in {None, 0, "0%"}


def _annotate(obj: Object, generation: int) -> None:
    obj["metadata"].setdefault("annotations", {})[_TEMPLATE_GENERATION] = str(generation)


def _ready(obj: Object) -> str:
    return f"{number_cell('status.readyReplicas')(obj)}/{number_cell('spec.replicas')(obj)}"


def _controller(obj: Object) -> str:
    for owner in obj["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            group = owner["apiVersion"].rpartition("/")[0]
            kind = owner["kind"].lower()
            return f"{kind}.{group}/{owner['name']}" if group else f"{kind}/{owner['name']}"
    return NONE


def _workload(
    plural: str, kind: str, short_name: str, *columns: Column, strategy: StatusStrategy | None = None
) -> Kind:
    return Kind("apps", plural, kind, True, {"v1": f"apps/v1.{kind}"}, strategy or WorkloadStrategy(),
                short_names=(short_name,), categories=("all",), status=True, generation=True, deletion_status=True,
                columns=(NAME, *columns))  # fmt: skip


def _counted(name: str, path: str) -> Column:
    return Column(name, number_cell(path), type="integer")


WORKLOAD_KINDS: Final = (
    _workload("deployments", "Deployment", "deploy", Column("Ready", _ready),
              Column("Up-to-date", number_cell("status.updatedReplicas")),
              Column("Available", number_cell("status.availableReplicas")), AGE, *TEMPLATE, SELECTOR,
              strategy=DeploymentStrategy()),
    _workload("daemonsets", "DaemonSet", "ds", *(_counted(name, f"status.{path}") for name, path in (
                  ("Desired", "desiredNumberScheduled"), ("Current", "currentNumberScheduled"),
                  ("Ready", "numberReady"), ("Up-to-date", "updatedNumberScheduled"),
                  ("Available", "numberAvailable"))),
              Column("Node Selector", labels_cell("spec.template.spec.nodeSelector")), AGE, *TEMPLATE, SELECTOR,
              strategy=DaemonSetStrategy()),
    _workload("replicasets", "ReplicaSet", "rs", _counted("Desired", "spec.replicas"),
              _counted("Current", "status.replicas"), _counted("Ready", "status.readyReplicas"), AGE, *TEMPLATE,
              SELECTOR),
    _workload("statefulsets", "StatefulSet", "sts", Column("Ready", _ready), AGE, *TEMPLATE,
              strategy=StatefulSetStrategy()),
    Kind("apps", "controllerrevisions", "ControllerRevision", True, {"v1": "apps/v1.ControllerRevision"},
         deletion_status=True,
         columns=(NAME, Column("Controller", _controller), Column("Revision", number_cell("revision")), AGE)),
)  # fmt: skip
