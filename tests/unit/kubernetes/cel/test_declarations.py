"""Declared functions equal those of Kubernetes (``tests/data/cel``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dra_kit.errors import CelRuntimeError
from dra_kit.kubernetes.cel.environment import functions
from dra_kit.kubernetes.cel.types import Overload
from tests.unit.kubernetes.cel.devices import evaluate

RECORDED = Path(__file__).parents[3] / "data/cel/overloads.jsonl"


def recorded() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for line in RECORDED.read_text().splitlines():
        overload = json.loads(line)
        found.setdefault(overload.pop("function"), []).append(overload)
    return found


def described(overload: Overload) -> dict[str, Any]:
    return {
        "overload": overload.id,
        "member": overload.member,
        "arguments": [str(argument) for argument in overload.arguments],
        "result": str(overload.result),
    }


def test_overloads_equal_kubernetes_in_order() -> None:
    declared = {name: list(map(described, overloads)) for name, overloads in functions().items()}
    del declared["isMask"]  # the record is of 1.37
    assert declared == recorded()


# the first matching overload binds the unknown type, so that the other one no longer matches
@pytest.mark.parametrize("method", ["add", "sub"])
@pytest.mark.parametrize("element", ["first", "last"])
def test_first_overload_determines_unknown_type(method: str, element: str) -> None:
    with pytest.raises(CelRuntimeError, match="no such overload"):
        evaluate(f"$c.memory.{method}($a.ports.{element}().value()).isLessThan($c.memory)")
