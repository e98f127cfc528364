"""Expressions of admission policies, compiled and evaluated.

Source: k8s.io/apiserver 0.37 ``pkg/admission/plugin/cel`` (``compile.go``, ``composition.go``). Nothing estimates their
costs before they run; one evaluation may cost as much as that of a selector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from dra_kit.cel.admission.environment import AdmissionEnvironment
from dra_kit.cel.checking.checker import check
from dra_kit.cel.checking.literals import check_literals
from dra_kit.cel.cost.meter import Meter
from dra_kit.cel.evaluation.evaluator import Evaluator
from dra_kit.cel.failure import Failure, Refusal
from dra_kit.cel.program import place_of
from dra_kit.cel.syntax.parser import parse
from dra_kit.cel.types import Type
from dra_kit.cel.values import LazyMap
from dra_kit.errors import CelCompileError, CelRuntimeError

MAX_CODE_POINTS: Final = 100_000
"""The longest expression that Kubernetes parses (cel-go v0.29.2)."""


class AdmissionExpression:
    """A compiled expression of a policy; made by ``compile_admission``.

    Attributes:
        text: the expression.
        type: the static type of its value.
    """

    def __init__(self, text: str, environment: AdmissionEnvironment) -> None:
        self.text = text
        if len(text) > MAX_CODE_POINTS:
            size = f"size: {len(text)}, limit {MAX_CODE_POINTS}"
            raise _compile_error(text, Refusal(f"expression code point size exceeds limit: {size}", None))
        try:
            root = parse(text, has_bind=False)
            check(root, environment)
            check_literals(root)
            self.type: Type = root.type
            self._evaluator = Evaluator(root)
        except Refusal as refusal:
            raise _compile_error(text, refusal) from None
        except RecursionError:
            raise _compile_error(text, Refusal("the expression is nested too deeply", None)) from None

    def evaluate(self, given: Mapping[str, Any], meter: Meter | None = None) -> tuple[Any, int]:
        """Evaluate for a request; return the value, and its cost.

        Args:
            given: what the expression may name, as values of CEL.
            meter: counts what it cost, even if it fails.

        Raises:
            CelRuntimeError: the evaluation fails, or costs too much.
        """
        try:
            return self._evaluator.evaluate(given, meter)
        except Failure as failure:
            raise CelRuntimeError(failure.message, kind=failure.kind, key=failure.key) from None


def compile_admission(text: str, environment: AdmissionEnvironment) -> AdmissionExpression:
    """Compile an expression of an admission policy.

    Args:
        text: the expression.
        environment: what it may name.

    Raises:
        CelCompileError: an API server would not compile it.
    """
    return AdmissionExpression(text, environment)


def variables_map(variables: Mapping[str, AdmissionExpression], given: dict[str, Any], meter: Meter) -> LazyMap:
    """Return ``variables``: each is evaluated at its first use, and its value or error is stored.

    Args:
        variables: the policy's, in their order.
        given: what else they may name; the caller adds the map to it.
        meter: counts what each of them cost.
    """

    def computing(name: str, expression: AdmissionExpression) -> Callable[[], Any]:
        def compute() -> Any:
            try:
                value, _ = expression.evaluate(given, meter)
            except CelRuntimeError as error:
                raise Failure(f'composited variable "{name}" fails to evaluate: {error}') from None
            return value

        return compute

    return LazyMap({name: computing(name, expression) for name, expression in variables.items()})


def _compile_error(text: str, refusal: Refusal) -> CelCompileError:
    """Return a refusal in the words of Kubernetes, with the line of the text."""
    if refusal.position is None:
        return CelCompileError(f"compilation failed: {refusal.message}")
    line, column = place_of(text, refusal.position)
    shown = text.split("\n")[line - 1]
    pointer = "." * (column - 1) + "^"
    message = f"compilation failed: ERROR: <input>:{line}:{column}: {refusal.message}\n | {shown}\n | {pointer}"
    return CelCompileError(message, line=line, column=column, problem=refusal.message)
