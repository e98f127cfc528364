"""The kinds of admissionregistration.k8s.io: webhook configurations, policies and bindings.

Sources: Kubernetes 1.37 ``pkg/apis/admissionregistration/validation``; k8s.io/apiserver 0.37
``pkg/util/webhook/validation.go``; k8s.io/apimachinery 0.37 ``pkg/apis/meta/v1/validation``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from typing_extensions import override

from dra_kit.apiserver.kinds.kind import Kind, PathSegmentNameStrategy, StatusStrategy, Strategy, StrategyContext
from dra_kit.apiserver.tables import AGE, NAME, Column, count_cell, selector_cell, text_cell
from dra_kit.kubernetes.cel.admission import PolicyProblem, compile_policy
from dra_kit.kubernetes.cel.parser import RESERVED_WORDS
from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.resource import names, v1
from dra_kit.kubernetes.resource.field_errors import (
    FieldError,
    GoStruct,
    duplicate,
    forbidden,
    invalid,
    mark_declarative,
    required,
    too_many,
    unsupported,
)
from dra_kit.kubernetes.resource.validation.fields import label_selector_errors, validate_conditions
from dra_kit.kubernetes.values.json import Object

_NOT_FOUND_ACTIONS: Final = ("Deny", "Allow")
_ACTIONS: Final = ("Audit", "Deny", "Warn")
_CHOICES: Final = {
    "failurePolicy": ("Fail", "Ignore"),
    "matchPolicy": ("Equivalent", "Exact"),
    "reason": ("Forbidden", "Invalid", "RequestEntityTooLarge"),
    "reinvocationPolicy": ("IfNeeded", "Never"),
    "scope": ("*", "Cluster", "Namespaced"),
    "sideEffects": ("None", "NoneOnDryRun"),
}
_MAX_ANNOTATIONS: Final = 20
_MAX_ANNOTATION_BYTES: Final = 5 * 1024
_IDENTIFIER: Final = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*")
_EMPTY: Final = "validations or auditAnnotations must contain at least one item"
_BOTH: Final = (
    "must not contain both Deny and Warn (repeating the same validation failure information in the API response and "
    "headers serves no purpose)"
)


class ValidatingPolicyStrategy(StatusStrategy):
    """A policy, whose expressions must compile and have the required types."""

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        spec = obj.get("spec") or {}
        problems = _expression_problems(spec, context.release)
        return list(_spec(spec, obj["metadata"].get("name", ""), problems))

    @override
    def validate_status(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        """Check warnings about types, and conditions."""
        status, errors = obj.get("status") or {}, []
        for i, warning in enumerate((status.get("typeChecking") or {}).get("expressionWarnings") or ()):
            path = f"status.typeChecking.expressionWarnings[{i}]"
            errors += [required(f"{path}.{field}") for field in ("warning", "fieldRef") if not warning.get(field)]
        conditions = [v1.Condition.model_validate(condition) for condition in status.get("conditions") or ()]
        return errors + validate_conditions(conditions, "status.conditions", context.release, limit=None)


def _expression_problems(spec: Object, release: Release) -> dict[str, PolicyProblem]:
    """Return the problems of the expressions of a policy or webhook, by path."""
    compiled = compile_policy(spec, release.version, stored=False)
    return {problem.path: problem for problem in compiled.problems}


def _spec(spec: Object, name: str, problems: Mapping[str, PolicyProblem]) -> Iterator[FieldError]:
    yield from _choice(spec, "failurePolicy", "spec")
    if spec.get("paramKind") is not None:
        yield from _param_kind(spec["paramKind"], "spec.paramKind")
    constraints = spec.get("matchConstraints")
    if constraints is None:
        yield required("spec.matchConstraints")
    else:
        yield from match_resource_errors(constraints, "spec.matchConstraints")
        if not constraints.get("resourceRules"):
            yield required("spec.matchConstraints.resourceRules")
    yield from match_condition_errors(spec.get("matchConditions") or [], "spec", problems)
    for i, variable in enumerate(spec.get("variables") or ()):
        yield from _variable(variable, f"variables[{i}]", problems)
    validations, annotations = spec.get("validations") or [], spec.get("auditAnnotations") or []
    if not validations and not annotations:
        yield required("spec.validations", _EMPTY)
        yield required("spec.auditAnnotations", _EMPTY)
    for i, validation in enumerate(validations):
        yield from _validation(validation, f"validations[{i}]", problems)
    if len(annotations) > _MAX_ANNOTATIONS:
        text = f"must not have more than {_MAX_ANNOTATIONS} auditAnnotations"
        yield invalid("spec.auditAnnotations", [_go_annotation(annotation) for annotation in annotations], text)
    keys: set[str] = set()
    for i, annotation in enumerate(annotations):
        key = annotation.get("key", "")
        yield from _annotation(annotation, f"auditAnnotations[{i}]", name, problems)
        if key in keys:
            yield duplicate(f"spec.auditAnnotations[{i}].key", key)
        keys.add(key)


def _go_annotation(annotation: Object) -> GoStruct:
    return GoStruct({"Key": annotation.get("key", ""), "ValueExpression": annotation.get("valueExpression", "")})


def _param_kind(kind: Object, path: str) -> Iterator[FieldError]:
    api_version = kind.get("apiVersion", "")
    group, _, version = api_version.rpartition("/")
    if not api_version:
        yield required(f"{path}.apiVersion")
    elif api_version.count("/") > 1:
        yield invalid(f"{path}.apiVersion", api_version, f"unexpected GroupVersion string: {api_version}")
    else:
        if group and (found := names.dns_subdomain(group)):
            yield invalid(f"{path}.apiVersion", group, ",".join(found))
        if not version:
            yield invalid(f"{path}.apiVersion", api_version, "version must be specified")
        elif found := names.dns_1035_label(version, unit="characters"):
            yield invalid(f"{path}.apiVersion", version, ",".join(found))
    name = kind.get("kind", "")
    if not name:
        yield required(f"{path}.kind")
    elif found := names.dns_1035_label(name.lower(), unit="characters"):
        yield invalid(f"{path}.kind", name, f"may have mixed case, but should otherwise match: {','.join(found)}")


def _compiled(holder: Object, field: str, path: str, problems: Mapping[str, PolicyProblem]) -> Iterator[FieldError]:
    """Yield errors of a required expression."""
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
    elif _IDENTIFIER.fullmatch(name) is None or name in {"false", "in", "null", "true", *RESERVED_WORDS}:
        yield invalid(f"spec.{path}.name", name, "must be a valid CEL identifier")
    yield from _compiled(variable, "expression", path, problems)


def _validation(validation: Object, path: str, problems: Mapping[str, PolicyProblem]) -> Iterator[FieldError]:
    yield from _compiled(validation, "expression", path, problems)
    expression, message = validation.get("messageExpression") or "", validation.get("message") or ""
    if expression and not expression.strip():
        yield invalid(f"spec.{path}.messageExpression", expression, "must be non-empty if specified")
    yield from _problem(f"{path}.messageExpression", problems)
    if message and not message.strip():
        yield invalid(f"spec.{path}.message", message, "must be non-empty if specified")
    elif "\n" in message.strip() or "\r" in message.strip():
        yield invalid(f"spec.{path}.message", message, "must not contain line breaks")
    yield from _choice(validation, "reason", f"spec.{path}")


def _annotation(
    annotation: Object, path: str, name: str, problems: Mapping[str, PolicyProblem]
) -> Iterator[FieldError]:
    key = annotation.get("key", "")
    if not name:
        yield invalid(f"spec.{path}.key", key, "requires metadata.name be non-empty")
    else:
        whole = f"{name}/{key}"
        yield from (invalid(f"spec.{path}.key", whole, found) for found in names.label_key(whole))
    expression = (annotation.get("valueExpression") or "").strip()
    if not expression:
        yield required(f"spec.{path}.valueExpression", "valueExpression is not specified")
    elif len(expression.encode()) > _MAX_ANNOTATION_BYTES:
        yield required(f"spec.{path}.valueExpression", f"must not exceed {_MAX_ANNOTATION_BYTES} bytes in length")
        return
    yield from _problem(f"{path}.valueExpression", problems)


class ValidatingPolicyBindingStrategy(Strategy):
    """A binding: where a policy applies, its parameters, and the actions on a denial."""

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        return list(_binding(obj.get("spec") or {}))


def _binding(spec: Object) -> Iterator[FieldError]:
    policy = spec.get("policyName", "")
    yield from (
        invalid("spec.policyName", policy, found) for found in names.dns_subdomain(policy, unit="characters") if policy
    )
    if spec.get("paramRef") is not None:
        yield from _param_ref(spec["paramRef"], "spec.paramRef")
    if spec.get("matchResources") is not None:
        yield from match_resource_errors(spec["matchResources"], "spec.matchResources")
    actions = spec.get("validationActions") or []
    for i, action in enumerate(actions):
        if action not in _ACTIONS:
            yield unsupported(f"spec.validationActions[{i}]", action, _ACTIONS)
        if action in actions[:i]:
            yield duplicate(f"spec.validationActions[{i}]", action)
    if {"Deny", "Warn"} <= set(actions):
        yield invalid("spec.validationActions", actions, _BOTH)
    missing = (field for field in ("policyName", "validationActions") if not spec.get(field))
    yield from mark_declarative([required(f"spec.{field}") for field in missing])


def _param_ref(reference: Object, path: str) -> Iterator[FieldError]:
    name, selector = reference.get("name", ""), reference.get("selector")
    if name:
        yield from (invalid(f"{path}.name", name, found) for found in path_segment(name))
        if selector is not None:
            yield forbidden(f"{path}.name", "name and selector are mutually exclusive")
    if selector is not None:
        yield from label_selector_errors(selector, f"{path}.selector")
        if name:
            yield forbidden(f"{path}.selector", "name and selector are mutually exclusive")
    elif not name:
        yield required(path, "one of name or selector must be specified")
    action = reference.get("parameterNotFoundAction")
    if not action:
        yield required(f"{path}.parameterNotFoundAction")
    elif action not in _NOT_FOUND_ACTIONS:
        yield unsupported(f"{path}.parameterNotFoundAction", action, _NOT_FOUND_ACTIONS, in_order=True)


def _choice(holder: Object, field: str, path: str) -> Iterator[FieldError]:
    """Yield the error of a field that is set to none of its values."""
    if holder.get(field) is not None and holder[field] not in _CHOICES[field]:
        yield unsupported(f"{path}.{field}", holder[field], _CHOICES[field])


def _parameters(obj: Object) -> str:
    reference = obj["spec"].get("paramRef")
    if not reference:
        return "<unset>"
    where = f"{reference['namespace']}/" if reference.get("namespace") else "*/"
    return where + reference["name"] if reference.get("name") else selector_cell("spec.paramRef.selector")(obj)


def _parameter_kind(obj: Object) -> str:
    kind = obj["spec"].get("paramKind")
    return f"{kind.get('apiVersion', '')}/{kind.get('kind', '')}" if kind else "<unset>"


def _kind(plural: str, kind: str, strategy: Strategy, columns: tuple[Column, ...], *, status: bool = False) -> Kind:
    return Kind("admissionregistration.k8s.io", plural, kind, False, {"v1": f"admissionregistration/v1.{kind}"},
                strategy, unconditional_update=False, categories=("api-extensions",), generation=True,
                deletion_status=True, columns=columns, status=status)  # fmt: skip


POLICY_KINDS: Final = (
    _kind("validatingadmissionpolicies", "ValidatingAdmissionPolicy", ValidatingPolicyStrategy(), (
        NAME, Column("Validations", lambda obj: len(obj["spec"].get("validations") or ()), type="integer"),
        Column("ParamKind", _parameter_kind), AGE), status=True),
    _kind("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", ValidatingPolicyBindingStrategy(), (
        NAME, Column("PolicyName", text_cell("spec.policyName")), Column("ParamRef", _parameters), AGE)),
)  # fmt: skip
_REVIEW_VERSIONS: Final = ("v1", "v1beta1")
_URL_FORM: Final = "; desired format: https://host[/path]"


class WebhookConfigurationStrategy(Strategy):
    """A configuration of webhooks."""

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        """Check the webhooks and that their names differ."""
        errors: list[FieldError] = []
        seen: set[str] = set()
        for i, webhook in enumerate(obj.get("webhooks") or ()):
            path, name = f"webhooks[{i}]", webhook.get("name", "")
            errors += _webhook(webhook, path, context.release)
            if name in seen:
                errors.append(duplicate(f"{path}.name", name))
            seen.add(name)
        return errors


def _webhook(webhook: Object, path: str, release: Release) -> Iterator[FieldError]:
    yield from _name(webhook.get("name", ""), f"{path}.name")
    versions = webhook.get("admissionReviewVersions") or []
    accepted = ", ".join(_REVIEW_VERSIONS)
    if not versions:
        yield required(f"{path}.admissionReviewVersions", f"must specify one of {accepted}")
    elif not set(versions) & set(_REVIEW_VERSIONS):
        yield invalid(f"{path}.admissionReviewVersions", versions, f"must include at least one of {accepted}")
    for i, rule in enumerate(webhook.get("rules") or ()):
        yield from rule_problems(rule, f"{path}.rules[{i}]")
    for field in ("failurePolicy", "matchPolicy", "reinvocationPolicy"):
        yield from _choice(webhook, field, path)
    if webhook.get("sideEffects") is None:
        yield required(f"{path}.sideEffects", f"must specify one of {', '.join(_CHOICES['sideEffects'])}")
    yield from _choice(webhook, "sideEffects", path)
    seconds = webhook.get("timeoutSeconds")
    if seconds is not None and not 1 <= seconds <= 30:
        yield invalid(f"{path}.timeoutSeconds", seconds, "the timeout value must be between 1 and 30 seconds")
    yield from _client(webhook.get("clientConfig") or {}, f"{path}.clientConfig")
    problems = _expression_problems(webhook, release)
    yield from match_condition_errors(webhook.get("matchConditions") or [], path, problems)


def _name(name: str, path: str) -> Iterator[FieldError]:
    if not name:
        yield required(path)
        return
    problems = names.dns_subdomain(name)
    yield from (invalid(path, name, text) for text in problems)
    if not problems and name.count(".") < 2:
        yield invalid(path, name, "should be a domain with at least three segments separated by dots")


def _client(config: Object, path: str) -> Iterator[FieldError]:
    url, service = config.get("url"), config.get("service")
    if (url is None) == (service is None):
        yield required(path, "exactly one of url or service is required")
    elif url is not None:
        yield from _url(url, f"{path}.url")
    elif service is not None:
        yield from _service(service, f"{path}.service")


def _url(url: str, path: str) -> Iterator[FieldError]:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = None
    if parts is None or (not parts.scheme and ":" in url.partition("/")[0]):
        yield required(path, f'url must be a valid URL: parse "{url}": missing protocol scheme{_URL_FORM}')
        return
    if parts.scheme != "https":
        yield invalid(path, parts.scheme, f"'https' is the only allowed URL scheme{_URL_FORM}")
    user, at, host = parts.netloc.rpartition("@")
    if not host:
        yield invalid(path, host, f"host must be specified{_URL_FORM}")
    if at:
        yield invalid(path, user, "user information is not permitted in the URL")
    if parts.fragment:
        yield invalid(path, parts.fragment, "fragments are not permitted in the URL")
    if parts.query:
        yield invalid(path, parts.query, "query parameters are not permitted in the URL")


def _service(service: Object, path: str) -> Iterator[FieldError]:
    yield from (
        required(f"{path}.{field}", f"service {field} is required")
        for field in ("name", "namespace")
        if not service.get(field)
    )
    port = service.get("port", 443)
    if not 1 <= port <= 65535:
        yield invalid(f"{path}.port", port, "port is not valid: must be between 1 and 65535, inclusive")
    where = service.get("path")
    if where is None or where == "/":
        return
    if not where.startswith("/"):
        yield invalid(f"{path}.path", where, "must start with a '/'")
    for i, segment in enumerate(where[1:].removesuffix("/").split("/")):
        if not segment:
            yield invalid(f"{path}.path", where, f"segment[{i}] may not be empty")
            continue
        yield from (invalid(f"{path}.path", where, f"segment[{i}]: {text}") for text in names.dns_subdomain(segment))


_CONFIGURATION: Final = (NAME, Column("Webhooks", count_cell("webhooks"), type="integer"), AGE)
WEBHOOK_KINDS: Final = tuple(
    _kind(f"{kind.lower()}s", kind, WebhookConfigurationStrategy(), _CONFIGURATION)
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
)
NO_EXPRESSION: Final = "expression is not specified"
_MAX: Final = 64


def match_condition_errors(
    conditions: Sequence[Object], holder: str, problems: Mapping[str, PolicyProblem]
) -> Iterator[FieldError]:
    """Yield errors of match conditions.

    Args:
        conditions: of one webhook or policy.
        holder: path of the object that has them, such as ``spec`` or ``webhooks[0]``.
        problems: expressions that cannot be used, by path below the holder.
    """
    if len(conditions) > _MAX:
        yield too_many(f"{holder}.matchConditions", len(conditions), _MAX)
    seen: set[str] = set()
    for i, condition in enumerate(conditions):
        field, name = f"matchConditions[{i}]", condition.get("name", "")
        path, expression = f"{holder}.{field}", f"{field}.expression"
        if not (condition.get("expression") or "").strip():
            yield required(f"{path}.expression")
        elif (problem := problems.get(expression)) is not None:
            yield invalid(f"{path}.expression", problem.expression, problem.message)
        if not name:
            yield required(f"{path}.name")
            continue
        yield from (invalid(f"{path}.name", name, found) for found in names.label_key(name))
        if name in seen:
            yield duplicate(f"{path}.name", name)
        seen.add(name)


_OPERATIONS: Final = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")


def match_resource_errors(resources: Object, path: str) -> Iterator[FieldError]:
    """Yield errors of ``MatchResources``."""
    yield from _choice(resources, "matchPolicy", path)
    for field in ("namespaceSelector", "objectSelector"):
        yield from label_selector_errors(resources.get(field) or {}, f"{path}.{field}")
    for field in ("resourceRules", "excludeResourceRules"):
        for i, rule in enumerate(resources.get(field) or ()):
            where = f"{path}.{field}[{i}]"
            for j, name in enumerate(rule.get("resourceNames") or ()):
                yield from (invalid(f"{where}.resourceNames[{j}]", name, text) for text in path_segment(name))
                if name in rule["resourceNames"][:j]:
                    yield duplicate(f"{where}.resourceNames[{j}]", name)
            yield from rule_problems(rule, where)


path_segment: Final = PathSegmentNameStrategy().name_problems
"""What keeps a name from being one segment of a path."""


def rule_problems(rule: Object, path: str) -> Iterator[FieldError]:
    """Yield errors in the operations and resources of a webhook or a policy."""
    operations = rule.get("operations") or []
    if not operations:
        yield required(f"{path}.operations")
    if "*" in operations and len(operations) > 1:
        yield invalid(f"{path}.operations", operations, "if '*' is present, must not specify other operations")
    for i, operation in enumerate(operations):
        if operation not in _OPERATIONS:
            yield unsupported(f"{path}.operations[{i}]", operation, _OPERATIONS)
    for field, what in (("apiGroups", "API groups"), ("apiVersions", "API versions")):
        values = rule.get(field) or []
        if not values:
            yield required(f"{path}.{field}")
        if "*" in values and len(values) > 1:
            yield invalid(f"{path}.{field}", values, f"if '*' is present, must not specify other {what}")
        if field == "apiVersions":
            yield from (required(f"{path}.{field}[{i}]") for i, value in enumerate(values) if not value)
    yield from _resources(rule.get("resources") or [], f"{path}.resources")
    yield from _choice(rule, "scope", path)


def _resources(resources: list[str], path: str) -> Iterator[FieldError]:
    """Yield errors of resources: each may have one subresource, and none may be covered by a wildcard."""
    if not resources:
        yield required(path)
    everything_of: set[str] = set()
    every: set[str] = set()
    for i, item in enumerate(resources):
        if not item:
            yield required(f"{path}[{i}]")
            continue
        name, slash, part = item.partition("/")
        covering = f"{name}/*" if name in everything_of and part != "*" else ""
        covering = covering or (f"*/{part}" if part in every and name != "*" else "")
        if "*/*" in resources[:i] and slash:
            covering = "*/*"
        if slash and covering:
            yield invalid(f"{path}[{i}]", item, f"if '{covering}' is present, must not specify {item}")
        if part == "*":
            everything_of.add(name)
        if name == "*" and slash:
            every.add(part)
    if "*/*" in resources and len(resources) > 1:
        yield invalid(path, resources, "if '*/*' is present, must not specify other resources")
    if "*" in resources and any("/" not in item for item in resources if item != "*"):
        detail = "if '*' is present, must not specify other resources without subresources"
        yield invalid(path, resources, detail)
