"""Which requests a webhook or a policy is asked about, and in which version of the object.

Source: k8s.io/apiserver 0.37 ``pkg/admission/plugin/webhook/predicates`` and ``pkg/admission/plugin/policy/matching``.
"""

from __future__ import annotations

from collections.abc import Sequence

from dra_kit.apiserver.api import Attributes
from dra_kit.kubernetes.resource.matching import parse_label_selector
from dra_kit.kubernetes.values.json import Object


def matching_version(rules: Sequence[Object], policy: str | None, write: Attributes) -> str | None:
    """Return the ``apiVersion`` in which the object is shown, None when no rule matches.

    Args:
        rules: any of them is enough.
        policy: ``Exact``, or ``Equivalent``: then a rule for another version of the resource matches, too.
        write: what is asked for.
    """
    kind, asked = write.kind, write.request.target.version
    if any(_rule_matches(rule, write, asked) for rule in rules):
        return kind.api_version(asked)
    if policy != "Exact":
        others = [version for version in kind.types if version != asked]
        for rule in rules:
            for version in others:
                if _rule_matches(rule, write, version):
                    return kind.api_version(version)
    return None


def _rule_matches(rule: Object, write: Attributes, version: str) -> bool:
    def has(field: str, value: str) -> bool:
        return bool({"*", value} & set(rule.get(field) or ()))

    kind, target = write.kind, write.request.target
    scope = rule.get("scope", "*")
    if scope != "*" and (scope == "Namespaced") != kind.namespaced:
        return False
    names = {"*/*", kind.plural if not target.subresource else f"{kind.plural}/{target.subresource}"}
    names |= {f"*/{target.subresource}", f"{kind.plural}/*"} if target.subresource else {"*", f"{kind.plural}/*"}
    wanted = rule.get("resourceNames")
    return (
        has("operations", write.operation)
        and has("apiGroups", kind.group)
        and has("apiVersions", version)
        and bool(names & set(rule.get("resources") or ()))
        and (not wanted or write.name in wanted)
    )


def selected(selectors: Object, write: Attributes) -> bool:
    """Return whether namespace and object have the labels that ``namespaceSelector`` and ``objectSelector`` ask for.

    Objects of no namespace have them all; of the object it is enough that it has them before or afterwards.
    """
    kind, target = write.kind, write.request.target
    selector = parse_label_selector(selectors.get("namespaceSelector"))
    if selector and kind.resource == "namespaces":
        namespace = write.obj or write.old
        if namespace is not None and not selector.matches(namespace):
            return False
    elif selector and kind.namespaced:
        namespace = write.api.lookup("namespaces", target.namespace)
        if namespace is not None and not selector.matches(namespace):
            return False
    objects = parse_label_selector(selectors.get("objectSelector"))
    return not objects or any(objects.matches(obj) for obj in (write.obj, write.old) if obj is not None)
