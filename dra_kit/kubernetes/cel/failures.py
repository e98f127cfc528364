"""Failures to compile and to evaluate an expression."""

from __future__ import annotations

from typing import Literal, TypeAlias

FailureKind: TypeAlias = Literal[
    "no-such-key", "no-such-overload", "cost", "index", "arithmetic", "conversion", "regex", "result", "value"
]
"""What went wrong at run time, coarse enough to be compared."""


class CompileFailure(Exception):
    """An expression does not compile.

    Args:
        message: in Kubernetes' words where they are known.
        position: index of the character in the text; None for the whole expression.
    """

    def __init__(self, message: str, position: int | None) -> None:
        super().__init__(message)
        self.message = message
        self.position = position


class EvaluationFailure(Exception):
    """An evaluation error, which ``&&`` and ``||`` may absorb.

    Args:
        message: in Kubernetes' words where they are known.
        kind: what went wrong.
        key: the one that is not there.
    """

    def __init__(self, message: str, kind: FailureKind = "value", *, key: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.kind: FailureKind = kind
        self.key = key


class CostLimitExceeded(Exception):
    """The evaluation costs more than it may; nothing absorbs this."""


class EvaluatorPanic(Exception):
    """A bug of Kubernetes' evaluator that ends the whole evaluation, where an error could be absorbed.

    Args:
        message: what it is about.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message: str = f"internal error: {message}"


def no_such_key(key: object) -> EvaluationFailure:
    """Return the failure: a map or an object has nothing of this name."""
    return EvaluationFailure(f"no such key: {key}", "no-such-key", key=str(key))


def no_such_overload(detail: str = "") -> EvaluationFailure:
    """Return the failure: a function or operator is not defined for values of these types."""
    return EvaluationFailure(f"no such overload: {detail}" if detail else "no such overload", "no-such-overload")
