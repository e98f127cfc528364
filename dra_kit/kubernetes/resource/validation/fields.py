"""Rules for several kinds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from dra_kit.kubernetes.release import Change, KubernetesVersion, Release
from dra_kit.kubernetes.resource import names, v1
from dra_kit.kubernetes.resource.field_errors import (
    NOT_NEGATIVE,
    FieldError,
    GoStruct,
    check_length,
    duplicate,
    forbidden,
    invalid,
    mark_declarative,
    required,
    too_long,
    too_many,
    unsupported,
)
from dra_kit.kubernetes.values.json import RAW_OBJECT_MAX_LENGTH, Object, json_size
from dra_kit.kubernetes.values.quantity import Quantity

_ANNOTATIONS_MAX: Final = 256 * 1024
_STANDARD_FINALIZERS: Final = {"orphan", "foregroundDeletion", "kubernetes"}


def subdomain_problems(name: str) -> list[str]:
    """Return the problems of an object name, by the rule of most kinds."""
    return names.dns_subdomain(name, unit="characters")


def validate_object_meta(
    metadata: Object,
    *,
    namespaced: bool,
    name_problems: Callable[[str], list[str]],
    prefix_problems: Callable[[str], list[str]] | None = None,
    release: Release,
) -> list[FieldError]:
    """Return the errors of the metadata of an object.

    Args:
        metadata: values of the right types.
        namespaced: whether objects of the kind have a namespace.
        name_problems: the kind's rule for names.
        prefix_problems: the kind's rule for ``generateName``; by default that for names.
        release: of the API server.
    """
    errors: list[FieldError] = []
    prefix, name = metadata.get("generateName"), metadata.get("name")
    if prefix:
        masked = f"{prefix[:-1]}a" if prefix.endswith("-") else prefix
        errors += [
            invalid("metadata.generateName", prefix, text) for text in (prefix_problems or name_problems)(masked)
        ]
    if name:
        errors += [invalid("metadata.name", name, text) for text in name_problems(name)]
    elif not prefix:
        errors.append(required("metadata.name", "name or generateName is required"))
    namespace = metadata.get("namespace")
    if namespace and not namespaced:
        errors.append(forbidden("metadata.namespace", "not allowed on this type"))
    elif namespace:
        errors += [invalid("metadata.namespace", namespace, text) for text in names.dns_label(namespace)]
    elif namespaced:
        errors.append(required("metadata.namespace"))
    if metadata.get("generation", 0) < 0:
        errors.append(invalid("metadata.generation", metadata["generation"], NOT_NEGATIVE))
    errors += validate_labels(metadata.get("labels"), "metadata.labels")
    return [*errors, *_annotations(metadata), *_owners(metadata, release), *_finalizers(metadata)]


def validate_labels(labels: Mapping[str, str] | None, path: str) -> list[FieldError]:
    """Check keys and values; errors of both have the path of the map."""
    errors = []
    for key, value in sorted((labels or {}).items()):
        errors += [invalid(path, key, text) for text in names.label_key(key)]
        errors += [invalid(path, value, text) for text in names.label_value(value)]
    return errors


def validate_annotation_keys(annotations: Iterable[str], path: str) -> list[FieldError]:
    """Check keys, which are like those of labels, but not case-sensitive."""
    return [invalid(path, key, text) for key in sorted(annotations) for text in names.label_key(key.lower())]


def _annotations(metadata: Object) -> list[FieldError]:
    annotations = metadata.get("annotations") or {}
    errors = validate_annotation_keys(annotations, "metadata.annotations")
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > _ANNOTATIONS_MAX:
        errors.append(too_long("metadata.annotations", "", _ANNOTATIONS_MAX))
    return errors


def _owners(metadata: Object, release: Release) -> list[FieldError]:
    errors: list[FieldError] = []
    owners = metadata.get("ownerReferences") or []
    controllers = []
    for i, owner in enumerate(owners):
        numbered = release.has(Change.OWNERS_ARE_NUMBERED)
        path = f"metadata.ownerReferences[{i}]" if numbered else "metadata.ownerReferences"
        missing = [f"{path}.{name}" for name in ("apiVersion", "kind", "name", "uid") if not owner.get(name)]
        if release.has(Change.OWNERS_ARE_DECLARED):
            errors += mark_declarative(map(required, missing))
        elif numbered:
            errors += [required(where, "must not be empty") for where in missing]
        else:
            errors += [invalid(where, "", "must not be empty") for where in missing]
        if (owner.get("apiVersion") or "").count("/") > 1:
            detail = "must be <group>/<version> or <version>" if numbered else "version must not be empty"
            errors.append(invalid(f"{path}.apiVersion", owner["apiVersion"], detail))
        if (owner.get("apiVersion"), owner.get("kind")) == ("v1", "Event"):
            errors.append(invalid(path, _owner(owner), "/v1, Kind=Event is disallowed from being an owner"))
        if owner.get("controller"):
            controllers.append(owner)
    if len(controllers) > 1:
        detail = (
            'Only one reference can have Controller set to true. Found "true" in references for '
            f"{controllers[0].get('kind')}/{controllers[0].get('name')} and "
            f"{controllers[1].get('kind')}/{controllers[1].get('name')}"
        )
        errors.append(invalid("metadata.ownerReferences", [_owner(owner) for owner in owners], detail))
    return errors


def _owner(owner: Mapping[str, Any]) -> Any:
    order = ("apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion")
    return GoStruct({name: owner[name] for name in order if name in owner})


def _finalizers(metadata: Object) -> list[FieldError]:
    finalizers = metadata.get("finalizers") or []
    errors: list[FieldError] = []
    for i, finalizer in enumerate(finalizers):
        errors += [invalid("metadata.finalizers", finalizer, text) for text in names.label_key(finalizer)]
        if "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            detail = "name is neither a standard finalizer name nor is it fully qualified"
            errors.append(invalid(f"metadata.finalizers[{i}]", finalizer, detail))
    if {"orphan", "foregroundDeletion"} <= set(finalizers):
        detail = "finalizer orphan and foregroundDeletion cannot be both set"
        errors.append(invalid("metadata.finalizers", finalizers, detail))
    return errors


_Item = TypeVar("_Item")


def entries_within(items: Sequence[_Item], limit: int, path: str, release: Release) -> Iterator[tuple[str, _Item]]:
    """Yield the entries to validate with their paths; none if the list is too long."""
    if len(items) <= limit or not release.has(Change.LONG_LISTS_ARE_NOT_READ):
        for i, item in enumerate(items):
            yield f"{path}[{i}]", item


def found_after_refusal(errors: Sequence[FieldError], release: Release) -> list[FieldError]:
    """Return those errors inside a list or choice that a release reports besides the refusal of the whole.

    Hand-written rules stop at the refusal, declarative ones do not. Before Kubernetes 1.35, no rule stopped.
    """
    if not release.has(Change.LONG_LISTS_ARE_NOT_READ):
        return list(errors)
    return [error for error in errors if error.declarative and release.has(Change.RULES_ARE_DECLARED)]


def check_limit(items: Sequence[_Item], limit: int, path: str) -> list[FieldError]:
    """Return the error about a list that is too long."""
    return mark_declarative([too_many(path, len(items), limit)]) if len(items) > limit else []


def find_duplicates(
    items: Iterable[_Item], key: Callable[[_Item], Hashable], path: str, name: str = ""
) -> list[FieldError]:
    """Return the errors about entries with the key of an earlier one; their value is the entry.

    Args:
        items: the entries.
        key: returns what may not repeat.
        path: of the list.
        name: the field of an entry that is its key, where older releases report it.
    """
    seen: set[Hashable] = set()
    errors = []
    for i, item in enumerate(items):
        if key(item) in seen:
            errors.append(duplicate(f"{path}[{i}]", item, key=name, repeated=key(item) if name else None))
        seen.add(key(item))
    return mark_declarative(errors)


def repeated_names(names: Sequence[str], path: str) -> list[FieldError]:
    """Return the errors about duplicate texts."""
    seen: set[str] = set()
    errors = []
    for i, name in enumerate(names):
        if name in seen:
            errors.append(duplicate(f"{path}[{i}]", name))
        seen.add(name)
    return errors


def require_one_of(value: str, choices: tuple[str, ...], path: str, *, in_order: bool = False) -> list[FieldError]:
    """Check a required value; the error lists the choices sorted unless ``in_order``."""
    if not value:
        return [required(path)]
    return [] if value in choices else [unsupported(path, value, choices, in_order=in_order)]


CONDITIONS_MAX: Final = 8
_STATUSES: Final = ("False", "True", "Unknown")
_REASON_MAX_LENGTH: Final = 1024
_MESSAGE_MAX_LENGTH: Final = 32 * 1024


def validate_conditions(
    conditions: Sequence[v1.Condition], path: str, release: Release, *, limit: int | None = CONDITIONS_MAX
) -> list[FieldError]:
    """Check conditions, one of each type, of which most kinds allow eight."""
    errors = [too_many(path, len(conditions), limit)] if limit is not None and len(conditions) > limit else []
    seen: set[str] = set()
    for i, condition in enumerate(conditions):
        where = f"{path}[{i}]"
        if condition.type in seen:
            whole = release.has(Change.CONDITIONS_ARE_A_MAP)
            found = duplicate(where, condition if whole else condition.type, key="type")
            errors.append(replace(found, declarative=whole))
        seen.add(condition.type)
        errors += _validate_condition(condition, where, release)
    return errors


def _validate_condition(condition: v1.Condition, path: str, release: Release) -> list[FieldError]:
    errors = []
    if not condition.type:
        errors.append(required(f"{path}.type", "is required"))
    else:
        errors += [invalid(f"{path}.type", condition.type, text) for text in names.label_key(condition.type)]
    if condition.status or release.has(Change.EMPTY_STATUSES_ARE_MISSING):
        errors += require_one_of(condition.status, _STATUSES, f"{path}.status")
    else:
        errors.append(unsupported(f"{path}.status", "", _STATUSES))
    if condition.observed_generation is not None and condition.observed_generation < 0:
        detail = "must be greater than or equal to zero"
        errors.append(invalid(f"{path}.observedGeneration", condition.observed_generation, detail))
    if condition.last_transition_time is None:
        errors.append(required(f"{path}.lastTransitionTime"))
    if not condition.reason:
        errors.append(required(f"{path}.reason"))
    else:
        errors += [
            invalid(f"{path}.reason", condition.reason, text) for text in names.condition_reason(condition.reason)
        ]
        errors += check_length(condition.reason, _REASON_MAX_LENGTH, f"{path}.reason")
    return errors + check_length(condition.message, _MESSAGE_MAX_LENGTH, f"{path}.message")


EFFECTS: Final = ("NoExecute", "NoSchedule", "None")


def taint_effects(version: KubernetesVersion) -> tuple[str, ...]:
    """Return the effects of taints that a release knows."""
    return EFFECTS if version.has(Change.NONE_IS_AN_EFFECT) else EFFECTS[:2]


_OPERATORS: Final = ("Equal", "Exists")


def validate_taint(
    taint: v1.DeviceTaint, path: str, release: Release, *, check_effect: bool = True
) -> list[FieldError]:
    """Check a taint in a slice or rule."""
    errors = [invalid(f"{path}.key", taint.key, text) for text in names.label_key(taint.key)]
    errors += [invalid(f"{path}.value", taint.value, text) for text in names.label_value(taint.value)]
    if check_effect:
        errors += mark_declarative(require_one_of(taint.effect, taint_effects(release.version), f"{path}.effect"))
    return errors


def validate_tolerations(tolerations: Sequence[v1.DeviceToleration], path: str, release: Release) -> list[FieldError]:
    """Check tolerations of a request or result; their number is not limited (Kubernetes 1.37)."""
    errors = []
    for i, toleration in enumerate(tolerations):
        errors += _validate_toleration(toleration, f"{path}[{i}]", taint_effects(release.version))
    return errors


def _validate_toleration(toleration: v1.DeviceToleration, path: str, effects: tuple[str, ...]) -> list[FieldError]:
    key, operator, value, effect = toleration.key, toleration.operator, toleration.value, toleration.effect
    errors = []
    if key:
        errors += mark_declarative(invalid(f"{path}.key", key, text) for text in names.label_key(key))
    if operator == "Exists" and value:
        errors.append(invalid(f"{path}.value", value, "must be empty for operator `Exists`"))
    elif operator == "Equal":
        errors += [invalid(f"{path}.value", value, text) for text in names.label_value(value)]
    elif operator not in _OPERATORS:
        errors += mark_declarative([unsupported(f"{path}.operator", operator, _OPERATORS)])
    if effect and effect not in effects:
        errors += mark_declarative([unsupported(f"{path}.effect", effect, effects)])
    return errors


BINDING_CONDITIONS_MAX: Final = 4
"""Entries of ``bindingConditions``, and of ``bindingFailureConditions``."""


def validate_binding(
    holder: v1.Device | v1.DeviceRequestAllocationResult, path: str, release: Release
) -> list[FieldError]:
    """Check both lists of a device or result; ``path`` is that of the device or result."""
    conditions, failures = holder.binding_conditions, holder.binding_failure_conditions
    errors = _validate_list(conditions, f"{path}.bindingConditions", release)
    errors += _validate_list(failures, f"{path}.bindingFailureConditions", release)
    listed = set(conditions)
    for i, condition in enumerate(failures):
        if condition in listed:
            detail = "bindingFailureConditions must not overlap with bindingConditions"
            errors.append(invalid(f"{path}.bindingFailureConditions[{i}]", condition, detail))
    present = {"bindingConditions": conditions, "bindingFailureConditions": failures}
    if bool(conditions) != bool(failures):
        missing, other = sorted(present, key=lambda name: len(present[name]))
        field = "binding_conditions" if missing == "bindingConditions" else "binding_failure_conditions"
        shown: list[str] | None = [] if field in holder.model_fields_set else None
        errors.append(invalid(f"{path}.{missing}", shown, f"{missing} are required to use {other}"))
    return errors


def _validate_list(conditions: tuple[str, ...], path: str, release: Release) -> list[FieldError]:
    """Check a list; duplicates are reported even if it is too long."""
    errors = check_limit(conditions, BINDING_CONDITIONS_MAX, path)
    for where, condition in entries_within(conditions, BINDING_CONDITIONS_MAX, path, release):
        errors += [invalid(where, condition, text) for text in names.label_key(condition)]
    return errors + repeated_names(conditions, path)


CAPACITIES_MAX: Final = 32
"""Capacities of a request or result."""


def validate_amounts(amounts: Mapping[str, Quantity], path: str, release: Release) -> list[FieldError]:
    """Check the capacities that a request asks for or a result has; ``path`` is that of the map."""
    if not release.has(Change.REQUESTED_CAPACITIES_ARE_CHECKED):
        return []
    errors = [error for name in amounts for error in names.qualified_name(name, path, release)]
    if len(amounts) > CAPACITIES_MAX:
        return errors + mark_declarative([too_many(path, len(amounts), CAPACITIES_MAX)])
    negative = (invalid(f"{path}[{name}]", amount, NOT_NEGATIVE) for name, amount in amounts.items() if amount.sign < 0)
    return errors + mark_declarative(negative)


def validate_opaque(
    configuration: v1.OpaqueDeviceConfiguration | None, path: str, *, stored: bool = False
) -> list[FieldError]:
    """Check ``opaque`` of one entry; ``path`` is that of the entry.

    Args:
        configuration: the value.
        path: path of the entry.
        stored: whether it is already stored, perhaps by an older release; its size is not checked then.
    """
    if configuration is None:
        return [required(f"{path}.opaque")]
    where = f"{path}.opaque.parameters"
    if configuration.parameters is None:
        errors = [required(where)]
    else:
        errors = validate_object(configuration.parameters, where, stored=stored)
    return errors + names.declared_driver_name(configuration.driver, f"{path}.opaque.driver")


def validate_object(value: Any, path: str, *, stored: bool = False) -> list[FieldError]:
    """Check a JSON object of at most 10 KiB."""
    if not stored and json_size(value) > RAW_OBJECT_MAX_LENGTH:
        return [too_long(path, value, RAW_OBJECT_MAX_LENGTH)]
    return [] if isinstance(value, dict) else [invalid(path, "<value omitted>", "must be a valid JSON object")]


def validate_node_name(name: str, path: str) -> list[FieldError]:
    """Check the name of a node: a DNS subdomain."""
    return [invalid(path, name, text) for text in names.dns_subdomain(name, unit="characters")]


def validate_node_selector(selector: v1.NodeSelector, path: str) -> list[FieldError]:
    """Check at least one term, and every requirement (k8s.io/kubernetes ``ValidateNodeSelector``)."""
    terms = f"{path}.nodeSelectorTerms"
    if not selector.node_selector_terms:
        return [required(terms, "must have at least one node selector term")]
    return [
        error
        for i, term in enumerate(selector.node_selector_terms)
        for error in validate_node_selector_term(term, f"{terms}[{i}]")
    ]


def validate_node_selector_term(term: v1.NodeSelectorTerm, path: str, *, check_values: bool = True) -> list[FieldError]:
    """Check the requirements of a term; those of a preference may have values that no label has."""
    errors = []
    for j, requirement in enumerate(term.match_expressions):
        errors += _label_requirement(requirement, f"{path}.matchExpressions[{j}]", check_values=check_values)
    for j, requirement in enumerate(term.match_fields):
        errors += _field_requirement(requirement, f"{path}.matchFields[{j}]")
    return errors


def validate_one_term(selector: v1.NodeSelector, path: str) -> list[FieldError]:
    """Check that the selector of a slice or device has exactly one term."""
    terms = selector.node_selector_terms
    if len(terms) == 1:
        return []
    shown = [_go_term(term) for term in terms] if "node_selector_terms" in selector.model_fields_set else None
    return [invalid(f"{path}.nodeSelectorTerms", shown, "must have exactly one node selector term")]


def _label_requirement(requirement: v1.NodeSelectorRequirement, path: str, *, check_values: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    match requirement.operator:
        case "In" | "NotIn" | "Exists" | "DoesNotExist":
            errors += operand_errors(requirement.operator, requirement.values, path)
        case "Gt" | "Lt":
            if len(requirement.values) != 1:
                detail = "must be specified single value when `operator` is 'Lt' or 'Gt'"
                errors.append(required(f"{path}.values", detail))
        case operator:
            errors.append(invalid(f"{path}.operator", operator, "not a valid selector operator"))
    errors += [invalid(f"{path}.key", requirement.key, text) for text in names.label_key(requirement.key)]
    for i, value in enumerate(requirement.values if check_values else ()):
        errors += [invalid(f"{path}.values[{i}]", value, text) for text in names.label_value(value)]
    return errors


def _field_requirement(requirement: v1.NodeSelectorRequirement, path: str) -> list[FieldError]:
    errors = []
    if requirement.operator not in {"In", "NotIn"}:
        errors.append(invalid(f"{path}.operator", requirement.operator, "not a valid selector operator"))
    elif len(requirement.values) != 1:
        detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        errors.append(required(f"{path}.values", detail))
    if requirement.key != "metadata.name":
        errors.append(invalid(f"{path}.key", requirement.key, "not a valid field selector key"))
        return errors
    for i, value in enumerate(requirement.values):
        errors += validate_node_name(value, f"{path}.values[{i}]")
    return errors


def _go_term(term: v1.NodeSelectorTerm) -> GoStruct:
    return GoStruct(
        MatchExpressions=[_go_requirement(item) for item in term.match_expressions] or None,
        MatchFields=[_go_requirement(item) for item in term.match_fields] or None,
    )


def _go_requirement(requirement: v1.NodeSelectorRequirement) -> GoStruct:
    return GoStruct(Key=requirement.key, Operator=requirement.operator, Values=requirement.values or None)


PREPARE: Final = "NodePrepareResources"
UNPREPARE: Final = "NodeUnprepareResources"
_OPERATIONS: Final = ("*", PREPARE, UNPREPARE)


def validate_skipped_operations(operations: Sequence[str], path: str) -> list[FieldError]:
    """Check ``skipNodeOperations``: nothing is prepared only where nothing is unprepared either."""
    errors = []
    if PREPARE in operations and UNPREPARE not in operations and "*" not in operations:
        detail = f"{PREPARE} cannot be skipped unless {UNPREPARE} is also skipped"
        errors.append(invalid(path, operations, detail))
    declared = repeated_names(operations, path)
    unknown = (i for i, operation in enumerate(operations) if operation not in _OPERATIONS)
    declared += [unsupported(f"{path}[{i}]", operations[i], _OPERATIONS) for i in unknown]
    return errors + mark_declarative(declared)


_REFERENCE: Final = (
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
)


def validate_reference(reference: str, known: frozenset[str], path: str) -> list[FieldError]:
    """Check a reference to a request or subrequest."""
    segments = reference.split("/")
    errors = []
    if len(segments) <= 2:
        for segment in segments:
            errors += names.label_errors(segment, path)
    return errors if reference in known else [*errors, invalid(path, reference, _REFERENCE)]


REFERENCES_MAX: Final = 32
"""Requests that one constraint or configuration names."""


def validate_request_references(
    references: tuple[str, ...], known: frozenset[str], path: str, release: Release
) -> list[FieldError]:
    """Check the requests that a constraint or configuration names."""
    errors = check_limit(references, REFERENCES_MAX, path)
    entries = [*entries_within(references, REFERENCES_MAX, path, release)]
    for where, reference in entries:
        errors += validate_reference(reference, known, where)
    return errors + mark_declarative(repeated_names([reference for _, reference in entries], path))


def label_selector_errors(selector: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Yield the errors of a ``LabelSelector``."""
    for key, value in (selector.get("matchLabels") or {}).items():
        yield from (invalid(f"{path}.matchLabels", key, text) for text in names.label_key(key))
        yield from (invalid(f"{path}.matchLabels", value, text) for text in names.label_value(value))
    for i, requirement in enumerate(selector.get("matchExpressions") or ()):
        yield from label_requirement_errors(requirement, f"{path}.matchExpressions[{i}]")


def label_requirement_errors(
    requirement: Mapping[str, Any], path: str, *, any_operator: bool = False
) -> Iterator[FieldError]:
    """Yield the errors of a ``LabelSelectorRequirement``, whose operator may be one of a later release on request."""
    operator, values = requirement.get("operator") or "", requirement.get("values") or ()
    if operator in {"In", "NotIn", "Exists", "DoesNotExist"}:
        yield from operand_errors(operator, values, path)
    elif not any_operator:
        yield invalid(f"{path}.operator", operator, "not a valid selector operator")
    key = requirement.get("key") or ""
    yield from (invalid(f"{path}.key", key, text) for text in names.label_key(key))
    for i, value in enumerate(values):
        yield from (invalid(f"{path}.values[{i}]", value, text) for text in names.label_value(value))


def operand_errors(operator: str, values: Sequence[str], path: str) -> Iterator[FieldError]:
    """Yield the error of an operator of selectors that has too few or too many values."""
    if operator in {"In", "NotIn"} and not values:
        yield required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    if operator in {"Exists", "DoesNotExist"} and values:
        yield forbidden(f"{path}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
