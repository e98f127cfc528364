"""Failures to compile and to evaluate an expression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

FailureKind: TypeAlias = Literal[
    "no-such-key", "no-such-overload", "cost", "index", "arithmetic", "conversion", "regex", "result", "value"
]
"""Kind of an error at run time."""


class CompileFailure(Exception):
    """An expression does not compile; ``position`` is the index of a character, None for the whole expression."""

    def __init__(self, message: str, position: int | None) -> None:
        super().__init__(message)
        self.message = message
        self.position = position


class EvaluationFailure(Exception):
    """An evaluation error, which ``&&`` and ``||`` may absorb; ``key`` is the missing key."""

    def __init__(self, message: str, kind: FailureKind = "value", *, key: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.kind: FailureKind = kind
        self.key = key


def succeeds(compute: Callable[..., Any]) -> Callable[..., bool]:
    """Return a function that returns whether ``compute`` succeeds with the same arguments."""

    def check(*arguments: Any) -> bool:
        try:
            compute(*arguments)
        except EvaluationFailure:
            return False
        return True

    return check


class CostLimitExceeded(Exception):
    """The evaluation exceeds the cost limit; nothing absorbs this."""


class EvaluatorPanic(Exception):
    """A bug of Kubernetes' evaluator that aborts the whole evaluation; an error could be absorbed."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message: str = f"internal error: {message}"


def unusable_attribute(name: str) -> EvaluationFailure:
    """Return the failure of an expression that reads an attribute without meaning to CEL."""
    return EvaluationFailure(
        f"attribute {name}: value is invalid or its type is not supported by this version", "value"
    )


def no_such_key(key: object) -> EvaluationFailure:
    """Return the failure for a missing key of a map or field of an object."""
    return EvaluationFailure(f"no such key: {key}", "no-such-key", key=str(key))


def no_such_overload(detail: str = "") -> EvaluationFailure:
    """Return the failure for a function or operator that is not defined for these types."""
    return EvaluationFailure(f"no such overload: {detail}" if detail else "no such overload", "no-such-overload")
