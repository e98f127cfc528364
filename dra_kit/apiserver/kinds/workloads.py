"""Deployments, ReplicaSets, StatefulSets, DaemonSets and Jobs.

Sources for Jobs: Kubernetes 1.37 ``pkg/apis/batch`` and ``pkg/registry/batch/job``; measured on kube-apiserver 1.37.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from typing_extensions import override

from dra_kit.apiserver.kinds.kind import Kind, StatusStrategy, StrategyContext
from dra_kit.apiserver.kinds.pods import drop_gated_fields
from dra_kit.apiserver.tables import (
    AGE,
    NAME,
    NONE,
    SELECTOR,
    TEMPLATE,
    Column,
    format_duration,
    labels_cell,
    number_cell,
    true_condition,
)
from dra_kit.kubernetes.resource.field_errors import NOT_NEGATIVE, ErrorKind, FieldError, invalid, required, unsupported
from dra_kit.kubernetes.resource.matching import parse_label_selector
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


_UID_LABEL: Final = "batch.kubernetes.io/controller-uid"
_NAME_LABEL: Final = "batch.kubernetes.io/job-name"
_BACKOFF_LIMIT: Final = 6
_NO_LIMIT: Final = 2**31 - 1
_NUMBERS: Final = (
    "parallelism", "completions", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished",
    "backoffLimitPerIndex", "maxFailedIndexes",
)  # fmt: skip
_FIXED: Final = (
    "selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy",
)  # fmt: skip
_IMMUTABLE: Final = "field is immutable"


class JobStrategy(WorkloadStrategy):
    """A Job, whose pods have labels with its name and UID."""

    @override
    def default(self, obj: Object, context: StrategyContext) -> None:
        """Set the number of pods, and what is done about those that fail."""
        super().default(obj, context)
        spec = obj["spec"] = obj.get("spec") or {}
        spec["template"] = spec.get("template") or {}
        if spec.get("completions") is None and spec.get("parallelism") is None:
            spec["completions"] = 1
        if spec.get("parallelism") is None:
            spec["parallelism"] = 1
        if spec.get("backoffLimit") is None:
            spec["backoffLimit"] = _BACKOFF_LIMIT if spec.get("backoffLimitPerIndex") is None else _NO_LIMIT
        replacement = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
        defaults = {
            "completionMode": "NonIndexed", "suspend": False, "manualSelector": False,
            "podReplacementPolicy": replacement,
        }  # fmt: skip
        spec |= {name: value for name, value in defaults.items() if spec.get(name) is None}

    @override
    def prepare_for_create(self, obj: Object, context: StrategyContext) -> None:
        """Set labels and selector, unless the client sets them itself."""
        super().prepare_for_create(obj, context)
        spec, metadata = obj["spec"], obj["metadata"]
        spec.pop("scheduling", None)  # of a feature gate that is off
        labels = (spec["template"].get("metadata") or {}).get("labels") or {}
        if not spec.get("manualSelector"):
            uid, name = metadata["uid"], metadata.get("name", "")
            labels |= {_UID_LABEL: uid, "controller-uid": uid, _NAME_LABEL: name, "job-name": name}
            metadata_of_pods = spec["template"]["metadata"] = spec["template"].get("metadata") or {}
            metadata_of_pods["labels"] = labels
            selector = spec["selector"] = {**(spec.get("selector") or {})}
            selector["matchLabels"] = {**(selector.get("matchLabels") or {}), _UID_LABEL: uid}
        if labels and not metadata.get("labels"):
            metadata["labels"] = dict(labels)

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        """Check numbers, modes, and that the selector selects the Job's own pods."""
        return [*_job_errors(obj["spec"]), *_pod_errors(obj["spec"]["template"]), *_selector_errors(obj)]

    @override
    def warnings(self, obj: Object, old: Object | None, context: StrategyContext) -> list[str]:
        """Warn of what the sandbox's controller of Jobs does not do."""
        ignored = ("podFailurePolicy", "successPolicy")
        return [f"spec.{name}: ignored, no controller supports it here" for name in ignored if obj["spec"].get(name)]

    @override
    def validate_update(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        """Check that what the running pods were made of does not change."""
        spec, before = obj["spec"], old["spec"]
        errors = [*_job_errors(spec), *_pod_errors(spec["template"])]
        is_elastic = spec["completionMode"] == "Indexed" and spec.get("completions") == spec.get("parallelism")
        fixed = [*_FIXED, *(() if is_elastic else ("completions",))]
        if not (before.get("suspend") and not (old.get("status") or {}).get("startTime")):
            fixed.append("template")
        return errors + [
            invalid(f"spec.{name}", spec.get(name), _IMMUTABLE)
            for name in fixed
            if (spec.get(name) or None) != (before.get(name) or None)
        ]

    @override
    def validate_status(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        status = obj.get("status") or {}
        names = ("active", "succeeded", "failed", "ready", "terminating")
        return [invalid(f"status.{name}", status[name], NOT_NEGATIVE) for name in names if (status.get(name) or 0) < 0]


def _job_errors(spec: Object) -> Iterator[FieldError]:
    for name in _NUMBERS:
        if (spec.get(name) or 0) < 0:
            yield invalid(f"spec.{name}", spec[name], NOT_NEGATIVE)
    mode = spec.get("completionMode")
    if mode not in {"NonIndexed", "Indexed"}:
        detail = 'supported values: "NonIndexed", "Indexed"'
        yield FieldError("spec.completionMode", ErrorKind.UNSUPPORTED, mode, detail)
    if mode == "Indexed" and spec.get("completions") is None:
        yield required("spec.completions", "when completion mode is Indexed")
    if spec.get("maxFailedIndexes") is not None and spec.get("backoffLimitPerIndex") is None:
        yield required("spec.backoffLimitPerIndex", "when maxFailedIndexes is specified")
    for name in ("backoffLimitPerIndex", "maxFailedIndexes"):
        if mode == "NonIndexed" and spec.get(name) is not None:
            yield invalid(f"spec.{name}", spec[name], "requires indexed completion mode")
    replacement, policies = spec.get("podReplacementPolicy"), ("Failed", "TerminatingOrFailed")
    if replacement not in policies:
        yield unsupported("spec.podReplacementPolicy", str(replacement), policies)
    if "/" not in (spec.get("managedBy") or "/"):
        detail = 'must be a domain-prefixed path (such as "acme.io/foo")'
        yield invalid("spec.managedBy", spec["managedBy"], detail)


def _pod_errors(template: Object) -> Iterator[FieldError]:
    pod, path = template.get("spec") or {}, "spec.template.spec.restartPolicy"
    if not pod.get("containers"):
        yield required("spec.template.spec.containers")
    restart = pod.get("restartPolicy")
    if restart in {None, "", "Always"}:
        yield required(path, 'valid values: "OnFailure", "Never"')
    elif restart not in {"OnFailure", "Never"}:
        yield unsupported(path, str(restart), ("OnFailure", "Never"))


_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")


def _selector_errors(job: Object) -> Iterator[FieldError]:
    spec, selector = job["spec"], job["spec"].get("selector")
    own = {"matchLabels": {_UID_LABEL: job["metadata"]["uid"]}}
    if not spec.get("manualSelector") and selector != own:
        yield invalid("spec.selector", selector, "`selector` not auto-generated")
    labels = (spec["template"].get("metadata") or {}).get("labels")
    path = "spec.selector.matchExpressions"
    wrong = [
        invalid(f"{path}[{place}].operator", item.get("operator"), "not a valid selector operator")
        for place, item in enumerate((selector or {}).get("matchExpressions") or ())
        if not item.get("key") or item.get("operator") not in _OPERATORS
    ]
    yield from wrong
    if selector is None:
        yield required("spec.selector")
    elif not wrong and not parse_label_selector(selector).matches({"metadata": {"labels": labels or {}}}):
        yield invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")


def _job_status(job: Object) -> str:
    ends = [type_ for type_ in ("Complete", "Failed") if true_condition(job, type_)]
    if ends or "deletionTimestamp" in job["metadata"]:
        return ends[0] if ends else "Terminating"
    states = ("Suspended", "FailureTarget", "SuccessCriteriaMet")
    return next((type_ for type_ in states if true_condition(job, type_)), "Running")


def _completions(job: Object) -> str:
    spec, succeeded = job["spec"], number_cell("status.succeeded")(job)
    if spec.get("completions") is not None:
        return f"{succeeded}/{spec['completions']}"
    parallelism = spec.get("parallelism") or 0
    return f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"


def _duration(job: Object) -> str:
    status = job.get("status") or {}
    if not status.get("startTime"):
        return ""
    end = datetime.fromisoformat(status["completionTime"]) if status.get("completionTime") else datetime.now(UTC)
    return format_duration(int((end - datetime.fromisoformat(status["startTime"])).total_seconds()))


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
    Kind("batch", "jobs", "Job", True, {"v1": "batch/v1.Job"}, JobStrategy(), categories=("all",), status=True,
         generation=True, deletion_status=True,
         columns=(NAME, Column("Status", _job_status), Column("Completions", _completions),
                  Column("Duration", _duration), AGE, *TEMPLATE, SELECTOR)),
    Kind("apps", "controllerrevisions", "ControllerRevision", True, {"v1": "apps/v1.ControllerRevision"},
         deletion_status=True,
         columns=(NAME, Column("Controller", _controller), Column("Revision", number_cell("revision")), AGE)),
)  # fmt: skip
