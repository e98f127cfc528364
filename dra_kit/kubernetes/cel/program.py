"""Compiled selectors and derived attributes."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from dra_kit.errors import CelCompileError, CelRuntimeError
from dra_kit.kubernetes.cel import types
from dra_kit.kubernetes.cel.checker import check, check_literals
from dra_kit.kubernetes.cel.device import Device
from dra_kit.kubernetes.cel.environment import STORED, DeviceEnvironment
from dra_kit.kubernetes.cel.estimator import estimate
from dra_kit.kubernetes.cel.evaluator import Evaluator
from dra_kit.kubernetes.cel.failures import CompileFailure, EvaluationFailure
from dra_kit.kubernetes.cel.functions.quantity_semver import Semver
from dra_kit.kubernetes.cel.parser import parse
from dra_kit.kubernetes.cel.tree import DeviceRead, SyntaxNode, device_reads
from dra_kit.kubernetes.cel.values import Meter, type_name
from dra_kit.kubernetes.values.semver import Version

MAX_LENGTH: Final = 10 * 1024
"""The longest expression of a selector or derived attribute in bytes (resource.k8s.io/v1)."""
MAX_COST: Final = 1_000_000
"""The highest estimated cost that an API server admits, and the limit of the cost of an evaluation."""
DerivedValue: TypeAlias = "bool | int | str | Version | list[bool] | list[int] | list[str] | list[Version]"
"""The value of a derived attribute; the empty list has no type."""


class Expression:
    """A compiled expression on devices.

    Attributes:
        text: the expression.
        environment: the environment of the compilation.
        cost: estimate of the highest cost of an evaluation, in Kubernetes' units; 2**64 - 1 if it has no bound.
        root: its checked syntax tree, with positions in the text.
        reads: the attributes, capacities and fields of a device that it can read; devices that are equal there have
            the same result. None if the text does not determine them.
    """

    def __init__(self, text: str, environment: DeviceEnvironment, *, derived: bool) -> None:
        self.text = text
        self.environment = environment
        try:
            self.root: SyntaxNode = _checked(text, environment, derived=derived)
            self._evaluator = Evaluator(self.root)
            self.cost: int = estimate(self.root)
            self.reads: tuple[DeviceRead, ...] | None = device_reads(self.root)
        except CompileFailure as refusal:
            raise compile_error(text, refusal) from None
        except RecursionError:
            raise compile_error(text, CompileFailure("the expression is nested too deeply", None)) from None

    @property
    def is_admitted(self) -> bool:
        """Whether the estimated cost is low enough for an API server to accept the expression."""
        return self.cost <= MAX_COST

    def evaluate(self, device: Device) -> tuple[Any, int]:
        """Return the value of the expression for a device, as this package represents it, and the cost.

        Raises:
            CelRuntimeError: the evaluation fails.
        """
        try:
            return self._evaluator.evaluate(device)
        except EvaluationFailure as failure:
            raise CelRuntimeError(failure.message, kind=failure.kind, key=failure.key) from None


class Selector(Expression):
    """A CEL selector of a request or class; made by ``compile_selector``."""

    def matches(self, device: Device, meter: Meter | None = None) -> bool:
        """Return whether it selects a device; ``meter`` receives the cost.

        Raises:
            CelRuntimeError: the evaluation fails, costs too much, or its result is not bool.
        """
        try:
            value, _ = self._evaluator.evaluate(device, meter)
        except EvaluationFailure as failure:
            raise CelRuntimeError(failure.message, kind=failure.kind, key=failure.key) from None
        if value is True or value is False:
            return bool(value)
        raise CelRuntimeError(f"CEL result of type {type_name(value)} could not be converted to bool", kind="result")


class DerivedExpression(Expression):
    """An expression of a derived attribute (KEP-6080); made by ``compile_derived``."""

    def value(self, device: Device) -> DerivedValue:
        """Return the value of the attribute for a device.

        Raises:
            CelRuntimeError: the evaluation fails, or the value is not valid for an attribute.
        """
        value, _ = self.evaluate(device)
        if type(value) is not list:
            scalar: DerivedValue = _attribute(value)
            return scalar
        made: list[Any] = []
        for position, element in enumerate(value):
            if type(element) is not type(value[0]):
                raise CelRuntimeError(
                    f"expected list element at index {position} to be {type_name(value[0])}, got {type_name(element)}",
                    kind="result",
                )
            made.append(_attribute(element, "list element"))
        return made


def _attribute(value: Any, what: str = "CEL return") -> Any:
    if type(value) in {bool, int, str}:
        return value
    if type(value) is Semver:
        return value.version
    raise CelRuntimeError(f"unsupported {what} type: {type_name(value)}", kind="result")


def compile_selector(text: str, *, environment: DeviceEnvironment = STORED) -> Selector:
    """Compile the expression of a selector.

    An estimated cost above the limit is not an error, because the scheduler accepts such an expression; see
    ``is_admitted``.

    Args:
        text: the expression.
        environment: ``STORED`` as in the scheduler, or ``new()`` as in an API server for new and changed expressions.

    Raises:
        CelCompileError: Kubernetes would not compile it, or it is longer than 10 KiB.
    """
    return Selector(text, environment, derived=False)


def compile_derived(text: str, *, environment: DeviceEnvironment = STORED) -> DerivedExpression:
    """Compile the expression of a derived attribute; arguments and errors are those of ``compile_selector``."""
    return DerivedExpression(text, environment, derived=True)


def _checked(text: str, environment: DeviceEnvironment, *, derived: bool) -> SyntaxNode:
    try:
        length = len(text.encode())
    except UnicodeEncodeError as error:
        raise CompileFailure("the expression is not valid UTF-8", error.start) from None
    if length > MAX_LENGTH:
        raise CompileFailure(f"the expression is longer than {MAX_LENGTH} bytes", None)
    root = parse(text)
    check(root, environment)
    check_literals(root)
    found = root.type
    if derived:
        lists = environment.list_type_attributes or environment.stored
        element = found.parameters[0] if found.kind == "list" and lists else found
        if element not in {types.BOOL, types.INT, types.STRING, types.ANY, types.DYN, types.SEMVER}:
            scalars = "a primitive scalar (string, integer, boolean, semver)"
            raise CompileFailure(
                f"must evaluate to {scalars}{' or a list of these scalars' if lists else ''}, not {found}", None
            )
    elif found not in {types.BOOL, environment.attribute_type}:
        raise CompileFailure(f"must evaluate to bool or the unknown type, not {found}", None)
    return root


def compile_error(text: str, refusal: CompileFailure) -> CelCompileError:
    """Return the public error of a failure, with its line and column."""
    if refusal.position is None:
        return CelCompileError(refusal.message)
    line, column = line_and_column(text, refusal.position)
    message = f"{line}:{column}: {refusal.message}"
    return CelCompileError(message, line=line, column=column, problem=refusal.message)


def line_and_column(text: str, position: int) -> tuple[int, int]:
    """Return line and column of a character, both from 1."""
    before = text[:position]
    return before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1
