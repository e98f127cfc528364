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
    from dra_kit.errors import CelCompileError, CelRuntimeError
    from dra_kit.kubernetes.cel.device import AttributeValue, Device
    from dra_kit.kubernetes.cel.environment import STORED, DeviceEnvironment, new
    from dra_kit.kubernetes.cel.explanation import Conjunct, Explanation, SelectorExplainer, explain
    from dra_kit.kubernetes.cel.program import (
        MAX_COST,
        MAX_LENGTH,
        DerivedExpression,
        DerivedValue,
        Selector,
        compile_derived,
        compile_selector,
    )

_HOME_OF = {
    "AttributeValue": "kubernetes.cel.device",
    "CelCompileError": "errors",
    "CelRuntimeError": "errors",
    "Conjunct": "kubernetes.cel.explanation",
    "DerivedExpression": "kubernetes.cel.program",
    "DerivedValue": "kubernetes.cel.program",
    "Device": "kubernetes.cel.device",
    "DeviceEnvironment": "kubernetes.cel.environment",
    "Explanation": "kubernetes.cel.explanation",
    "MAX_COST": "kubernetes.cel.program",
    "MAX_LENGTH": "kubernetes.cel.program",
    "STORED": "kubernetes.cel.environment",
    "Selector": "kubernetes.cel.program",
    "SelectorExplainer": "kubernetes.cel.explanation",
    "compile_derived": "kubernetes.cel.program",
    "compile_selector": "kubernetes.cel.program",
    "explain": "kubernetes.cel.explanation",
    "new": "kubernetes.cel.environment",
}
__all__ = [  # noqa: RUF022 - sorted as Python sorts
    "AttributeValue",
    "CelCompileError",
    "CelRuntimeError",
    "Conjunct",
    "DerivedExpression",
    "DerivedValue",
    "Device",
    "DeviceEnvironment",
    "Explanation",
    "MAX_COST",
    "MAX_LENGTH",
    "STORED",
    "Selector",
    "SelectorExplainer",
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
