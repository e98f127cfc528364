"""Expressions of ValidatingAdmissionPolicies: their environment, compilation and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from dra_kit.errors import CelCompileError, CelRuntimeError
from dra_kit.kubernetes.cel import types
from dra_kit.kubernetes.cel.checker import check, check_literals
from dra_kit.kubernetes.cel.environment import all_functions, is_known
from dra_kit.kubernetes.cel.evaluator import Evaluator
from dra_kit.kubernetes.cel.failures import CompileFailure, EvaluationFailure
from dra_kit.kubernetes.cel.functions.authorization import AuthorizerValue, ResourceCheck
from dra_kit.kubernetes.cel.parser import parse
from dra_kit.kubernetes.cel.program import line_and_column
from dra_kit.kubernetes.cel.types import DYN, Overload, Type, list_of, map_of
from dra_kit.kubernetes.cel.values import INT_MAX, INT_MIN, LazyMapValue, Meter, StringMapValue
from dra_kit.kubernetes.release import KubernetesVersion
from dra_kit.kubernetes.values.json import ObjectView

COST_BUDGET: Final = 10_000_000
"""Cost limit of all validations of a policy together, for one request and parameter."""
CONDITIONS_COST_BUDGET: Final = 2_500_000
"""Cost limit of all match conditions together."""
MESSAGE_MAX: Final = 5 * 1024
"""Maximum bytes of a ``messageExpression`` result."""
_NO_BUDGET: Final = "validation failed due to running out of cost budget, no further validation rules will be run"


class PolicyProblem(Struct, frozen=True):
    """An expression that does not compile, or is of the wrong type.

    Attributes:
        path: of the field below ``spec``, such as ``validations[0].expression``.
        expression: its text.
        message: what is wrong, in the API server's words.
    """

    path: str
    expression: str
    message: str


class PolicyRequest(Struct, frozen=True):
    """The input of a policy, as values of CEL (``to_cel_value``).

    Attributes:
        request: the AdmissionRequest without its objects.
        object: the object after the request; None for a deletion.
        old_object: the object before the request; None for a creation.
        namespace: the namespace of the object; None if it has none.
        params: the parameter; None for none.
        authorizer: answers what the request's user may do.
        resource: the authorization check for the object itself.
    """

    request: Any
    object: Any
    old_object: Any
    namespace: Any = None
    params: Any = None
    authorizer: AuthorizerValue | None = None
    resource: ResourceCheck | None = None


class Denial(Struct, frozen=True):
    """A failed validation, or an error of a policy with ``failurePolicy`` Fail."""

    message: str
    reason: str = "Invalid"


class AdmissionExpression:
    """A compiled expression of a policy.

    Raises:
        CelCompileError: an API server would reject it.
    """

    def __init__(self, text: str, environment: AdmissionEnvironment) -> None:
        self.text = text
        if len(text) > MAX_CODE_POINTS:
            size = f"size: {len(text)}, limit {MAX_CODE_POINTS}"
            raise _compile_error(text, CompileFailure(f"expression code point size exceeds limit: {size}", None))
        try:
            root = parse(text, has_bind=False)  # policies have variables instead
            check(root, environment)
            check_literals(root)
            self.type: Type = root.type
            self._evaluator = Evaluator(root, version=environment.version)
        except CompileFailure as refusal:
            raise _compile_error(text, refusal) from None
        except RecursionError:
            raise _compile_error(text, CompileFailure("the expression is nested too deeply", None)) from None

    def evaluate(self, given: Mapping[str, Any], meter: Meter | None = None) -> tuple[Any, int]:
        """Evaluate for a request; return the value, and its cost.

        Args:
            given: the variables of the expression, as values of CEL.
            meter: counts the cost, even if it fails.

        Raises:
            CelRuntimeError: the evaluation fails, or exceeds the cost limit.
        """
        try:
            return self._evaluator.evaluate(given, meter)
        except EvaluationFailure as failure:
            raise CelRuntimeError(failure.message, kind=failure.kind, key=failure.key) from None


class _Validation(Struct, frozen=True):
    expression: AdmissionExpression
    message_expression: AdmissionExpression | None
    message: str
    reason: str


class CompiledPolicy(Struct):
    """The compiled expressions of a policy; created by ``compile_policy``.

    Attributes:
        failure_policy: the effect of an error: ``Fail`` or ``Ignore``.
        problems: the invalid expressions; a policy that has some must not be evaluated.
    """

    failure_policy: Literal["Fail", "Ignore"]
    problems: list[PolicyProblem] = field(default_factory=list)
    _conditions: list[AdmissionExpression] = field(default_factory=list)
    _variables: dict[str, AdmissionExpression] = field(default_factory=dict)
    _validations: list[_Validation] = field(default_factory=list)
    _annotations: list[AdmissionExpression] = field(default_factory=list)

    def denials(self, asked: PolicyRequest) -> list[Denial]:
        """Return all validations that a request fails, in their order.

        Args:
            asked: the request, already matched by the policy's ``matchConstraints``.
        """
        met = self.matches(asked)
        if met is not True:
            return [Denial(met)] if met else []
        budget = _Budget(COST_BUDGET)
        try:
            results = self._results([one.expression for one in self._validations], self._given(asked), budget)
        except _OverBudget:
            return self._failed(_NO_BUDGET)
        messages = self._messages(asked, results, budget)
        denials: list[Denial] = []
        for validation, result, text in zip(self._validations, results, messages, strict=True):
            if isinstance(result, _Error):
                denials += self._failed(result.message)
            elif result is not True:
                message = text or validation.message or f"failed expression: {validation.expression.text.strip()}"
                denials.append(Denial(message, validation.reason))
        return denials

    def annotation_failures(self, asked: PolicyRequest) -> list[Denial]:
        """Return the audit annotations that cannot be evaluated for a request, unless the policy ignores failures.

        Args:
            asked: the request, already matched by the policy's ``matchConstraints``.
        """
        if not self._annotations or self.failure_policy != "Fail" or self.matches(asked) is not True:
            return []
        try:
            results = self._results(self._annotations, self._given(asked), _Budget(COST_BUDGET))
        except _OverBudget:
            return [Denial(_NO_BUDGET)]
        return [Denial(result.message) for result in results if isinstance(result, _Error)]

    def _failed(self, message: str) -> list[Denial]:
        return [Denial(message)] if self.failure_policy == "Fail" else []

    def matches(self, asked: PolicyRequest) -> bool | str:
        """Return whether all match conditions are true; an error of a policy with ``failurePolicy`` Fail."""
        given = self._given(asked)
        given["namespaceObject"] = None
        try:
            results = self._results(self._conditions, given, _Budget(CONDITIONS_COST_BUDGET), with_variables=False)
        except _OverBudget:
            return _NO_BUDGET if self.failure_policy == "Fail" else False
        if any(result is False for result in results):
            return False
        errors = list(dict.fromkeys(result.message for result in results if isinstance(result, _Error)))
        if not errors:
            return True
        if self.failure_policy == "Ignore":
            return False
        return errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"

    def _messages(self, asked: PolicyRequest, results: Sequence[Any], budget: _Budget) -> list[str]:
        """Return the ``messageExpression`` results of failed validations; empty if none can be used."""
        wanted = [
            one.message_expression if result is False else None
            for one, result in zip(self._validations, results, strict=True)
        ]
        if not any(wanted):
            return [""] * len(wanted)
        given = self._given(asked)
        for name in ("authorizer", "authorizer.requestResource"):
            given.pop(name)
        try:
            texts = iter(self._results([one for one in wanted if one is not None], given, budget))
        except _OverBudget:
            return [""] * len(wanted)
        return [_usable(next(texts)) if one is not None else "" for one in wanted]

    def _results(
        self, expressions: Sequence[AdmissionExpression], given: dict[str, Any], budget: _Budget, *,
        with_variables: bool = True,
    ) -> list[Any]:  # fmt: skip
        """Return the value of each expression, or an ``_Error``."""
        if with_variables:
            given["variables"] = variables_map(self._variables, given, budget)
        results: list[Any] = []
        for expression in expressions:
            try:
                value, cost = expression.evaluate(given)
                budget(cost)
                results.append(value)
            except CelRuntimeError as error:
                results.append(_Error(f"expression '{expression.text.strip()}' resulted in error: {error}"))
            budget.check()
        return results

    @staticmethod
    def _given(asked: PolicyRequest) -> dict[str, Any]:
        return {
            "request": asked.request, "object": asked.object, "oldObject": asked.old_object,
            "namespaceObject": asked.namespace, "params": asked.params,
            "authorizer": asked.authorizer, "authorizer.requestResource": asked.resource,
        }  # fmt: skip


class _Error(Struct, frozen=True):
    message: str


class _OverBudget(Exception):
    """All expressions together exceed the cost limit."""


class _Budget:
    """A meter that sums the costs of evaluations."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def __call__(self, cost: int) -> None:
        self._left -= cost

    def check(self) -> None:
        if self._left < 0:
            raise _OverBudget


def _usable(text: Any) -> str:
    if type(text) is not str:
        return ""
    text = text.strip()
    return "" if "\n" in text or len(text.encode()) > MESSAGE_MAX else text


def compile_policy(spec: ObjectView, version: KubernetesVersion, *, stored: bool = True) -> CompiledPolicy:
    """Compile the expressions of a policy.

    Args:
        spec: of a ValidatingAdmissionPolicy, of which only the expressions are looked at; or a webhook, which has match
            conditions alone.
        version: the release of the API server.
        stored: the expressions are stored already; the release may refuse functions in new ones that it evaluates.

    Returns:
        The policy, with its problems in the order in which an API server reports them.
    """
    policy = CompiledPolicy("Ignore" if spec.get("failurePolicy") == "Ignore" else "Fail")
    params = bool(spec.get("paramKind"))
    conditions = AdmissionEnvironment(version, stored=stored, params=params)
    for i, condition in enumerate(spec.get("matchConditions") or ()):
        trimmed = {"expression": (condition.get("expression") or "").strip()}  # so Kubernetes compiles and shows it
        compiled = _compiled(policy, f"matchConditions[{i}].expression", trimmed, "expression", conditions, "bool")
        policy._conditions += [compiled] if compiled else []  # noqa: SLF001 - it is being made
    types: dict[str, Type] | None = {} if spec.get("variables") else None
    for i, variable in enumerate(spec.get("variables") or ()):
        environment = replace(conditions, variables=dict(types or {}))
        compiled = _compiled(policy, f"variables[{i}].expression", variable, "expression", environment)
        if types is not None:
            types[variable["name"]] = DYN if compiled is None else compiled.type
        if compiled is not None:
            policy._variables[variable["name"]] = compiled  # noqa: SLF001
    of_validations = replace(conditions, variables=types)
    of_messages = replace(of_validations, authorizer=False)
    for i, validation in enumerate(spec.get("validations") or ()):
        path = f"validations[{i}]"
        checked = _compiled(policy, f"{path}.expression", validation, "expression", of_validations, "bool")
        message_expression = _compiled(
            policy, f"{path}.messageExpression", validation, "messageExpression", of_messages, "string"
        )
        if checked is not None:
            reason = validation.get("reason") or "Invalid"
            message = (validation.get("message") or "").strip()
            policy._validations.append(_Validation(checked, message_expression, message, reason))  # noqa: SLF001
    for i, annotation in enumerate(spec.get("auditAnnotations") or ()):
        path = f"auditAnnotations[{i}].valueExpression"
        value = _compiled(policy, path, annotation, "valueExpression", of_validations, "string", "null_type")
        policy._annotations += [value] if value else []  # noqa: SLF001
    return policy


def _compiled(
    policy: CompiledPolicy, path: str, holder: ObjectView, name: str, environment: AdmissionEnvironment, *expected: str
) -> AdmissionExpression | None:
    """Return the compiled expression of a field; None if it is absent or invalid."""
    text = holder.get(name) or ""
    if not text.strip():
        return None
    try:
        compiled = AdmissionExpression(text, environment)
    except CelCompileError as error:
        policy.problems.append(PolicyProblem(path, text, str(error)))
        return None
    if expected and str(compiled.type) not in expected:
        wanted = expected[0] if len(expected) == 1 else f"one of [{' '.join(expected)}]"
        policy.problems.append(PolicyProblem(path, text, f"must evaluate to {wanted} but got {compiled.type}"))
        return None
    return compiled


MAX_CODE_POINTS: Final = 100_000
"""The longest expression that Kubernetes parses (cel-go v0.29.2)."""


def variables_map(variables: Mapping[str, AdmissionExpression], given: dict[str, Any], meter: Meter) -> LazyMapValue:
    """Return ``variables``: each is evaluated on first use, and its value or error is stored.

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
                raise EvaluationFailure(f'composited variable "{name}" fails to evaluate: {error}') from None
            return value

        return compute

    return LazyMapValue({name: computing(name, expression) for name, expression in variables.items()})


def _compile_error(text: str, refusal: CompileFailure) -> CelCompileError:
    """Return a refusal with the message of Kubernetes, with the line of the text."""
    if refusal.position is None:
        return CelCompileError(f"compilation failed: {refusal.message}")
    line, column = line_and_column(text, refusal.position)
    shown = text.split("\n")[line - 1]
    pointer = "." * (column - 1) + "^"
    message = f"compilation failed: ERROR: <input>:{line}:{column}: {refusal.message}\n | {shown}\n | {pointer}"
    return CelCompileError(message, line=line, column=column, problem=refusal.message)


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


class AdmissionEnvironment(Struct, frozen=True):
    """The names available to an expression of a policy.

    Attributes:
        version: the release that compiles and evaluates.
        stored: the expression is stored already.
        params: ``params`` exists.
        authorizer: ``authorizer`` exists.
        variables: the types of the policy's variables that come before the expression; None where there is no
            ``variables``.
    """

    version: KubernetesVersion
    stored: bool = True
    params: bool = False
    authorizer: bool = True
    variables: Mapping[str, Type] | None = None

    def variable(self, name: str) -> Type | None:
        """Return the type of a variable."""
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
        """Return the fields of a type of objects."""
        return self.variables if of == _VARIABLES else _FIELDS.get(of)

    def overloads(self, function: str) -> tuple[Overload, ...]:
        """Return the signatures of a function."""
        name = function.removeprefix(".")
        return all_functions().get(name, ()) if is_known(name, self.version, stored=self.stored) else ()


def to_cel_value(value: Any) -> Any:
    """Return parsed JSON as a value of CEL; integers of more than 64 bits become doubles, as in Kubernetes.

    The result may share parts with the value, which must not be changed afterwards.
    """
    kind = type(value)
    if kind is str or kind is bool or value is None or kind is float:
        return value
    if isinstance(value, dict):
        return StringMapValue({key: to_cel_value(item) for key, item in value.items()})
    if isinstance(value, list):
        return [to_cel_value(item) for item in value]
    if isinstance(value, int):
        return int(value) if INT_MIN <= value <= INT_MAX else float(value)
    return float(value) if isinstance(value, float) else str(value)
