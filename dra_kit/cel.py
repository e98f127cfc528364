"""The Kubernetes CEL dialect in Python: device selectors and derived attributes, equal to Kubernetes 1.37.

::

    from dra_kit import cel

    program = cel.compile_selector('device.attributes["gpu.example.com"].model == "H200"')
    device = cel.Device(driver="gpu.example.com", attributes={"model": "H200"}, capacity={"memory": "80Gi"})
    assert program.matches(device)

Names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dra_kit.cel.device import AttributeValue, Device
    from dra_kit.cel.environment import STORED, Environment, new
    from dra_kit.cel.explanation import Conjunct, Explainer, Explanation, explain
    from dra_kit.cel.program import (
        MAX_COST,
        MAX_LENGTH,
        Derived,
        DerivedValue,
        Selector,
        compile_derived,
        compile_selector,
    )
    from dra_kit.errors import CelCompileError, CelRuntimeError

_HOME_OF = {
    "AttributeValue": "cel.device",
    "CelCompileError": "errors",
    "CelRuntimeError": "errors",
    "Conjunct": "cel.explanation",
    "Derived": "cel.program",
    "DerivedValue": "cel.program",
    "Device": "cel.device",
    "Environment": "cel.environment",
    "Explainer": "cel.explanation",
    "Explanation": "cel.explanation",
    "MAX_COST": "cel.program",
    "MAX_LENGTH": "cel.program",
    "STORED": "cel.environment",
    "Selector": "cel.program",
    "compile_derived": "cel.program",
    "compile_selector": "cel.program",
    "explain": "cel.explanation",
    "new": "cel.environment",
}

__all__ = [  # noqa: RUF022 - sorted as Python sorts
    "AttributeValue",
    "CelCompileError",
    "CelRuntimeError",
    "Conjunct",
    "Derived",
    "DerivedValue",
    "Device",
    "Environment",
    "Explainer",
    "Explanation",
    "MAX_COST",
    "MAX_LENGTH",
    "STORED",
    "Selector",
    "compile_derived",
    "compile_selector",
    "explain",
    "new",
]


if not TYPE_CHECKING:  # a type checker would take any misspelt name for one of ours

    def __getattr__(name: str) -> Any:
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module 'dra_kit.cel' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"dra_kit.{home}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
