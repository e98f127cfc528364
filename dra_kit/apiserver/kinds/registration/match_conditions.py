"""Match conditions of webhooks and policies: expressions that say which requests they are asked about.

Source of the rules: Kubernetes 1.37 ``pkg/apis/admissionregistration/validation``, ``validateMatchConditions``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from dra_kit.kubernetes.resource import names
from dra_kit.kubernetes.resource.field_errors import FieldError, duplicate, invalid, required, too_many
from dra_kit.kubernetes.values.json import Object

if TYPE_CHECKING:
    from dra_kit.kubernetes.cel.admission import PolicyProblem

NO_EXPRESSION: Final = "expression is not specified"
_MAX: Final = 64


def match_conditions(
    conditions: Sequence[Object], holder: str, problems: Mapping[str, PolicyProblem]
) -> Iterator[FieldError]:
    """Yield what is wrong with the conditions.

    Args:
        conditions: of one webhook or policy.
        holder: path of the object that has them, such as ``spec`` or ``webhooks[0]``.
        problems: expressions that cannot be used, by path below the holder.
    """
    seen: set[str] = set()
    for i, condition in enumerate(conditions):
        field, name = f"matchConditions[{i}]", condition.get("name", "")
        path, expression = f"{holder}.{field}", f"{field}.expression"
        if not (condition.get("expression") or "").strip():
            yield required(f"{path}.expression", NO_EXPRESSION)
        elif (problem := problems.get(expression)) is not None:
            yield invalid(f"{path}.expression", problem.expression, problem.message)
        if not name:
            yield required(f"{path}.name")
        yield from (invalid(f"{path}.name", name, found) for found in names.label_key(name) if name)
        if name in seen:
            yield duplicate(f"{path}.name", name)
        seen.add(name)
    if len(conditions) > _MAX:
        yield too_many(f"{holder}.matchConditions", len(conditions), _MAX)
