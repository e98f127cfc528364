"""The rights of a driver's code beside those that every driver needs, as values of the chart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from dra_kit.author.cluster_object import ClusterObject, node_rbac_values
from dra_kit.author.driver import Driver


def declared_rights(driver: Driver[Any, Any], settings: Callable[[], BaseModel | None]) -> dict[str, dict[str, Any]]:
    """Return what the driver's effects, policy, cluster provider, binder and taint rules need.

    Args:
        driver: whose code declares it.
        settings: of the driver, which say in which namespaces effects make objects; asked only where some do.

    Returns:
        ``node`` and ``controller`` as in ``values.yaml``, each only where it has something.
    """
    effects = [effect for effect in driver.effects.values() if issubclass(effect, ClusterObject)]
    node = node_rbac_values(effects, settings() if effects else None)
    if driver.policy is not None and driver.policy.watches is not None:
        node["extraRules"] = [*driver.policy.watches.rules(), *node["extraRules"]]
    controller = {
        "clusterPools": driver.cluster_provider is not None,
        "binding": driver.binder is not None,
        "taintRules": driver.taint_rules is not None,
    }
    found = {"node": node, "controller": controller}
    parts = {role: {name: value for name, value in part.items() if value} for role, part in found.items()}
    return {role: part for role, part in parts.items() if part}
