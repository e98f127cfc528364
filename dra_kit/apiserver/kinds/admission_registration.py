"""ValidatingAdmissionPolicies and their bindings: what is asked of each object before it is stored.

Source of the rules: Kubernetes 1.37 ``pkg/apis/admissionregistration/validation``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from dra_kit.apiserver.kinds.columns import selector, text
from dra_kit.apiserver.kinds.kind import AGE, NAME, Column, Kind
from dra_kit.apiserver.kinds.registration.match_conditions import NO_EXPRESSION, match_conditions
from dra_kit.apiserver.kinds.registration.match_resources import match_resources, path_segment, selector_problems
from dra_kit.apiserver.kinds.strategy import Context, StatusStrategy, Strategy
from dra_kit.kubernetes.cel.parser import RESERVED_WORDS
from dra_kit.kubernetes.resource import names
from dra_kit.kubernetes.resource.field_errors import FieldError, duplicate, forbidden, invalid, required, unsupported
from dra_kit.kubernetes.values.json import Object

if TYPE_CHECKING:
    from dra_kit.kubernetes.cel.admission import PolicyProblem

_FAILURE_POLICIES: Final = ("Fail", "Ignore")
_REASONS: Final = ("Forbidden", "Invalid", "RequestEntityTooLarge")
_ACTIONS: Final = ("Audit", "Deny", "Warn")
_NOT_FOUND_ACTIONS: Final = ("Deny", "Allow")
_IDENTIFIER: Final = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*")
_EMPTY: Final = "validations or auditAnnotations must contain at least one item"
_BOTH: Final = (
    "must not contain both Deny and Warn (repeating the same validation failure information in the API response and "
    "headers serves no purpose)"
)


class PolicyStrategy(StatusStrategy):
    """A policy: its expressions compile, and are of the types that their places need."""

    @override
    def validate(self, obj: Object, context: Context) -> list[FieldError]:
        """Check the whole spec, in the order of the API server."""
        from dra_kit.kubernetes.cel.admission import compile_policy  # of the first policy: few clusters have one

        spec = obj.get("spec") or {}
        problems = {problem.path: problem for problem in compile_policy(spec).problems}
        return list(_spec(spec, obj["metadata"].get("name", ""), problems))

    @override
    def validate_update(self, obj: Object, old: Object, context: Context) -> list[FieldError]:
        """Check it as a new one."""
        return self.validate(obj, context)


def _spec(spec: Object, name: str, problems: Mapping[str, PolicyProblem]) -> Iterator[FieldError]:
    failure = spec.get("failurePolicy")
    if failure is not None and failure not in _FAILURE_POLICIES:
        yield unsupported("spec.failurePolicy", failure, _FAILURE_POLICIES)
    if spec.get("paramKind") is not None:
        yield from _param_kind(spec["paramKind"], "spec.paramKind")
    constraints = spec.get("matchConstraints")
    if constraints is None:
        yield required("spec.matchConstraints")
    else:
        yield from match_resources(constraints, "spec.matchConstraints")
        if not constraints.get("resourceRules"):
            yield required("spec.matchConstraints.resourceRules")
    yield from match_conditions(spec.get("matchConditions") or [], "spec", problems)
    for i, variable in enumerate(spec.get("variables") or ()):
        yield from _variable(variable, f"variables[{i}]", problems)
    validations, annotations = spec.get("validations") or [], spec.get("auditAnnotations") or []
    if not validations and not annotations:
        yield required("spec.validations", _EMPTY)
        yield required("spec.auditAnnotations", _EMPTY)
    for i, validation in enumerate(validations):
        yield from _validation(validation, f"validations[{i}]", problems)
    for i, annotation in enumerate(annotations):
        yield from _annotation(annotation, f"auditAnnotations[{i}]", name, problems)


def _param_kind(kind: Object, path: str) -> Iterator[FieldError]:
    version = kind.get("apiVersion", "")
    if not version:
        yield required(f"{path}.apiVersion")
    elif version.count("/") > 1:
        yield invalid(f"{path}.apiVersion", version, f"unexpected GroupVersion string: {version}")
    name = kind.get("kind", "")
    if not name:
        yield required(f"{path}.kind")
    elif found := names.dns_1035_label(name.lower()):
        yield invalid(f"{path}.kind", name, f"may have mixed case, but should otherwise match: {', '.join(found)}")


def _compiled(holder: Object, field: str, path: str, problems: Mapping[str, PolicyProblem]) -> Iterator[FieldError]:
    """Yield what is wrong with an expression that must be there."""
    if not (holder.get(field) or "").strip():
        yield required(f"spec.{path}.{field}", NO_EXPRESSION)
    else:
        yield from _problem(f"{path}.{field}", problems)


def _problem(path: str, problems: Mapping[str, PolicyProblem]) -> Iterator[FieldError]:
    if (problem := problems.get(path)) is not None:
        yield invalid(f"spec.{path}", problem.expression, problem.message)


def _variable(variable: Object, path: str, problems: Mapping[str, PolicyProblem]) -> Iterator[FieldError]:
    name = variable.get("name", "")
    if not name.strip():
        yield required(f"spec.{path}.name", "name is not specified")
    elif _IDENTIFIER.fullmatch(name) is None or name in RESERVED_WORDS:
        yield invalid(f"spec.{path}.name", name, "must be a valid CEL identifier")
    yield from _compiled(variable, "expression", path, problems)


def _validation(validation: Object, path: str, problems: Mapping[str, PolicyProblem]) -> Iterator[FieldError]:
    yield from _compiled(validation, "expression", path, problems)
    expression, message = validation.get("messageExpression") or "", validation.get("message") or ""
    if expression and not expression.strip():
        yield invalid(f"spec.{path}.messageExpression", expression, "must be non-empty if specified")
    yield from _problem(f"{path}.messageExpression", problems)
    if message and not message.strip():
        yield invalid(f"spec.{path}.message", message, "message must be non-empty if specified")
    elif "\n" in message.strip():
        yield invalid(f"spec.{path}.message", message, "must not contain line breaks")
    reason = validation.get("reason")
    if reason is not None and reason not in _REASONS:
        yield unsupported(f"spec.{path}.reason", reason, _REASONS)


def _annotation(
    annotation: Object, path: str, name: str, problems: Mapping[str, PolicyProblem]
) -> Iterator[FieldError]:
    key = annotation.get("key", "")
    if not key:
        yield required(f"spec.{path}.key")
    else:
        whole = f"{name}/{key}"
        yield from (invalid(f"spec.{path}.key", whole, found) for found in names.label_key(whole))
    if not (annotation.get("valueExpression") or "").strip():
        yield required(f"spec.{path}.valueExpression", "valueExpression is not specified")
    yield from _problem(f"{path}.valueExpression", problems)


class PolicyBindingStrategy(Strategy):
    """A binding: where a policy holds, with which parameters, and what becomes of what it refuses."""

    @override
    def validate(self, obj: Object, context: Context) -> list[FieldError]:
        """Check the whole spec, in the order of the API server."""
        return list(_binding(obj.get("spec") or {}))

    @override
    def validate_update(self, obj: Object, old: Object, context: Context) -> list[FieldError]:
        """Check it as a new one."""
        return self.validate(obj, context)


def _binding(spec: Object) -> Iterator[FieldError]:
    policy = spec.get("policyName", "")
    if not policy:
        yield required("spec.policyName")
    else:
        yield from (invalid("spec.policyName", policy, found) for found in names.dns_subdomain(policy))
    if spec.get("paramRef") is not None:
        yield from _param_ref(spec["paramRef"], "spec.paramRef")
    if spec.get("matchResources") is not None:
        yield from match_resources(spec["matchResources"], "spec.matchResources")
    actions = spec.get("validationActions") or []
    if not actions:
        yield required("spec.validationActions")
    for i, action in enumerate(actions):
        if action not in _ACTIONS:
            yield unsupported(f"spec.validationActions[{i}]", action, _ACTIONS)
        if action in actions[:i]:
            yield duplicate(f"spec.validationActions[{i}]", action)
    if {"Deny", "Warn"} <= set(actions):
        yield invalid("spec.validationActions", actions, _BOTH)


def _param_ref(reference: Object, path: str) -> Iterator[FieldError]:
    name, selector = reference.get("name", ""), reference.get("selector")
    if name:
        yield from (invalid(f"{path}.name", name, found) for found in path_segment(name))
        if selector is not None:
            yield forbidden(f"{path}.name", "name and selector are mutually exclusive")
    elif selector is None:
        yield required(path, "one of name or selector must be specified")
    if selector is not None:
        yield from selector_problems(selector, f"{path}.selector")
    action = reference.get("parameterNotFoundAction")
    if action is None:
        yield required(f"{path}.parameterNotFoundAction")
    elif action not in _NOT_FOUND_ACTIONS:
        yield unsupported(f"{path}.parameterNotFoundAction", action, _NOT_FOUND_ACTIONS)


def _parameters(obj: Object) -> str:
    reference = obj["spec"].get("paramRef")
    if not reference:
        return "<unset>"
    where = f"{reference['namespace']}/" if reference.get("namespace") else "*/"
    return where + reference["name"] if reference.get("name") else selector("spec.paramRef.selector")(obj)


def _parameter_kind(obj: Object) -> str:
    kind = obj["spec"].get("paramKind")
    return f"{kind.get('apiVersion', '')}/{kind.get('kind', '')}" if kind else "<unset>"


def _kind(plural: str, kind: str, strategy: Strategy, columns: tuple[Column, ...], *, status: bool = False) -> Kind:
    return Kind("admissionregistration.k8s.io", plural, kind, False, {"v1": f"admissionregistration/v1.{kind}"},
                strategy, categories=("api-extensions",), generation=True, deletion_status=True, columns=columns,
                status=status)  # fmt: skip


KINDS: Final = (
    _kind("validatingadmissionpolicies", "ValidatingAdmissionPolicy", PolicyStrategy(), (
        NAME, Column("Validations", lambda obj: len(obj["spec"].get("validations") or ()), type="integer"),
        Column("ParamKind", _parameter_kind), AGE), status=True),
    _kind("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", PolicyBindingStrategy(), (
        NAME, Column("PolicyName", text("spec.policyName")), Column("ParamRef", _parameters), AGE)),
)  # fmt: skip
