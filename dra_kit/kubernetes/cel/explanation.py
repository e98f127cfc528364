"""Explanation of a selector's result for a device, conjunct by conjunct."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from json.encoder import encode_basestring
from typing import Any, Final

from msgspec import Struct

from dra_kit.errors import CelRuntimeError
from dra_kit.kubernetes.cel.closures import Run, is_path
from dra_kit.kubernetes.cel.device import Device
from dra_kit.kubernetes.cel.evaluator import Evaluator
from dra_kit.kubernetes.cel.failures import EvaluationFailure
from dra_kit.kubernetes.cel.functions.quantity_semver import Semver
from dra_kit.kubernetes.cel.program import Selector, line_and_column
from dra_kit.kubernetes.cel.tree import CallNode, ComprehensionNode, IdentNode, LiteralNode, SyntaxNode
from dra_kit.kubernetes.cel.values import (
    Duration,
    Frame,
    MapValue,
    Meter,
    OptionalValue,
    Timestamp,
    TypeValue,
    type_name,
)

_MAX_SHOWN: Final = 200
_COMPARISONS: Final = frozenset({"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"})


class Conjunct(Struct, frozen=True):
    """One of the conditions that a selector joins with ``&&``.

    Attributes:
        text: its text.
        line: its line in the expression, from 1.
        column: its column in characters, from 1.
        result: its value for the device; None if it fails or is not bool.
        error: the error; empty without one.
        missing_key: the missing key of a map, if it causes the error.
        values: subexpressions and their values for the device as text, in the order of the text.
    """

    text: str
    line: int
    column: int
    result: bool | None
    error: str
    missing_key: str
    values: tuple[tuple[str, str], ...]


class Explanation(Struct, frozen=True):
    """The result of a selector for a device and its conditions.

    Attributes:
        result: the result in Kubernetes; None if the evaluation fails.
        error: the error; empty without one.
        conjuncts: all conditions, evaluated separately, also those that Kubernetes does not evaluate.
    """

    result: bool | None
    error: str
    conjuncts: tuple[Conjunct, ...]

    @property
    def unmet(self) -> tuple[Conjunct, ...]:
        """The conditions that are not true."""
        return tuple(conjunct for conjunct in self.conjuncts if conjunct.result is not True)


class SelectorExplainer:
    """Explains why a selector selects devices or not; ``meter`` receives the cost of each evaluation."""

    def __init__(self, program: Selector, meter: Meter | None = None) -> None:
        self._program = program
        self._meter = meter
        self._conditions = [_Condition(program, shown, whole) for shown, whole in _conjuncts(program.root)]

    @property
    def is_admitted(self) -> bool:
        """See :attr:`dra_kit.kubernetes.cel.program.Expression.is_admitted`."""
        return self._program.is_admitted

    def explain(self, device: Device) -> Explanation:
        """Return the result of the selector for a device and its conditions."""
        result, error = None, ""
        try:
            result = self._program.matches(device, self._meter)
        except CelRuntimeError as failure:
            error = failure.message
        return Explanation(result, error, tuple(condition.on(device, self._meter) for condition in self._conditions))

    def unmet(self, device: Device) -> tuple[Conjunct, ...]:
        """Return ``explain(device).unmet``, but faster."""
        meter = self._meter
        if len(self._conditions) == 1:  # no second evaluation needed
            found = self._conditions[0].on(device, meter)
            return () if found.result is True else (found,)
        return tuple(
            condition.on(device, meter) for condition in self._conditions if not condition.holds(device, meter)
        )


def explain(program: Selector, device: Device) -> Explanation:
    """Explain why a selector selects a device or not."""
    return SelectorExplainer(program).explain(device)


def _conjuncts(node: SyntaxNode) -> Iterator[tuple[SyntaxNode, SyntaxNode]]:
    """Yield each condition, and the expression that evaluates it separately."""
    if isinstance(node, CallNode) and node.function == "_&&_":
        for argument in node.arguments:
            yield from _conjuncts(argument)
    elif isinstance(node, ComprehensionNode) and node.is_bind:
        for shown, whole in _conjuncts(node.result):
            bound = copy.copy(node)
            bound.result = whole
            yield shown, bound
    else:
        yield node, node


class _Condition:
    """A condition, compiled to record the values of its subexpressions."""

    def __init__(self, program: Selector, shown: SyntaxNode, whole: SyntaxNode) -> None:
        text, version = program.text, program.environment.version
        self._text = shown.text(text)
        self._place = line_and_column(text, shown.start)
        self._interesting = {id(node): node.text(text) for node in _interesting(shown)}
        self._noted: dict[int, str] = {}
        self._plain = Evaluator(whole, version=version)
        self._evaluator = Evaluator(whole, self._observe, version=version)

    def holds(self, device: Device, meter: Meter | None) -> bool:
        try:
            return self._plain.evaluate(device, meter)[0] is True
        except EvaluationFailure:
            return False

    def on(self, device: Device, meter: Meter | None) -> Conjunct:
        self._noted.clear()
        result, error, missing_key = None, "", ""
        try:
            value, _ = self._evaluator.evaluate(device, meter)
            if value is True or value is False:
                result = bool(value)
            else:
                error = f"the result is of type {type_name(value)}, not bool"
        except EvaluationFailure as failure:
            error, missing_key = failure.message, failure.key
        noted = self._noted
        values = [(text, noted[node]) for node, text in self._interesting.items() if node in noted]
        if len(values) > 1:  # the same text may occur several times
            values = list(dict(values).items())
        line, column = self._place
        return Conjunct(self._text, line, column, result, error, missing_key, tuple(values))

    def _observe(self, node: SyntaxNode, run: Run) -> Run:
        noted, place = self._noted, id(node)
        if place not in self._interesting:
            return run

        def noting(frame: Frame) -> Any:
            try:
                value = run(frame)
            except EvaluationFailure as failure:
                noted.setdefault(place, f"error: {failure.message}")
                raise
            if place not in noted:
                noted[place] = format_value(value)
            return value

        return noting


def _interesting(node: SyntaxNode) -> Iterator[SyntaxNode]:
    """Yield outermost names and selections, and operands of comparisons."""
    if is_path(node):
        if not isinstance(node, IdentNode) or node.name != "device":
            yield node
        return
    if isinstance(node, ComprehensionNode) and not node.is_bind:
        # values in the loop differ in each iteration
        yield from _interesting(node.iteration_range)
        return
    compares = isinstance(node, CallNode) and node.function in _COMPARISONS
    for child in node.children():
        yield from _interesting(child)
        if compares and isinstance(child, CallNode) and not is_path(child) and _depends(child):
            yield child


def _depends(node: SyntaxNode) -> bool:
    """Return whether the value depends on the device."""
    return isinstance(node, IdentNode) or any(
        _depends(child) for child in node.children() if not isinstance(child, LiteralNode)
    )


def format_value(value: Any) -> str:
    """Return a value in the syntax of expressions, shortened if it is long."""
    text = encode_basestring(value) if type(value) is str and len(value) <= _MAX_SHOWN else _text(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return encode_basestring(value[: _MAX_SHOWN + 1])
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value[:_MAX_SHOWN]))}]"
    if isinstance(value, MapValue):
        shown = (f"{_text(key)}: {_text(value.find(key)[0])}" for key in list(value)[:_MAX_SHOWN])
        return f"{{{', '.join(shown)}}}"
    if isinstance(value, OptionalValue):
        return f"optional.of({_text(value.value)})" if value.present else "optional.none()"
    if isinstance(value, Semver):
        return str(value.version)
    if isinstance(value, (Duration, Timestamp)):
        return f"{value.nanoseconds} ns"
    if isinstance(value, TypeValue):
        return value.name
    return str(value)
