"""What the node's account may need beside what every driver needs: the RBAC rules of ``ClusterObject`` effects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dra_kit.author.effects.cluster_object import ClusterObject


def account_rules(effects: Iterable[type[ClusterObject]], settings: Any) -> dict[str, Any]:
    """Return the rules as ``node`` in the chart's values: ``extraRules``, and ``namespacedRules`` where there are any.

    Args:
        effects: of the driver.
        settings: of the driver, which may say in which namespaces the objects are.
    """
    anywhere: list[Any] = []
    namespaced: dict[str, list[Any]] = {}
    for effect in effects:
        namespaces = effect.namespaces(settings)
        if namespaces is None:
            anywhere += effect.rules()
        for namespace in namespaces or ():
            # listed there, to find what no record knows
            rules = [{**rule, "verbs": [*rule["verbs"], "list"]} for rule in effect.rules()]
            namespaced.setdefault(namespace, []).extend(rules)
    return {"extraRules": anywhere} | ({"namespacedRules": namespaced} if namespaced else {})
