"""Which requests webhooks and policies are asked about.

Source of the rules: Kubernetes 1.37 ``pkg/apis/admissionregistration/validation`` and k8s.io/apimachinery 0.37
``pkg/apis/meta/v1/validation``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dra_kit.apiserver.kinds.strategy import PathSegmentNamed
from dra_kit.kubernetes.resource import names
from dra_kit.kubernetes.resource.field_errors import FieldError, duplicate, forbidden, invalid, required, unsupported
from dra_kit.kubernetes.values.json import Object

_OPERATIONS: Final = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_SCOPES: Final = ("*", "Cluster", "Namespaced")
_MATCH_POLICIES: Final = ("Equivalent", "Exact")


def match_resources(resources: Object, path: str) -> Iterator[FieldError]:
    """Yield what is wrong with ``MatchResources``."""
    policy = resources.get("matchPolicy")
    if policy is not None and policy not in _MATCH_POLICIES:
        yield unsupported(f"{path}.matchPolicy", policy, _MATCH_POLICIES)
    for field in ("namespaceSelector", "objectSelector"):
        yield from selector_problems(resources.get(field) or {}, f"{path}.{field}")
    for field in ("resourceRules", "excludeResourceRules"):
        for i, rule in enumerate(resources.get(field) or ()):
            where = f"{path}.{field}[{i}]"
            for j, name in enumerate(rule.get("resourceNames") or ()):
                yield from (invalid(f"{where}.resourceNames[{j}]", name, text) for text in path_segment(name))
                if name in rule["resourceNames"][:j]:
                    yield duplicate(f"{where}.resourceNames[{j}]", name)
            yield from rule_problems(rule, where)


path_segment: Final = PathSegmentNamed().name_problems
"""What keeps a name from being one segment of a path."""


def selector_problems(selector: Object, path: str) -> Iterator[FieldError]:
    """Yield what is wrong with a ``LabelSelector``."""
    for key, value in (selector.get("matchLabels") or {}).items():
        yield from (invalid(f"{path}.matchLabels", key, text) for text in names.label_key(key))
        yield from (invalid(f"{path}.matchLabels", value, text) for text in names.label_value(value))
    for i, expression in enumerate(selector.get("matchExpressions") or ()):
        where, operator, values = f"{path}.matchExpressions[{i}]", expression.get("operator"), expression.get("values")
        if operator in {"In", "NotIn"}:
            if not values:
                yield required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        elif operator in {"Exists", "DoesNotExist"}:
            if values:
                text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                yield forbidden(f"{where}.values", text)
        else:
            yield invalid(f"{where}.operator", operator, "not a valid selector operator")
        key = expression.get("key", "")
        yield from (invalid(f"{where}.key", key, text) for text in names.label_key(key))
        for j, value in enumerate(values or ()):
            yield from (invalid(f"{where}.values[{j}]", value, text) for text in names.label_value(value))


def rule_problems(rule: Object, path: str) -> Iterator[FieldError]:
    """Yield what is wrong with the operations and resources of a webhook or a policy."""
    operations = rule.get("operations") or []
    if not operations:
        yield required(f"{path}.operations")
    if "*" in operations and len(operations) > 1:
        yield invalid(f"{path}.operations", operations, "if '*' is present, must not specify other operations")
    for i, operation in enumerate(operations):
        if operation not in _OPERATIONS:
            yield unsupported(f"{path}.operations[{i}]", operation, _OPERATIONS)
    for field, what in (("apiGroups", "API groups"), ("apiVersions", "API versions")):
        values = rule.get(field) or []
        if not values:
            yield required(f"{path}.{field}")
        if "*" in values and len(values) > 1:
            yield invalid(f"{path}.{field}", values, f"if '*' is present, must not specify other {what}")
        if field == "apiVersions":
            yield from (required(f"{path}.{field}[{i}]") for i, value in enumerate(values) if not value)
    yield from _resources(rule.get("resources") or [], f"{path}.resources")
    if rule.get("scope") is not None and rule["scope"] not in _SCOPES:
        yield unsupported(f"{path}.scope", rule["scope"], _SCOPES)


def _resources(resources: list[str], path: str) -> Iterator[FieldError]:
    """Yield every resource with its part, and that none is named that a wildcard covers."""
    if not resources:
        yield required(path)
    everything_of: set[str] = set()
    every: set[str] = set()
    for i, item in enumerate(resources):
        if not item:
            yield required(f"{path}[{i}]")
            continue
        name, slash, part = item.partition("/")
        covering = f"{name}/*" if name in everything_of and part != "*" else ""
        covering = covering or (f"*/{part}" if part in every and name != "*" else "")
        if "*/*" in resources[:i] and slash:
            covering = "*/*"
        if slash and covering:
            yield invalid(f"{path}[{i}]", item, f"if '{covering}' is present, must not specify {item}")
        if part == "*":
            everything_of.add(name)
        if name == "*" and slash:
            every.add(part)
    if "*/*" in resources and len(resources) > 1:
        yield invalid(path, resources, "if '*/*' is present, must not specify other resources")
    if "*" in resources and any("/" not in item for item in resources if item != "*"):
        detail = "if '*' is present, must not specify other resources without subresources"
        yield invalid(path, resources, detail)
