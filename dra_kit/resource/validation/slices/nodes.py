"""Which nodes a slice or device is for."""

from __future__ import annotations

from dra_kit.resource import names, v1
from dra_kit.resource.fielderror import FieldError, GoStruct, forbidden, invalid, required


def validate_node_name(name: str, path: str) -> list[FieldError]:
    """Check the name of a node: a DNS subdomain."""
    return [invalid(path, name, text) for text in names.dns_subdomain(name, unit="characters")]


def validate_node_selector(selector: v1.NodeSelector, path: str) -> list[FieldError]:
    """Check at least one term, and every requirement (k8s.io/kubernetes ``ValidateNodeSelector``)."""
    terms = f"{path}.nodeSelectorTerms"
    if not selector.node_selector_terms:
        return [required(terms, "must have at least one node selector term")]
    errors = []
    for i, term in enumerate(selector.node_selector_terms):
        for j, requirement in enumerate(term.match_expressions):
            errors += _label_requirement(requirement, f"{terms}[{i}].matchExpressions[{j}]")
        for j, requirement in enumerate(term.match_fields):
            errors += _field_requirement(requirement, f"{terms}[{i}].matchFields[{j}]")
    return errors


def validate_one_term(selector: v1.NodeSelector, path: str) -> list[FieldError]:
    """Check that the selector of a whole slice has exactly one term."""
    terms = selector.node_selector_terms
    if len(terms) == 1:
        return []
    shown = [_go_term(term) for term in terms] if "node_selector_terms" in selector.model_fields_set else None
    return [invalid(f"{path}.nodeSelectorTerms", shown, "must have exactly one node selector term")]


def _label_requirement(requirement: v1.NodeSelectorRequirement, path: str) -> list[FieldError]:
    errors = []
    match requirement.operator:
        case "In" | "NotIn":
            if not requirement.values:
                errors.append(required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
        case "Exists" | "DoesNotExist":
            if requirement.values:
                detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                errors.append(forbidden(f"{path}.values", detail))
        case "Gt" | "Lt":
            if len(requirement.values) != 1:
                detail = "must be specified single value when `operator` is 'Lt' or 'Gt'"
                errors.append(required(f"{path}.values", detail))
        case operator:
            errors.append(invalid(f"{path}.operator", operator, "not a valid selector operator"))
    errors += [invalid(f"{path}.key", requirement.key, text) for text in names.label_key(requirement.key)]
    for i, value in enumerate(requirement.values):
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
