"""The rights that a driver's code declares for a node's account, as PolicyRules of rbac.authorization.k8s.io/v1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from dra_kit.author.cluster_object import ClusterObject
from dra_kit.author.effect import Effect

if TYPE_CHECKING:
    from dra_kit.author.driver import Driver

Rule: TypeAlias = dict[str, list[str]]


class DeclaredRight(Struct, frozen=True):
    """Rules that a part of the driver's code needs.

    Attributes:
        needed_for: that part, such as ``policy Menu``.
        namespace: the only namespace in which they are needed; None for the whole cluster.
    """

    needed_for: str
    namespace: str | None
    rules: Sequence[Rule]


def needs_settings(driver: Driver[Any, Any]) -> bool:
    """Return whether the rights may depend on the driver's settings."""
    effects = any(issubclass(effect, ClusterObject) for effect in driver.effects.values())
    watched = driver.policy.watches if driver.policy is not None else None
    namespaces = [item.namespace for item in driver.reads] + ([watched.namespace] if watched is not None else [])
    return effects or any(map(callable, namespaces))


def node_rights(driver: Driver[Any, Any], settings: Any) -> Iterator[DeclaredRight]:
    """Yield the rights of the driver's policy, of its ``reads``, and of its effects that are objects.

    Args:
        driver: the driver.
        settings: an instance of its settings; None if it has none, or nothing depends on them.
    """
    policy = driver.policy
    if policy is not None and policy.watches is not None:
        title = f"policy {type(policy).__name__}"
        yield DeclaredRight(title, policy.watches.namespace_for(settings), policy.watches.rules())
    if driver.follows_node:
        rule = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}
        yield DeclaredRight("Driver(follow_node=True)", None, [rule])
    yield from release_rights(driver, settings)


def release_rights(driver: Driver[Any, Any], settings: Any) -> Iterator[DeclaredRight]:
    """Yield the rights that the code needs also where it only releases claims: of its ``reads``, and of effects."""
    for item in driver.reads:
        yield DeclaredRight("Driver(reads=…)", item.namespace_for(settings), [item.rule()])
    yield from effect_rights(driver.effects.values(), settings)


def effect_rights(effects: Iterable[type[Effect[Any, Any]]], settings: Any) -> Iterator[DeclaredRight]:
    """Yield the rights of effects that are objects."""
    for effect in effects:
        if not issubclass(effect, ClusterObject):
            continue
        title = f"effect {effect.__name__}"
        namespaces = effect.namespaces(settings)
        if namespaces is None:
            yield DeclaredRight(title, None, effect.rules())
        for namespace in namespaces or ():
            # list permission, to find objects that no record contains
            rules = [{**rule, "verbs": [*rule["verbs"], "list"]} for rule in effect.rules()]
            yield DeclaredRight(title, namespace, rules)


def rbac_values(rights: Iterable[DeclaredRight]) -> dict[str, Any]:
    """Return the rights as ``node`` in the chart's values: ``extraRules``, and ``namespacedRules`` if there are any."""
    anywhere: list[Rule] = []
    namespaced: dict[str, list[Rule]] = {}
    for right in rights:
        rules = anywhere if right.namespace is None else namespaced.setdefault(right.namespace, [])
        rules += [rule for rule in right.rules if rule not in rules]
    return {"extraRules": anywhere} | ({"namespacedRules": namespaced} if namespaced else {})
