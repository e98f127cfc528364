"""Rules for the kinds of scheduling.k8s.io/v1beta1: PodGroups and Workloads.

Sources: Kubernetes 1.37 ``pkg/apis/scheduling/validation``, and the declarative rules of its types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from dra_kit.kubernetes.release import Change, Release
from dra_kit.kubernetes.resource import names
from dra_kit.kubernetes.resource.field_errors import (
    FieldError,
    GoStruct,
    forbidden,
    invalid,
    mark_declarative,
    required,
)
from dra_kit.kubernetes.resource.v1 import Condition
from dra_kit.kubernetes.resource.validation.fields import (
    check_limit,
    find_duplicates,
    validate_conditions,
)
from dra_kit.kubernetes.values.json import Object

_CLAIMS_MAX: Final = 4
_TEMPLATES_MAX: Final = 8
_PRIORITY_MAX: Final = 1_000_000_000
_IMMUTABLE: Final = "field is immutable"
_CLAIM_FIELDS: Final = ("name", "resourceClaimName", "resourceClaimTemplateName")
_TEMPLATE_FIELDS: Final = (
    "name", "schedulingPolicy", "schedulingConstraints", "resourceClaims", "disruptionMode", "priorityClassName",
    "priority", "preemptionPolicy",
)  # fmt: skip


def validate_pod_group(group: Object, release: Release, old: Object | None = None) -> list[FieldError]:
    """Return the errors of a PodGroup, except those of its metadata and status.

    Args:
        group: the PodGroup.
        release: of the API server.
        old: what it replaces; what did not change is not checked again.
    """
    return mark_declarative(_pod_group_spec(group["spec"], old["spec"] if old is not None else None, release))


def _pod_group_spec(spec: Object, old: Object | None, release: Release) -> Iterator[FieldError]:
    yield from _fixed(spec, old, "workloadRef", "spec", _workload_reference)
    yield from _policy(spec, old, "spec.schedulingPolicy")
    yield from _common(spec, old, "spec", release)


def _common(spec: Object, old: Object | None, path: str, release: Release) -> Iterator[FieldError]:
    """Check what a PodGroup and a template of a Workload have in common, except the policy."""
    yield from _fixed(spec, old, "resourceClaims", path, _claims)
    yield from _fixed(spec, old, "disruptionMode", path, lambda mode, at: _union(mode, ("single", "all"), at))
    yield from _fixed(spec, old, "priorityClassName", path, _long_name)
    yield from _fixed(spec, old, "priority", path, partial(_priority, release=release))


def _fixed(
    spec: Object, old: Object | None, field: str, path: str, check: Callable[[Any, str], Iterable[FieldError]]
) -> Iterator[FieldError]:
    """Check a field that may not change."""
    value = spec.get(field)
    is_set = value not in (None, "", [])  # an empty struct counts
    if old is None:
        if is_set:
            yield from check(value, f"{path}.{field}")
    elif is_set != (old.get(field) not in (None, "", [])) or (is_set and value != old[field]):
        yield invalid(f"{path}.{field}", None, _IMMUTABLE)


def _workload_reference(reference: Object, path: str) -> Iterator[FieldError]:
    yield from _needed(reference.get("workloadName", ""), f"{path}.workloadName", names.dns_subdomain)
    yield from _needed(reference.get("templateName", ""), f"{path}.templateName", names.dns_label)


def _policy(spec: Object, old: Object | None, path: str) -> Iterator[FieldError]:
    """Check ``schedulingPolicy``: its kind stays; the size of a gang may change."""
    policy = spec.get("schedulingPolicy") or {}
    former = None if old is None else old.get("schedulingPolicy") or {}
    if policy == former:
        return
    yield from _union(policy, ("basic", "gang"), path)
    gang = policy.get("gang")
    if former is not None:
        if (policy.get("basic") is None) != (former.get("basic") is None):
            yield invalid(f"{path}.basic", None, _IMMUTABLE)
        if (gang is None) != (former.get("gang") is None):
            problem = "field cannot be cleared once set" if gang is None else "field cannot be set once created"
            yield invalid(f"{path}.gang", None, problem)
            return
    if gang is not None:
        count = gang.get("minCount", 0)
        if not count:
            yield required(f"{path}.gang.minCount")
        elif count < 1:
            yield invalid(f"{path}.gang.minCount", count, "must be greater than or equal to 1")


def _claims(claims: Sequence[Object], path: str) -> Iterator[FieldError]:
    errors = check_limit(claims, _CLAIMS_MAX, path)
    if errors:
        yield from errors
        return
    yield from find_duplicates([_ordered(claim, _CLAIM_FIELDS) for claim in claims], _name, path)
    for i, claim in enumerate(claims):
        where, sources = f"{path}[{i}]", ("resourceClaimName", "resourceClaimTemplateName")
        yield from _union(claim, sources, where)
        yield from _needed(_name(claim), f"{where}.name", names.dns_label)
        for source in sources:
            if claim.get(source) is not None:
                yield from _long_name(claim[source], f"{where}.{source}")


def _union(holder: Object, members: tuple[str, ...], path: str) -> Iterator[FieldError]:
    """Check that exactly one member is set."""
    given = [member for member in members if holder.get(member) not in (None, [])]
    if len(given) != 1:
        among = ", ".join(f"`{member}`" for member in members)
        shown = f"{{{', '.join(given)}}}" if given else ""
        yield invalid(path, shown, f"must specify {'exactly one of' if given else 'one of'}: {among}")


def _priority(priority: int, path: str, release: Release) -> Iterator[FieldError]:
    if priority > _PRIORITY_MAX and not release.has(Change.PRIORITIES_OF_GROUPS_ARE_UNLIMITED):
        yield invalid(path, priority, f"must be less than or equal to {_PRIORITY_MAX}")


def _long_name(name: str, path: str) -> Iterator[FieldError]:
    yield from (invalid(path, name, text) for text in names.dns_subdomain(name))


def _needed(name: str, path: str, problems: Callable[[str], Iterable[str]]) -> Iterator[FieldError]:
    if not name:
        yield required(path)
    elif problems is names.dns_label and "." in name:
        yield invalid(path, name, "must not contain dots")
    else:
        yield from (invalid(path, name, text) for text in problems(name))


def _name(holder: Object) -> str:
    return str(holder.get("name", ""))


def _ordered(holder: Object, fields: Iterable[str]) -> GoStruct:
    return GoStruct({field: holder.get(field) for field in fields if field in holder})


def validate_pod_group_status(status: Object, spec: Object, release: Release) -> list[FieldError]:
    """Return the errors of the status of a PodGroup."""
    conditions = [Condition.model_validate(item) for item in status.get("conditions") or ()]
    errors = validate_conditions(conditions, "status.conditions", release, limit=None)
    statuses, path = status.get("resourceClaimStatuses") or (), "status.resourceClaimStatuses"
    known = {_name(claim) for claim in spec.get("resourceClaims") or ()}
    for i, item in enumerate(statuses):
        if _name(item) not in known:
            detail = "must match the name of an entry in `spec.resourceClaims`"
            errors.append(invalid(f"{path}[{i}].name", _name(item), detail))
    if too_long := check_limit(statuses, _CLAIMS_MAX, path):
        return errors + too_long
    declared = find_duplicates([_ordered(item, _CLAIM_FIELDS[:2]) for item in statuses], _name, path)
    for i, item in enumerate(statuses):
        if item.get("resourceClaimName") is not None:
            declared += _long_name(item["resourceClaimName"], f"{path}[{i}].resourceClaimName")
    return errors + mark_declarative(declared)


def validate_workload(workload: Object, release: Release, old: Object | None = None) -> list[FieldError]:
    """Return the errors of a Workload, except those of its metadata.

    Args:
        workload: the Workload.
        release: of the API server.
        old: what it replaces; what did not change is not checked again.
    """
    templates = workload["spec"].get("podGroupTemplates") or ()
    errors = []
    if len({(item.get("priorityClassName") or "", item.get("priority")) for item in templates}) > 1:
        errors.append(invalid("spec", None, "detected multiple priority configurations"))
    before = old["spec"] if old is not None else None
    return errors + mark_declarative(_workload_spec(workload["spec"], before, release))


def _workload_spec(spec: Object, old: Object | None, release: Release) -> Iterator[FieldError]:
    templates: Sequence[Object] = spec.get("podGroupTemplates") or ()
    path = "spec.podGroupTemplates"
    if old is None or templates != (old.get("podGroupTemplates") or ()):
        yield from _union(spec, ("podGroupTemplates", "compositePodGroupTemplates"), "spec")
    yield from _fixed(spec, old, "controllerRef", "spec", _controller)
    yield from check_limit(templates, _TEMPLATES_MAX, path)
    if len(templates) > _TEMPLATES_MAX:
        return
    shown = [_ordered({"schedulingConstraints": None, **item}, _TEMPLATE_FIELDS) for item in templates]
    yield from find_duplicates(shown, _name, path)
    former = {_name(item): item for item in (old or {}).get("podGroupTemplates") or ()}
    for i, item in enumerate(templates):
        where = f"{path}[{i}]"
        if old is not None and _name(item) not in former:
            yield forbidden(where, "item may not be added")
            continue
        if old is None:
            yield from _needed(_name(item), f"{where}.name", names.dns_label)
        yield from _policy(item, former.get(_name(item)), f"{where}.schedulingPolicy")
        yield from _common(item, former.get(_name(item)), where, release)
    if former.keys() - {_name(item) for item in templates}:
        yield forbidden(path, "item may not be removed")


def _controller(reference: Object, path: str) -> Iterator[FieldError]:
    if group := reference.get("apiGroup"):
        yield from _long_name(group, f"{path}.apiGroup")
    for field in ("kind", "name"):
        yield from _needed(reference.get(field, ""), f"{path}.{field}", names.path_segment)
