"""The Kubernetes CEL dialect in Python: device selectors and derived attributes, equal to Kubernetes 1.37.

::

    from dra_kit import cel

    program = cel.compile_selector('device.attributes["gpu.example.com"].model == "H200"')
    device = cel.Device(driver="gpu.example.com", attributes={"model": "H200"}, capacity={"memory": "80Gi"})
    assert program.matches(device)
"""

from __future__ import annotations

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
