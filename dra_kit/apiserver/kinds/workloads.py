"""Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs and CronJobs.

Sources for Jobs and CronJobs: Kubernetes 1.37 ``pkg/apis/batch`` and ``pkg/registry/batch``; measured on kube-apiserver
1.37.1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import ClassVar, Final

from msgspec.structs import replace
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
    count_cell,
    format_age,
    format_duration,
    labels_cell,
    number_cell,
    text_cell,
    true_condition,
)
from dra_kit.kubernetes.resource.field_errors import (
    NOT_NEGATIVE,
    OMITTED,
    ErrorKind,
    FieldError,
    GoStruct,
    check_length,
    duplicate,
    go_quote,
    invalid,
    required,
    too_many,
    unsupported,
)
from dra_kit.kubernetes.resource.matching import parse_label_selector
from dra_kit.kubernetes.resource.names import dns_label, label_key
from dra_kit.kubernetes.resource.new_object import set_pull_policies
from dra_kit.kubernetes.values.cron import ScheduleError, parse_schedule, read_zone
from dra_kit.kubernetes.values.json import Object, value_at

SCALABLE: Final = ("deployments.apps", "replicasets.apps", "statefulsets.apps")
"""Those with the subresource ``scale``."""
_TEMPLATE_GENERATION: Final = "deprecated.daemonset.template.generation"


class WorkloadStrategy(StatusStrategy):
    """A workload with a pod template; ``template``: where it is."""

    template: ClassVar[tuple[str, ...]] = ("spec", "template")

    @override
    def default(self, obj: Object, context: StrategyContext) -> None:
        """Set the template's ``imagePullPolicy``, and the deprecated field of the service account."""
        template = value_at(obj, self.template) or {}
        if "spec" in template:
            set_pull_policies(template)
            account = template["spec"].get("serviceAccountName") or template["spec"].get("serviceAccount")
            if account:
                template["spec"] |= {"serviceAccountName": account, "serviceAccount": account}

    @override
    def prepare_for_create(self, obj: Object, context: StrategyContext) -> None:
        """Drop the fields of the template whose features are off, as of a pod."""
        super().prepare_for_create(obj, context)
        drop_gated_fields(self._pod_spec(obj), {}, context.release)

    @override
    def prepare_for_update(self, obj: Object, old: Object, context: StrategyContext) -> None:
        super().prepare_for_update(obj, old, context)
        drop_gated_fields(self._pod_spec(obj), self._pod_spec(old), context.release)

    @override
    def validate_status(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        observed = (obj.get("status") or {}).get("observedGeneration", 0)
        return [invalid("status.observedGeneration", observed, NOT_NEGATIVE)] if observed < 0 else []

    def _pod_spec(self, workload: Object) -> Object:
        return value_at(workload, (*self.template, "spec")) or {}


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
        return [*_job_errors(obj["spec"]), *_selector_errors(obj), *_name_errors(obj)]

    @override
    def warnings(self, obj: Object, old: Object | None, context: StrategyContext) -> list[str]:
        return _name_warnings(obj) if old is None else []

    @override
    def validate_update(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        """Check that what the running pods were made of does not change."""
        spec, before = obj["spec"], old["spec"]
        errors = [*_job_errors(spec), *_name_errors(obj)]
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


class CronJobStrategy(WorkloadStrategy):
    """A CronJob."""

    template: ClassVar[tuple[str, ...]] = ("spec", "jobTemplate", "spec", "template")

    @override
    def default(self, obj: Object, context: StrategyContext) -> None:
        """Make sure that there is a template of a Job, for validation."""
        super().default(obj, context)
        spec = obj["spec"] = obj.get("spec") or {}
        template = spec["jobTemplate"] = spec.get("jobTemplate") or {}
        job = template["spec"] = template.get("spec") or {}
        job["template"] = job.get("template") or {}

    @override
    def prepare_for_create(self, obj: Object, context: StrategyContext) -> None:
        super().prepare_for_create(obj, context)
        obj["spec"]["jobTemplate"]["spec"].pop("scheduling", None)  # of a feature gate that is off

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        """Check schedule and time zone, policies, and the template of the Jobs."""
        errors = [*_cron_job_errors(obj["spec"], {})]
        if len(obj["metadata"].get("name", "")) > _CRON_JOB_NAME_MAX:
            detail = f"must be no more than {_CRON_JOB_NAME_MAX} characters"
            errors.append(invalid("metadata.name", obj["metadata"]["name"], detail))
        return errors

    @override
    def validate_update(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        return [*_cron_job_errors(obj["spec"], old["spec"])]

    @override
    def validate_status(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        return []

    @override
    def warnings(self, obj: Object, old: Object | None, context: StrategyContext) -> list[str]:
        return _name_warnings(obj) if old is None else []


_CRON_JOB_NAME_MAX: Final = 52
"""The names of its Jobs are eleven characters longer."""


def _cron_job_errors(spec: Object, old: Object) -> Iterator[FieldError]:
    schedule, zone = spec.get("schedule") or "", spec.get("timeZone")
    if not schedule:
        yield required("spec.schedule")
    else:
        try:
            parse_schedule(schedule)
        except ScheduleError as error:
            yield invalid("spec.schedule", schedule, str(error))
        if "TZ" in schedule:
            detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
            yield invalid("spec.schedule", schedule, detail)
    if (spec.get("startingDeadlineSeconds") or 0) < 0:
        yield invalid("spec.startingDeadlineSeconds", spec["startingDeadlineSeconds"], NOT_NEGATIVE)
    if zone is not None and zone != old.get("timeZone"):
        yield from _zone_errors(zone)
    policy, policies = spec.get("concurrencyPolicy"), ("Allow", "Forbid", "Replace")
    if policy not in policies:
        yield unsupported("spec.concurrencyPolicy", str(policy), policies)
    yield from _job_errors(spec["jobTemplate"]["spec"], "spec.jobTemplate.spec")
    if (selector := spec["jobTemplate"]["spec"].get("selector")) is not None:
        yield invalid("spec.jobTemplate.spec.selector", selector, "`selector` will be auto-generated")
    if spec["jobTemplate"]["spec"].get("manualSelector"):
        detail = 'supported values: "nil", "false"'
        yield FieldError("spec.jobTemplate.spec.manualSelector", ErrorKind.UNSUPPORTED, True, detail)
    for name in ("successfulJobsHistoryLimit", "failedJobsHistoryLimit"):
        if (spec.get(name) or 0) < 0:
            yield invalid(f"spec.{name}", spec[name], NOT_NEGATIVE)


def _zone_errors(zone: str) -> Iterator[FieldError]:
    path = "spec.timeZone"
    if not zone:
        yield invalid(path, zone, "timeZone must be nil or non-empty string")
    elif zone.lower() == "local":
        detail = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
        yield invalid(path, zone, detail)
    else:
        try:
            read_zone(zone)
        except ScheduleError as error:
            yield invalid(path, zone, str(error))


def _name_warnings(obj: Object) -> list[str]:
    problems = dns_label(obj["metadata"].get("name", ""))
    text = "this is used in Pod names and hostnames, which can result in surprising behavior"
    return [f"metadata.name: {text}; a DNS label is recommended: [{' '.join(problems)}]"] if problems else []


def _name_errors(job: Object) -> Iterator[FieldError]:
    """Check that the pods of an Indexed Job can have host names."""
    name, completions = job["metadata"].get("name", ""), job["spec"].get("completions") or 0
    if job["spec"].get("completionMode") == "Indexed" and completions > 0:
        last = f"{name}-{completions - 1}"
        if dns_label(last):
            yield invalid("metadata.name", name, f"will not able to create pod with invalid DNS label: {last}")


def _job_errors(spec: Object, path: str = "spec") -> Iterator[FieldError]:
    for name in _NUMBERS:
        if (spec.get(name) or 0) < 0:
            yield invalid(f"{path}.{name}", spec[name], NOT_NEGATIVE)
    mode = spec.get("completionMode")
    if mode not in {None, "NonIndexed", "Indexed"}:
        detail = 'supported values: "NonIndexed", "Indexed"'
        yield FieldError(f"{path}.completionMode", ErrorKind.UNSUPPORTED, mode, detail)
    if mode == "Indexed":
        yield from _indexed_errors(spec, path)
    if spec.get("maxFailedIndexes") is not None and spec.get("backoffLimitPerIndex") is None:
        yield required(f"{path}.backoffLimitPerIndex", "when maxFailedIndexes is specified")
    for name in ("backoffLimitPerIndex", "maxFailedIndexes"):
        if mode in {None, "NonIndexed"} and spec.get(name) is not None:
            yield invalid(f"{path}.{name}", spec[name], "requires indexed completion mode")
    failures = spec.get("podFailurePolicy")
    if failures is not None:
        yield from _failure_policy_errors(spec, failures.get("rules") or (), f"{path}.podFailurePolicy.rules")
    if (success := spec.get("successPolicy")) is not None:
        yield from _success_policy_errors(spec, success.get("rules") or (), f"{path}.successPolicy")
    replacement = spec.get("podReplacementPolicy")
    policies = ("Failed",) if failures is not None else ("Failed", "TerminatingOrFailed")
    if replacement is not None and replacement not in policies:
        yield unsupported(f"{path}.podReplacementPolicy", str(replacement), policies)
    if "/" not in (spec.get("managedBy") or "/"):
        detail = 'must be a domain-prefixed path (such as "acme.io/foo")'
        yield invalid(f"{path}.managedBy", spec["managedBy"], detail)
    yield from _pod_errors(spec["template"], f"{path}.template.spec", never=failures is not None)


_INDEXES_MAX: Final = 100_000
_MANY_INDEXES_MAX: Final = 10_000
"""Of failed indexes, and of pods at once, in Jobs of more than 100,000 completions."""


def _indexed_errors(spec: Object, path: str) -> Iterator[FieldError]:
    completions, parallelism, failed = (spec.get(name) for name in ("completions", "parallelism", "maxFailedIndexes"))
    if completions is None:
        yield required(f"{path}.completions", "when completion mode is Indexed")
    if (parallelism or 0) > _INDEXES_MAX:
        detail = f"must be less than or equal to {_INDEXES_MAX} when completion mode is Indexed"
        yield invalid(f"{path}.parallelism", parallelism, detail)
    if completions is not None and (failed or 0) > completions:
        yield invalid(f"{path}.maxFailedIndexes", failed, "must be less than or equal to completions")
    if (failed or 0) > _INDEXES_MAX:
        yield invalid(f"{path}.maxFailedIndexes", failed, f"must be less than or equal to {_INDEXES_MAX}")
    if (completions or 0) > _INDEXES_MAX and spec.get("backoffLimitPerIndex") is not None:
        if failed is None:
            detail = f"must be specified when completions is above {_INDEXES_MAX}"
            yield required(f"{path}.maxFailedIndexes", detail)
        for name, value in (("parallelism", parallelism), ("maxFailedIndexes", failed)):
            if (value or 0) > _MANY_INDEXES_MAX:
                limits = f"{_MANY_INDEXES_MAX} when completions are above {_INDEXES_MAX}"
                detail = f"must be less than or equal to {limits} and used with backoff limit per index"
                yield invalid(f"{path}.{name}", value, detail)


_RULES_MAX: Final = 20
_CODES_MAX: Final = 255
_SUCCEEDED_INDEXES_MAX: Final = 64 * 1024
_ACTIONS: Final = ("Count", "FailIndex", "FailJob", "Ignore")
_STATES: Final = ("False", "True", "Unknown")


def _one_of(value: str, choices: tuple[str, ...], path: str) -> Iterator[FieldError]:
    if not value:
        yield required(path, f"valid values: [{' '.join(map(go_quote, choices))}]")
    elif value not in choices:
        yield unsupported(path, value, choices)


def _failure_policy_errors(spec: Object, rules: Sequence[Object], path: str) -> Iterator[FieldError]:
    if len(rules) > _RULES_MAX:
        yield too_many(path, len(rules), _RULES_MAX)
    pod = spec["template"].get("spec") or {}
    names = {item["name"] for kind in ("containers", "initContainers") for item in pod.get(kind) or ()}
    for place, rule in enumerate(rules):
        at, action = f"{path}[{place}]", rule.get("action", "")
        if action == "FailIndex":
            if spec.get("backoffLimitPerIndex") is None:
                yield invalid(f"{at}.action", action, "requires the backoffLimitPerIndex to be set")
        else:
            yield from _one_of(action, _ACTIONS, f"{at}.action")
        codes, patterns = rule.get("onExitCodes"), rule.get("onPodConditions") or ()
        if codes is not None:
            yield from _exit_code_errors(codes, names, f"{at}.onExitCodes")
        if len(patterns) > _RULES_MAX:
            yield too_many(f"{at}.onPodConditions", len(patterns), _RULES_MAX)
        for number, pattern in enumerate(patterns):
            below = f"{at}.onPodConditions[{number}]"
            yield from (invalid(f"{below}.type", pattern["type"], text) for text in label_key(pattern["type"]))
            yield from _one_of(pattern.get("status", ""), _STATES, f"{below}.status")
        if (codes is not None) == bool(patterns):
            problem = "specifying both OnExitCodes and OnPodConditions is not supported"
            missing = "specifying one of OnExitCodes and OnPodConditions is required"
            yield invalid(at, OMITTED, problem if patterns else missing)


def _exit_code_errors(rule: Object, containers: Collection[str], path: str) -> Iterator[FieldError]:
    operator, values = rule.get("operator", ""), rule.get("values") or []
    yield from _one_of(operator, ("In", "NotIn"), f"{path}.operator")
    if rule.get("containerName") not in {None, *containers}:
        detail = "must be one of the container or initContainer names in the pod template"
        yield invalid(f"{path}.containerName", rule["containerName"], detail)
    if not values:
        yield invalid(f"{path}.values", rule.get("values"), "at least one value is required")
    elif len(values) > _CODES_MAX:
        yield too_many(f"{path}.values", len(values), _CODES_MAX)
    for place, value in enumerate(values):
        if operator == "In" and value == 0:
            yield invalid(f"{path}.values[{place}]", value, "must not be 0 for the In operator")
        if value in values[:place]:
            yield duplicate(f"{path}.values[{place}]", value)
    if sorted(values) != values:
        yield invalid(f"{path}.values", values, "must be ordered")


def _success_policy_errors(spec: Object, rules: Sequence[Object], path: str) -> Iterator[FieldError]:
    if spec.get("completionMode") != "Indexed":
        names = ("SucceededIndexes", "SucceededCount")
        shown = [GoStruct({name: rule.get(name[0].lower() + name[1:]) for name in names}) for rule in rules]
        yield invalid(path, GoStruct({"Rules": shown or None}), "requires indexed completion mode")
        return
    completions = spec.get("completions") or 0
    if not rules:
        yield required(f"{path}.rules", "at least one rules must be specified when the successPolicy is specified")
    if len(rules) > _RULES_MAX:
        yield too_many(f"{path}.rules", len(rules), _RULES_MAX)
    for place, rule in enumerate(rules):
        at, count, indexes = f"{path}.rules[{place}]", rule.get("succeededCount"), rule.get("succeededIndexes")
        total = 0
        if count is None and indexes is None:
            yield required(at, "at least one of succeededCount or succeededIndexes must be specified")
        if indexes is not None:
            yield from check_length(indexes, _SUCCEEDED_INDEXES_MAX, f"{at}.succeededIndexes")
            try:
                total = _count_indexes(indexes, completions)
            except ValueError as error:
                yield invalid(f"{at}.succeededIndexes", indexes, f"error parsing succeededIndexes: {error}")
        if count is None:
            continue
        if count < 0:
            yield invalid(f"{at}.succeededCount", count, NOT_NEGATIVE)
        limits = [(completions, "number of specified completions")]
        limits += [(total, "number of indexes in the specified succeededIndexes field")] if indexes is not None else []
        for limit, meaning in limits:
            if count > limit:
                detail = f"must be less than or equal to {limit} (the {meaning})"
                yield invalid(f"{at}.succeededCount", count, detail)


def _count_indexes(text: str, completions: int) -> int:
    """Return how many indexes a text such as ``1,3-5`` names.

    Raises:
        ValueError: it is not such a text, or an index is too large.
    """
    total, former = 0, -1
    for part in text.split(",") if text else ():
        limits = part.split("-")
        if len(limits) > 2:
            rule = "an index interval can have at most two parts separated by '-'"
            raise ValueError(f"the fragment {go_quote(part)} violates the requirement that {rule}")
        first, *others = (_index(limit, completions) for limit in limits)
        last = others[0] if others else first
        if former >= first or (others and first >= last):
            before, now = (former, first) if former >= first else (first, last)
            raise ValueError(f"non-increasing order, previous: {before}, current: {now}")
        total, former = total + last - first + 1, last
    return total


def _index(text: str, completions: int) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"cannot convert string to integer for index: {go_quote(text)}")
    if len(text.lstrip("0")) > len(str(completions)) or int(text) >= completions:
        raise ValueError(f"too large index: {go_quote(text)}")
    return int(text)


def _pod_errors(template: Object, path: str, *, never: bool) -> Iterator[FieldError]:
    pod, policy = template.get("spec") or {}, f"{path}.restartPolicy"
    if not pod.get("containers"):
        yield required(f"{path}.containers")
    restart = pod.get("restartPolicy")
    if restart in {None, "", "Always"}:
        yield required(policy, 'valid values: "OnFailure", "Never"')
    elif restart not in {"OnFailure", "Never"}:
        yield unsupported(policy, str(restart), ("OnFailure", "Never"))
    elif never and restart != "Never":
        yield invalid(policy, restart, 'only "Never" is supported when podFailurePolicy is specified')


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


def _suspended(cron_job: Object) -> str:
    return str(bool(cron_job["spec"].get("suspend")))


def _last_schedule(cron_job: Object) -> str:
    last = (cron_job.get("status") or {}).get("lastScheduleTime")
    return format_age(last, datetime.now(UTC)) if last else NONE


def _of_jobs(column: Column) -> Column:
    """Return a column of Jobs for their template in a CronJob."""
    cell = column.cell
    assert cell is not None  # noqa: S101 - that of an age
    return replace(column, cell=lambda obj: cell(obj["spec"]["jobTemplate"]))


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
    Kind("batch", "cronjobs", "CronJob", True, {"v1": "batch/v1.CronJob"}, CronJobStrategy(), short_names=("cj",),
         categories=("all",), status=True, generation=True, deletion_status=True,
         columns=(NAME, Column("Schedule", text_cell("spec.schedule")),
                  Column("Timezone", text_cell("spec.timeZone", NONE)), Column("Suspend", _suspended, type="boolean"),
                  Column("Active", count_cell("status.active"), type="integer"),
                  Column("Last Schedule", _last_schedule), AGE, *map(_of_jobs, (*TEMPLATE, SELECTOR)))),
    Kind("apps", "controllerrevisions", "ControllerRevision", True, {"v1": "apps/v1.ControllerRevision"},
         deletion_status=True,
         columns=(NAME, Column("Controller", _controller), Column("Revision", number_cell("revision")), AGE)),
)  # fmt: skip
