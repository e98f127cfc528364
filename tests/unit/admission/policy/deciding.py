"""Who decides on a config: the node's decoder, the webhook's review, and a policy, by the same CEL as a server."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import dra_kit as dra
from dra_kit.admission.policy.manifest import policy_objects
from dra_kit.admission.policy.schema_reader import UncheckedRule
from dra_kit.admission.review import rejection
from dra_kit.author.driver import Driver
from dra_kit.kubernetes.cel.admission import CompiledPolicy, PolicyRequest, compile_policy, to_cel_value
from dra_kit.kubernetes.release import DEFAULT
from dra_kit.kubernetes.values.json import loads
from tests.unit.admission.pizzeria import carrying, config

AnyDriver = Driver[Any, Any]


def node_accepts(driver: AnyDriver, parameters: Any) -> bool:
    """Whether the node decodes a config."""
    try:
        driver.configs.decode(loads(json.dumps(parameters)))
    except dra.InvalidConfig:
        return False
    return True


def webhook_accepts(driver: AnyDriver, parameters: Any, kind: str = "ResourceClaim") -> bool:
    """Whether the webhook lets an object with a config pass."""
    obj = carrying(kind, config(parameters, driver.name))
    return rejection(loads(json.dumps(obj)), None, "CREATE", driver) is None


def compiled(driver: AnyDriver) -> CompiledPolicy:
    """The policy of a driver, ready to be asked."""
    policy = compile_policy(policy_objects(driver).policy["spec"], DEFAULT)
    assert not policy.problems
    return policy


def denials(
    policy: CompiledPolicy, obj: dict[str, Any], old: dict[str, Any] | None = None, version: str = "v1"
) -> list[str]:
    """What a policy says to the creation of an object, or to its update."""
    asked = {
        "operation": "UPDATE" if old else "CREATE",
        "kind": {"group": "resource.k8s.io", "version": version, "kind": obj["kind"]},
    }
    given = PolicyRequest(to_cel_value(asked), to_cel_value(loads(json.dumps(obj))), to_cel_value(old))
    return [denial.message for denial in policy.denials(given)]


def of_config(policy: CompiledPolicy, driver: AnyDriver, parameters: Any, kind: str = "ResourceClaim") -> list[str]:
    """What a policy says to the creation of an object with a config."""
    return denials(policy, carrying(kind, config(parameters, driver.name)))


def node_problems(driver: AnyDriver, parameters: Any) -> list[str]:
    """The paths of what the node finds wrong with a config."""
    try:
        driver.configs.decode(loads(json.dumps(parameters)))
    except dra.InvalidConfig as error:
        return [path for path, _ in error.problems]
    return []


def left_to_the_node(problems: Sequence[str], parameters: Any, left: Mapping[str, Sequence[UncheckedRule]]) -> bool:
    """Whether the policy says of each problem that it is left to the node.

    Args:
        problems: paths.
        parameters: the config.
        left: what a policy says it leaves, by kind.
    """
    if not problems:
        return True
    notes = left.get(f"{parameters.get('kind')} ({parameters.get('apiVersion')})", ())
    patterns = [_pattern(note.path.removesuffix(" (keys)")) for note in notes]
    # pydantic does not report which field's validator raised an exception other than ValueError
    return all(any(pattern.match(path) for pattern in patterns) or (path == "" and patterns) for path in problems)


def _pattern(path: str) -> re.Pattern[str]:
    """What the paths of a field and of all below look like."""
    text = re.escape(path).replace(r"\[\*\]", r"\[\d+\]").replace(r"\.\*", r'(?:\.[^.\[]+|\["(?:[^"\\]|\\.)*"\])')
    return re.compile(rf"{text}(?![A-Za-z0-9_-])")
