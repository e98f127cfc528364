"""A ValidatingAdmissionPolicy, compiled: what is wrong with its expressions, and what it says of a request.

Source: k8s.io/apiserver 0.37 ``pkg/admission/plugin/policy/validating`` and ``pkg/admission/plugin/cel``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from msgspec import Struct, field

from dra_kit.cel.admission.environment import AdmissionEnvironment
from dra_kit.cel.admission.expressions import AdmissionExpression, compile_admission, variables_map
from dra_kit.cel.functions.authorization import Authorizer, ResourceCheck
from dra_kit.cel.types import DYN, Type
from dra_kit.errors import CelCompileError, CelRuntimeError
from dra_kit.values.json import ObjectView

COST_BUDGET: Final = 10_000_000
"""What all validations of a policy may cost together, for one request and parameter."""

CONDITIONS_COST_BUDGET: Final = 2_500_000
"""What all match conditions may cost together."""

MESSAGE_MAX: Final = 5 * 1024
"""The longest text of a ``messageExpression`` that is used, in bytes."""

_NO_BUDGET: Final = "validation failed due to running out of cost budget, no further validation rules will be run"


class Problem(Struct, frozen=True):
    """An expression that does not compile, or is of the wrong type.

    Attributes:
        path: of the field below ``spec``, such as ``validations[0].expression``.
        expression: its text.
        message: what is wrong, in the API server's words.
    """

    path: str
    expression: str
    message: str


class Request(Struct, frozen=True):
    """What a policy is asked about, as values of CEL (``json_value``).

    Attributes:
        request: the AdmissionRequest without its objects.
        object: after the request; None for a deletion.
        old_object: before it; None for a creation.
        namespace: the namespace of the object; None where it has none.
        params: the parameter; None for none.
        authorizer: answers what its user may do.
        resource: the question about the object itself.
    """

    request: Any
    object: Any
    old_object: Any
    namespace: Any = None
    params: Any = None
    authorizer: Authorizer | None = None
    resource: ResourceCheck | None = None


class Denial(Struct, frozen=True):
    """A validation that fails, or cannot be decided where the policy's ``failurePolicy`` is Fail.

    Attributes:
        message: why.
        reason: ``Invalid``, ``Forbidden`` or ``RequestEntityTooLarge``.
    """

    message: str
    reason: str = "Invalid"


class _Validation(Struct, frozen=True):
    expression: AdmissionExpression
    message_expression: AdmissionExpression | None
    message: str
    reason: str


class Policy(Struct):
    """The compiled expressions of a policy; made by ``compile_policy``.

    Attributes:
        failure_policy: what an error means: ``Fail`` or ``Ignore``.
        problems: the expressions that cannot be used; a policy that has some must not be evaluated.
    """

    failure_policy: Literal["Fail", "Ignore"]
    problems: list[Problem] = field(default_factory=list)
    _conditions: list[AdmissionExpression] = field(default_factory=list)
    _variables: dict[str, AdmissionExpression] = field(default_factory=dict)
    _validations: list[_Validation] = field(default_factory=list)

    def denials(self, asked: Request) -> list[Denial]:
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

    def _failed(self, message: str) -> list[Denial]:
        return [Denial(message)] if self.failure_policy == "Fail" else []

    def matches(self, asked: Request) -> bool | str:
        """Return whether all match conditions hold; the error where that is not known and ``failurePolicy`` is Fail."""
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

    def _messages(self, asked: Request, results: Sequence[Any], budget: _Budget) -> list[str]:
        """Return the texts of the ``messageExpression`` of what has failed; empty where none can be used."""
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
    def _given(asked: Request) -> dict[str, Any]:
        return {
            "request": asked.request, "object": asked.object, "oldObject": asked.old_object,
            "namespaceObject": asked.namespace, "params": asked.params,
            "authorizer": asked.authorizer, "authorizer.requestResource": asked.resource,
        }  # fmt: skip


class _Error(Struct, frozen=True):
    message: str


class _OverBudget(Exception):
    """All expressions together cost more than they may."""


class _Budget:
    """Adds up costs; a meter of evaluations."""

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


def compile_policy(spec: ObjectView) -> Policy:
    """Compile the expressions of a policy.

    Args:
        spec: of a ValidatingAdmissionPolicy, of which only the expressions are looked at; or a webhook, which has match
            conditions alone.

    Returns:
        The policy, with its problems in the order in which an API server tells them.
    """
    policy = Policy("Ignore" if spec.get("failurePolicy") == "Ignore" else "Fail")
    params = bool(spec.get("paramKind"))
    conditions = AdmissionEnvironment(params=params)
    for i, condition in enumerate(spec.get("matchConditions") or ()):
        compiled = _compiled(policy, f"matchConditions[{i}].expression", condition, "expression", conditions, "bool")
        policy._conditions += [compiled] if compiled else []  # noqa: SLF001 - it is being made
    types: dict[str, Type] | None = {} if spec.get("variables") else None
    for i, variable in enumerate(spec.get("variables") or ()):
        environment = AdmissionEnvironment(params=params, variables=dict(types or {}))
        compiled = _compiled(policy, f"variables[{i}].expression", variable, "expression", environment)
        if types is not None:
            types[variable["name"]] = DYN if compiled is None else compiled.type
        if compiled is not None:
            policy._variables[variable["name"]] = compiled  # noqa: SLF001
    of_validations = AdmissionEnvironment(params=params, variables=types)
    of_messages = AdmissionEnvironment(params=params, authorizer=False, variables=types)
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
        _compiled(policy, path, annotation, "valueExpression", of_validations, "string", "null_type")
    return policy


def _compiled(
    policy: Policy, path: str, holder: ObjectView, name: str, environment: AdmissionEnvironment, *expected: str
) -> AdmissionExpression | None:
    """Return the compiled expression of a field; None where there is none, or it is a problem."""
    text = holder.get(name) or ""
    if not text.strip():
        return None
    try:
        compiled = compile_admission(text, environment)
    except CelCompileError as error:
        policy.problems.append(Problem(path, text, str(error)))
        return None
    if expected and str(compiled.type) not in expected:
        wanted = expected[0] if len(expected) == 1 else f"one of [{' '.join(expected)}]"
        policy.problems.append(Problem(path, text, f"must evaluate to {wanted} but got {compiled.type}"))
        return None
    return compiled
