"""The ValidatingAdmissionPolicy of a driver, its binding, and what both leave to the node."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from dra_kit.author.driver import Driver
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.cel.admission import MAX_CODE_POINTS, compile_policy
from dra_kit.kubernetes.resource.config import CONFIG_FIELDS
from dra_kit.policy.checks import Check, KindChecks, Variable
from dra_kit.policy.literals import text
from dra_kit.policy.reading import Note, read_model
from dra_kit.policy.shapes import Object

Action = Literal["Deny", "Warn", "Audit"]
"""What happens to an object that breaks a rule."""

_VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
_MAX_BYTES: Final = 1_000_000
"""Of a policy as JSON; etcd takes 1.5 MiB, with managed fields, which name each field again."""


class PolicyObjects(Struct, frozen=True):
    """What a cluster admin applies.

    Attributes:
        policy: the ValidatingAdmissionPolicy, of admissionregistration.k8s.io/v1.
        binding: its ValidatingAdmissionPolicyBinding.
        left: what the node checks besides, by ``kind (apiVersion)``.
    """

    policy: dict[str, Any]
    binding: dict[str, Any]
    left: Mapping[str, Sequence[Note]]


def policy_objects(driver: Driver[Any, Any], actions: Sequence[Action] = ("Deny",)) -> PolicyObjects:
    """Return the policy of a driver's config models.

    It refuses no config that the node would take. An expression that fails, such as one that costs more than the API
    server spends on a request, is passed over (``failurePolicy: Ignore``): the node decides in any case.

    Args:
        driver: whose configs to check.
        actions: what happens to objects that break a rule.

    Raises:
        ConfigurationError: the models make a policy that the API server would not store.
    """
    models = driver.configs.models
    variables, checks = _of_all(driver.name, models)
    left: dict[str, Sequence[Note]] = {}
    taken = {variable.name for variable in variables}
    for (api_version, kind), model in models.items():
        reading = read_model(model)
        title = f"{kind} ({api_version})"
        left[title] = [*reading.notes, *([_UPGRADE] if model not in driver.configs.kinds else [])]
        if isinstance(reading.shape, Object):
            shape = replace(reading.shape, keys=("apiVersion", "kind", *reading.shape.keys))
            of_kind = KindChecks(title if _versions(models, kind) > 1 else kind, taken)
            of_kind.objects(_variable(api_version, kind, models), _of_kind(api_version, kind), shape)
            variables += of_kind.variables
            checks += of_kind.checks
    name = f"opaque-config.{driver.name}"
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Ignore",
            "matchConstraints": {"resourceRules": [
                _rule("resourceclaims", "CREATE"),  # their spec never changes
                _rule("resourceclaimtemplates", "CREATE", "UPDATE"),
                _rule("deviceclasses", "CREATE", "UPDATE"),
            ]},
            "matchConditions": [{
                "name": "has-config-of-this-driver",
                "expression": f"{_entries('object')}.exists(c, c.?opaque.?driver.orValue('') == {text(driver.name)})",
            }],
            "variables": [{"name": variable.name, "expression": variable.expression} for variable in variables],
            "validations": [{"expression": check.expression, "message": check.message} for check in checks],
        },
    }  # fmt: skip
    _check_limits(driver.name, policy)
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": list(actions)},
    }
    return PolicyObjects(policy, binding, left)


_UPGRADE: Final = Note("", "whether upgrade() takes it, and all that the newer version's validators check")


def _rule(plural: str, *operations: str) -> dict[str, Any]:
    return {
        "apiGroups": ["resource.k8s.io"], "apiVersions": list(_VERSIONS), "resources": [plural],
        "operations": list(operations),
    }  # fmt: skip


def _entries(of: str) -> str:
    """Return the list of configs of an object, where its kind has it."""
    paths = {kind: f"{of}." + ".".join(f"?{name}" for name in names) for kind, names in CONFIG_FIELDS.items()}
    *some, last = paths
    selected = "".join(f"request.kind.kind == {text(kind)} ? {paths[kind]} : " for kind in some)
    return f"({selected}{paths[last]}).orValue([])"


def _of_all(driver: str, models: Mapping[tuple[str, str], object]) -> tuple[list[Variable], list[Check]]:
    """Return the variables, and the rule for all of it: a known apiVersion and kind."""
    ours = f".filter(c, c.?opaque.?driver.orValue('') == {text(driver)}).map(c, c.opaque.?parameters.orValue(null))"
    variables = [
        # an object that was stored already answers for nothing that it brings along
        Variable("stored", f"oldObject == null ? [] : {_entries('oldObject')}{ours}"),
        Variable("configs", f"{_entries('object')}{ours}.filter(c, !(c in variables.stored))"),
    ]
    if not models:
        message = f"driver {driver} takes no configuration; remove the config entry"
        return variables, [Check("variables.configs.size() == 0", message)]
    pairs = " || ".join(_is_kind(api_version, kind) for api_version, kind in models)
    known = " or ".join(f"{kind} of {api_version}" for api_version, kind in models)
    message = f"opaque.parameters for {driver} must be {known}"
    return variables, [Check(f"variables.configs.all(c, type(c) == map && ({pairs}))", message)]


def _is_kind(api_version: str, kind: str) -> str:
    return f"c.?apiVersion.orValue('') == {text(api_version)} && c.?kind.orValue('') == {text(kind)}"


def _of_kind(api_version: str, kind: str) -> str:
    return f"variables.configs.filter(c, type(c) == map && {_is_kind(api_version, kind)})"


def _versions(models: Mapping[tuple[str, str], object], kind: str) -> int:
    return sum(other == kind for _, other in models)


def _variable(api_version: str, kind: str, models: Mapping[tuple[str, str], object]) -> str:
    """Return the name of the variable of a kind: the kind, with its version where there are several."""
    version = f"_{api_version.rpartition('/')[2]}" if _versions(models, kind) > 1 else ""
    name = "".join(char if char.isascii() and char.isalnum() else "_" for char in f"{kind}{version}")
    return f"{name[:1].lower()}{name[1:]}" if name[:1].isalpha() else f"kind_{name}"


def _check_limits(driver: str, policy: Mapping[str, Any]) -> None:
    spec = policy["spec"]
    holders = [*spec["matchConditions"], *spec["variables"], *spec["validations"]]
    longest = max(holders, key=lambda holder: len(holder["expression"]))
    remedy = "use the webhook (dra-kit webhook), or make the models smaller"
    if (length := len(longest["expression"])) > MAX_CODE_POINTS:
        what = longest.get("message") or longest.get("name")
        raise ConfigurationError(
            f"policy of {driver}: the rule {what!r} takes {length} characters of CEL, and the API server reads "
            f"{MAX_CODE_POINTS}; {remedy}"
        )
    if (size := len(json.dumps(policy))) > _MAX_BYTES:
        raise ConfigurationError(
            f"policy of {driver}: it has {size} bytes, more than the {_MAX_BYTES} that can be stored; {remedy}"
        )
    for problem in compile_policy(spec).problems:
        raise ConfigurationError(f"policy of {driver}: {problem.path} does not compile: {problem.message}; {remedy}")
