"""Taints of nodes.

Source: Kubernetes 1.37 ``pkg/apis/core/validation/validation.go``, ``validateNodeTaints``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dra_kit.resource import names
from dra_kit.resource.fielderror import FieldError, GoStruct, duplicate, invalid, required, unsupported

_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def validate_node_taints(taints: Sequence[dict[str, Any]]) -> list[FieldError]:
    """Check keys, values and effects, and that no pair of key and effect comes twice; the path is the API server's.

    Args:
        taints: values of the right types.
    """
    errors: list[FieldError] = []
    seen: set[tuple[str, str]] = set()
    for i, taint in enumerate(taints):
        path = f"metadata.taints[{i}]"
        key, value, effect = (taint.get(name) or "" for name in ("key", "value", "effect"))
        errors += [invalid(f"{path}.key", key, text) for text in names.label_key(key)]
        errors += [invalid(f"{path}.value", value, text) for text in names.label_value(value)]
        if not effect:
            errors.append(required(f"{path}.effect"))
        elif effect not in _EFFECTS:
            errors.append(unsupported(f"{path}.effect", effect, _EFFECTS, in_order=True))
        if (key, effect) in seen:
            shown = GoStruct(Key=key, Value=value, Effect=effect, TimeAdded=taint.get("timeAdded"))
            errors.append(duplicate(path, shown, "taints must be unique by key and effect pair"))
        seen.add((key, effect))
    return errors
