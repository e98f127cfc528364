"""What the rules of roles allow, and whether some rules allow all that others do.

Source: Kubernetes 1.37 ``pkg/apis/rbac/v1/evaluation_helpers.go`` and k8s.io/component-helpers 0.37
``auth/rbac/validation``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from dra_kit.apiserver.authorization.attributes import Attributes
from dra_kit.kubernetes.resource.field_errors import go_quote

Rule: TypeAlias = dict[str, Any]
"""``rbac.authorization.k8s.io/v1 PolicyRule``."""


def allows(rule: Rule, attributes: Attributes) -> bool:
    """Return whether one rule allows what somebody wants."""
    if not _has(rule, "verbs", attributes.verb):
        return False
    if attributes.is_path:
        return any(_path_covers(url, attributes.path) for url in rule.get("nonResourceURLs") or ())
    names = rule.get("resourceNames") or ()
    return (
        _has(rule, "apiGroups", attributes.group)
        and any(_resource_matches(item, attributes) for item in rule.get("resources") or ())
        and (not names or attributes.name in names)
    )


def _has(rule: Rule, field: str, value: str) -> bool:
    values = rule.get(field) or ()
    return "*" in values or value in values


def _resource_matches(pattern: str, attributes: Attributes) -> bool:
    if pattern in {"*", attributes.full_resource}:
        return True
    return bool(attributes.subresource) and pattern == f"*/{attributes.subresource}"


def _path_covers(pattern: str, path: str) -> bool:
    if pattern in {"*", path}:
        return True
    return pattern.endswith("*") and path.startswith(pattern.rstrip("*"))


def missing(owned: Sequence[Rule], wanted: Iterable[Rule]) -> list[Rule]:
    """Return the parts of the wanted rules that no single owned rule covers, those of one resource with all verbs."""
    return _compact([part for rule in wanted for part in _parts(rule) if not any(_covers(one, part) for one in owned)])


def _parts(rule: Rule) -> Iterator[Rule]:
    """Yield a rule as rules with one verb, and one group and resource or one path, each."""
    for group in rule.get("apiGroups") or ():
        for resource in rule.get("resources") or ():
            for verb in rule.get("verbs") or ():
                part: Rule = {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
                names = rule.get("resourceNames") or ()
                yield from ([{**part, "resourceNames": [name]} for name in names] if names else [part])
    for url in rule.get("nonResourceURLs") or ():
        for verb in rule.get("verbs") or ():
            yield {"nonResourceURLs": [url], "verbs": [verb]}


def _covers(owner: Rule, part: Rule) -> bool:
    if not _has(owner, "verbs", part["verbs"][0]):
        return False
    if "nonResourceURLs" in part:
        return any(_path_covers(url, part["nonResourceURLs"][0]) for url in owner.get("nonResourceURLs") or ())
    resource = part["resources"][0]
    _, slash, subresource = resource.partition("/")
    resources = owner.get("resources") or ()
    named = owner.get("resourceNames") or ()
    return (
        _has(owner, "apiGroups", part["apiGroups"][0])
        and ("*" in resources or resource in resources or (bool(slash) and f"*/{subresource}" in resources))
        and (not named or set(part.get("resourceNames") or [None]) <= set(named))
    )


def _compact(rules: Iterable[Rule]) -> list[Rule]:
    found: dict[object, Rule] = {}
    for rule in rules:
        names = rule.get("resourceNames")
        key = (*rule["apiGroups"], *rule["resources"], *(names or [None])) if "resources" in rule else id(rule)
        if key in found:
            found[key]["verbs"] = [*found[key]["verbs"], *rule["verbs"]]
        else:
            found[key] = dict(rule)
    return list(found.values())


_SHOWN = {"apiGroups": "APIGroups", "resources": "Resources", "nonResourceURLs": "NonResourceURLs",
          "resourceNames": "ResourceNames", "verbs": "Verbs"}  # fmt: skip


def shown(rule: Rule) -> str:
    """Return a rule as the API server writes it in refusals."""
    parts = [f"{name}:{quoted_list(rule[field])}" for field, name in _SHOWN.items() if rule.get(field)]
    return "{" + ", ".join(parts) + "}"


def quoted_list(values: Iterable[str]) -> str:
    """Return strings as Go's ``%q`` writes a slice of them."""
    return "[" + " ".join(go_quote(value) for value in values) + "]"
