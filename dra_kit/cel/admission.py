"""Expressions of admission policies: what they may name, and what they are for a request.

Source: k8s.io/apiserver 0.37 ``pkg/admission/plugin/cel`` (``compile.go``, ``composition.go``). Nothing estimates their
costs before they run; an evaluation may cost as much as that of a selector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dra_kit.cel import types
from dra_kit.cel.checker import check
from dra_kit.cel.declarations import Overload, all_functions
from dra_kit.cel.evaluator import Evaluator
from dra_kit.cel.failure import Failure, Refusal
from dra_kit.cel.literals import check_literals
from dra_kit.cel.meter import Meter
from dra_kit.cel.parser import parse
from dra_kit.cel.program import place_of
from dra_kit.cel.types import Type, list_of, map_of
from dra_kit.cel.values import LazyMap
from dra_kit.errors import CelCompileError, CelRuntimeError

MAX_CODE_POINTS: Final = 100_000
"""The longest expression that Kubernetes parses (cel-go v0.29.2)."""

_STRINGS: Final = list_of(types.STRING)
_LABELS: Final = map_of(types.STRING, types.STRING)
_REQUEST: Final = Type("struct", "kubernetes.AdmissionRequest")
_KIND: Final = Type("struct", "kubernetes.GroupVersionKind")
_RESOURCE: Final = Type("struct", "kubernetes.GroupVersionResource")
_USER: Final = Type("struct", "kubernetes.UserInfo")
_NAMESPACE: Final = Type("struct", "kubernetes.Namespace")
_NAMESPACE_METADATA: Final = Type("struct", "kubernetes.NamespaceMetadata")
_NAMESPACE_SPEC: Final = Type("struct", "kubernetes.NamespaceSpec")
_NAMESPACE_STATUS: Final = Type("struct", "kubernetes.NamespaceStatus")
_NAMESPACE_CONDITION: Final = Type("struct", "kubernetes.NamespaceCondition")
_VARIABLES: Final = Type("struct", "kubernetes.variables")

_FIELDS: Final[Mapping[Type, Mapping[str, Type]]] = {
    _REQUEST: {
        "kind": _KIND, "resource": _RESOURCE, "subResource": types.STRING, "requestKind": _KIND,
        "requestResource": _RESOURCE, "requestSubResource": types.STRING, "name": types.STRING,
        "namespace": types.STRING, "operation": types.STRING, "userInfo": _USER, "dryRun": types.BOOL,
        "options": types.DYN,
    },
    _KIND: dict.fromkeys(("group", "version", "kind"), types.STRING),
    _RESOURCE: dict.fromkeys(("group", "version", "resource"), types.STRING),
    _USER: {"username": types.STRING, "uid": types.STRING, "groups": _STRINGS,
            "extra": map_of(types.STRING, _STRINGS)},
    _NAMESPACE: {"metadata": _NAMESPACE_METADATA, "spec": _NAMESPACE_SPEC, "status": _NAMESPACE_STATUS},
    _NAMESPACE_METADATA: {
        "name": types.STRING, "generateName": types.STRING, "namespace": types.STRING, "labels": _LABELS,
        "annotations": _LABELS, "UID": types.STRING, "creationTimestamp": types.TIMESTAMP,
        "deletionGracePeriodSeconds": types.INT, "deletionTimestamp": types.TIMESTAMP, "generation": types.INT,
        "resourceVersion": types.STRING, "finalizers": _STRINGS,
    },
    _NAMESPACE_SPEC: {"finalizers": _STRINGS},
    _NAMESPACE_STATUS: {"conditions": list_of(_NAMESPACE_CONDITION), "phase": types.STRING},
    _NAMESPACE_CONDITION: {"status": types.STRING, "type": types.STRING, "lastTransitionTime": types.TIMESTAMP,
                           "message": types.STRING, "reason": types.STRING},
}  # fmt: skip


@dataclass(frozen=True)
class AdmissionEnvironment:
    """What an expression of a policy may name.

    Attributes:
        params: ``params`` exists.
        authorizer: ``authorizer`` exists.
        variables: the types of the policy's variables that come before the expression; None where there is no
            ``variables``.
    """

    params: bool = False
    authorizer: bool = True
    variables: Mapping[str, Type] | None = None

    @property
    def has_bind(self) -> bool:
        """There is no ``cel.bind``: policies have variables."""
        return False

    def variable(self, name: str) -> Type | None:
        """The type of a variable."""
        match name:
            case "object" | "oldObject":
                return types.DYN
            case "request":
                return _REQUEST
            case "namespaceObject":
                return _NAMESPACE
            case "params" if self.params:
                return types.DYN
            case "authorizer" if self.authorizer:
                return types.AUTHORIZER
            case "authorizer.requestResource" if self.authorizer:
                return types.RESOURCE_CHECK
            case "variables" if self.variables is not None:
                return _VARIABLES
            case _:
                return None

    def fields(self, of: Type) -> Mapping[str, Type] | None:
        """The fields of a type of objects."""
        return self.variables if of == _VARIABLES else _FIELDS.get(of)

    def overloads(self, function: str) -> tuple[Overload, ...]:
        """The signatures of a function."""
        name = function.removeprefix(".")
        return () if name == "includes" else all_functions().get(name, ())


class AdmissionExpression:
    """A compiled expression of a policy; made by ``compile_admission``.

    Attributes:
        text: the expression.
        type: the static type of its value.
    """

    def __init__(self, text: str, environment: AdmissionEnvironment) -> None:
        self.text = text
        try:
            if len(text) > MAX_CODE_POINTS:
                raise Refusal(f"expression code point size exceeds limit: size: {len(text)}, limit 100000", None)
            root = parse(text, has_bind=False)
            check(root, environment)
            check_literals(root)
            self.type: Type = root.type
            self._evaluator = Evaluator(root)
        except Refusal as refusal:
            raise _compile_error(text, refusal) from None
        except RecursionError:
            raise _compile_error(text, Refusal("the expression is nested too deeply", None)) from None

    def evaluate(self, given: Mapping[str, Any], meter: Meter | None = None) -> Any:
        """The value for a request.

        Args:
            given: what the expression may name, as values of CEL.
            meter: is told what it cost, be it in vain.

        Raises:
            CelRuntimeError: the evaluation fails, or costs too much.
        """
        try:
            return self._evaluator(given, meter)
        except Failure as failure:
            raise CelRuntimeError(failure.message, kind=failure.kind, key=failure.key) from None


def compile_admission(text: str, environment: AdmissionEnvironment) -> AdmissionExpression:
    """Compiles an expression of an admission policy.

    Args:
        text: the expression.
        environment: what it may name.

    Raises:
        CelCompileError: an API server would not compile it.
    """
    return AdmissionExpression(text, environment)


def variables_map(variables: Mapping[str, AdmissionExpression], given: dict[str, Any], meter: Meter) -> LazyMap:
    """``variables``: each is evaluated when it is first used, and then kept, be it an error.

    Args:
        variables: the policy's, in their order.
        given: what else they may name; the caller adds the map to it.
        meter: is told what each of them cost.
    """

    def computing(name: str, expression: AdmissionExpression) -> Callable[[], Any]:
        def compute() -> Any:
            try:
                return expression.evaluate(given, meter)
            except CelRuntimeError as error:
                raise Failure(f'composited variable "{name}" fails to evaluate: {error}', error.kind) from None

        return compute

    return LazyMap({name: computing(name, expression) for name, expression in variables.items()})


def _compile_error(text: str, refusal: Refusal) -> CelCompileError:
    """A refusal in the words of Kubernetes, with the line of the text."""
    if refusal.position is None:
        return CelCompileError(f"compilation failed: {refusal.message}")
    line, column = place_of(text, refusal.position)
    shown = text.split("\n")[line - 1]
    pointer = "." * (column - 1) + "^"
    message = f"compilation failed: ERROR: <input>:{line}:{column}: {refusal.message}\n | {shown}\n | {pointer}"
    return CelCompileError(message, line=line, column=column, problem=refusal.message)
