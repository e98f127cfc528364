"""Rules for the specs of ResourceClaims, ResourceClaimTemplates and DeviceClasses, with CEL expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, Self, TypeAlias

from msgspec import Struct

from dra_kit.errors import CelCompileError
from dra_kit.kubernetes.cel.environment import DeviceEnvironment, new
from dra_kit.kubernetes.cel.program import MAX_COST, MAX_LENGTH, compile_derived, compile_selector
from dra_kit.kubernetes.release import Change, Release
from dra_kit.kubernetes.resource import names, v1
from dra_kit.kubernetes.resource.config import request_names
from dra_kit.kubernetes.resource.field_errors import (
    FieldError,
    GoStruct,
    check_length,
    forbidden,
    go_struct,
    invalid,
    mark_declarative,
    required,
    unsupported,
)
from dra_kit.kubernetes.resource.names import full_name
from dra_kit.kubernetes.resource.validation.fields import (
    check_limit,
    entries_within,
    find_duplicates,
    found_after_refusal,
    repeated_names,
    validate_amounts,
    validate_annotation_keys,
    validate_labels,
    validate_opaque,
    validate_request_references,
    validate_tolerations,
)

REQUESTS_MAX: Final = 32
ALTERNATIVES_MAX: Final = 8
"""Subrequests of ``firstAvailable``."""
DERIVED_ATTRIBUTES_MAX: Final = 32
_MODES: Final = ("All", "ExactCount")
_NOT_REFERENCED: Final = (
    "must be referenced by at least one matchAttribute or distinctAttribute constraint targeting this request"
)
_ONE_OF: Final = "exactly one of `exactly` or `firstAvailable` is required"


class _Rules(Struct, frozen=True):
    """What the rules of requests depend on.

    Attributes:
        release: of the API server.
        declarations: the environment of new expressions.
        constraints: of the claim.
        accepted: the capacities of requests and subrequests that are stored already, by both names.
    """

    release: Release
    declarations: DeviceEnvironment
    constraints: Sequence[v1.DeviceConstraint]
    accepted: Mapping[tuple[str, str], v1.CapacityRequirements]

    @classmethod
    def of(cls, claim: v1.DeviceClaim, release: Release, old: v1.DeviceClaim | None) -> Self:
        stored = {
            (request.name, name): body.capacity
            for request in (old.requests if old is not None else ())
            for name, body in _bodies(request)
            if body.capacity is not None
        }
        return cls(release, environment(release), claim.constraints, stored)


_Body: TypeAlias = v1.ExactDeviceRequest | v1.DeviceSubRequest


def _bodies(request: v1.DeviceRequest) -> list[tuple[str, _Body]]:
    """Return ``exactly`` and the subrequests of a request, each with its name or an empty one."""
    alternatives: list[tuple[str, _Body]] = [(one.name, one) for one in request.first_available]
    return alternatives if request.exactly is None else [("", request.exactly), *alternatives]


def validate_requests(
    claim: v1.DeviceClaim, path: str, release: Release, old: v1.DeviceClaim | None = None
) -> list[FieldError]:
    """Check ``requests`` of a claim; ``path`` is that of ``devices``.

    Args:
        claim: the content of a claim.
        path: its path.
        release: of the API server.
        old: what is stored already, by the rules of an earlier release: its capacities are not checked again.
    """
    rules = _Rules.of(claim, release, old)
    where = f"{path}.requests"
    errors = check_limit(claim.requests, REQUESTS_MAX, where)
    entries = [*entries_within(claim.requests, REQUESTS_MAX, where, release)]
    errors += find_duplicates((request for _, request in entries), lambda request: request.name, where, "name")
    for below, request in entries:
        errors += _validate_request(request, below, rules)
    bodies = [body for request in claim.requests for _, body in _bodies(request)]
    derived = [attribute.expression for body in bodies for attribute in body.derived_attributes]
    costs = (_compiled(expression, rules.declarations, derived=True)[0] for expression in derived if expression)
    if sum(costs) > MAX_COST:
        detail = "too complex, total cost of derived attribute CEL expressions in the claim exceeds cost limit"
        errors.append(forbidden(path, detail))
    return errors


def _validate_request(request: v1.DeviceRequest, path: str, rules: _Rules) -> list[FieldError]:
    errors = names.label_errors(request.name, f"{path}.name")
    content = _validate_alternatives(request, f"{path}.firstAvailable", rules)
    if request.exactly is not None:
        content += _validate_body(request.exactly, (request.name, ""), f"{path}.exactly", rules)
    if not request.first_available and request.exactly is None:
        return [*errors, required(path, _ONE_OF)]
    if request.first_available and request.exactly is not None:
        content = found_after_refusal(content, rules.release)
        content.append(invalid(path, None, f"{_ONE_OF}, but multiple fields are set"))
    return errors + content


def _validate_alternatives(request: v1.DeviceRequest, path: str, rules: _Rules) -> list[FieldError]:
    alternatives = request.first_available
    errors = check_limit(alternatives, ALTERNATIVES_MAX, path)
    entries = [*entries_within(alternatives, ALTERNATIVES_MAX, path, rules.release)]
    errors += find_duplicates((one for _, one in entries), lambda one: one.name, path, "name")
    for where, alternative in entries:
        errors += names.label_errors(alternative.name, f"{where}.name")
        errors += _validate_body(alternative, (request.name, alternative.name), where, rules)
    return errors


def _attributes_of(constraints: Sequence[v1.DeviceConstraint], names: tuple[str, str]) -> frozenset[str]:
    """Return the attributes that constraints of a request or subrequest compare."""
    targets = {names[0], "/".join(names)} if names[1] else {names[0]}
    found: set[str | None] = set()
    for constraint in constraints:
        if not constraint.requests or targets.intersection(constraint.requests):
            found |= {constraint.match_attribute, constraint.distinct_attribute}
    return frozenset(name for name in found if name is not None)


def _validate_body(body: _Body, of: tuple[str, str], path: str, rules: _Rules) -> list[FieldError]:
    """Check the common fields of ``exactly`` and subrequests, by the names of request and subrequest."""
    errors = _validate_class_name(body, f"{path}.deviceClassName")
    errors += validate_selectors(body.selectors, f"{path}.selectors", rules.declarations, rules.release)
    errors += _validate_mode(body.allocation_mode, body.count, path)
    errors += validate_tolerations(body.tolerations, f"{path}.tolerations", rules.release)
    if body.capacity is not None and body.capacity != rules.accepted.get(of):
        errors += validate_amounts(body.capacity.requests, f"{path}.capacity.requests", rules.release)
    constrained = _attributes_of(rules.constraints, of)
    return errors + _validate_derived(body.derived_attributes, constrained, f"{path}.derivedAttributes", rules)


def _validate_class_name(body: _Body, path: str) -> list[FieldError]:
    """Check the name of a class; the rule is declarative for subrequests."""
    name = body.device_class_name
    if isinstance(body, v1.ExactDeviceRequest):
        if not name:
            return [required(path)]
        return [invalid(path, name, text) for text in names.dns_subdomain(name, unit="characters")]
    if not name:
        return mark_declarative([required(path)])
    return mark_declarative(invalid(path, name, text) for text in names.dns_subdomain(name))


def _validate_mode(mode: str, count: int, path: str) -> list[FieldError]:
    match mode:
        case "All":
            if count:
                return [invalid(f"{path}.count", count, "must not be specified when allocationMode is 'All'")]
        case "ExactCount":
            if count <= 0:
                return [invalid(f"{path}.count", count, "must be greater than zero")]
        case "":
            return [unsupported(f"{path}.allocationMode", mode, _MODES)]
        case _:
            return mark_declarative([unsupported(f"{path}.allocationMode", mode, _MODES)])
    return []


def _validate_derived(
    attributes: Sequence[v1.DerivedAttribute], constrained: frozenset[str], path: str, rules: _Rules
) -> list[FieldError]:
    """Check derived attributes of a request; hand-written rules also check a list that is too long."""
    errors = []
    for i, attribute in enumerate(attributes):
        where = f"{path}[{i}]"
        name, expression = attribute.name, attribute.expression
        at = f"{where}.name"
        errors += mark_declarative(full_name(name, at, rules.release) if name else [required(at)])
        if name and name not in constrained:
            errors.append(invalid(at, name, _NOT_REFERENCED))
        if expression:
            errors += validate_expression(expression, f"{where}.expression", rules.declarations, derived=True)
        else:
            errors += mark_declarative([required(f"{where}.expression")])
    errors += repeated_names([attribute.name for attribute in attributes], path)
    if len(attributes) > DERIVED_ATTRIBUTES_MAX:
        errors = [error for error in errors if not error.declarative]
    return errors + check_limit(attributes, DERIVED_ATTRIBUTES_MAX, path)


CONSTRAINTS_MAX: Final = 32
CLAIM_CONFIGS_MAX: Final = 32
_WITHOUT_ATTRIBUTE: Final = (
    'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set'
)


def validate_claim_spec(
    spec: v1.ResourceClaimSpec,
    release: Release,
    *,
    path: str = "spec",
    old: v1.ResourceClaimSpec | None = None,
) -> list[FieldError]:
    """Check all rules of the API server for the spec of a claim, in its paths and texts.

    Args:
        spec: the spec; fields of gates that are off have been dropped from it.
        release: of the API server.
        path: path of the spec; ``spec.spec`` in a template.
        old: what it replaces in a template: unchanged capacities of requests are not looked at again.
    """
    known = request_names(spec.devices.requests)
    devices = f"{path}.devices"
    errors = validate_requests(spec.devices, devices, release, None if old is None else old.devices)
    constraints = spec.devices.constraints
    errors += check_limit(constraints, CONSTRAINTS_MAX, f"{devices}.constraints")
    for where, constraint in entries_within(constraints, CONSTRAINTS_MAX, f"{devices}.constraints", release):
        errors += _validate_constraint(constraint, known, where, release)
    errors += check_limit(spec.devices.config, CLAIM_CONFIGS_MAX, f"{devices}.config")
    for where, entry in entries_within(spec.devices.config, CLAIM_CONFIGS_MAX, f"{devices}.config", release):
        errors += validate_request_references(entry.requests, known, f"{where}.requests", release)
        errors += validate_opaque(entry.opaque, where)
    return errors


def validate_claim_spec_update(
    spec: v1.ResourceClaimSpec, old: v1.ResourceClaimSpec, release: Release
) -> list[FieldError]:
    """Check that the spec of a claim is unchanged; before Kubernetes 1.35, it was also checked like a new one."""
    errors = [] if release.has(Change.UPDATED_CLAIMS_ARE_NOT_READ) else validate_claim_spec(spec, release)
    if spec != old:
        errors += mark_declarative([invalid("spec", None, "field is immutable")])
    return errors


def _validate_constraint(
    constraint: v1.DeviceConstraint, known: frozenset[str], path: str, release: Release
) -> list[FieldError]:
    errors = validate_request_references(constraint.requests, known, f"{path}.requests", release)
    match, distinct = constraint.match_attribute, constraint.distinct_attribute
    if match is not None:
        errors += mark_declarative(full_name(match, f"{path}.matchAttribute", release))
    looked_at = match is None or release.has(Change.DISTINCT_NEXT_TO_MATCH_IS_CHECKED)
    if distinct is not None and looked_at:  # also next to matchAttribute, which takes precedence
        errors += mark_declarative(full_name(distinct, f"{path}.distinctAttribute", release))
    if match is None and distinct is None:
        sharing = "DRAConsumableCapacity" in release
        errors.append(required(path, _WITHOUT_ATTRIBUTE) if sharing else required(f"{path}.matchAttribute"))
    return errors


SELECTORS_MAX: Final = 32


def environment(release: Release) -> DeviceEnvironment:
    """Return the environment in which the API server of a release compiles new expressions."""
    return new(
        consumable_capacity="DRAConsumableCapacity" in release,
        list_type_attributes="DRAListTypeAttributes" in release,
        version=release.version,
    )


def validate_selectors(
    selectors: Sequence[v1.DeviceSelector], path: str, declarations: DeviceEnvironment, release: Release
) -> list[FieldError]:
    """Check selectors of a request or class."""
    errors = check_limit(selectors, SELECTORS_MAX, path)
    for where, selector in entries_within(selectors, SELECTORS_MAX, path, release):
        if selector.cel is None:
            errors.append(required(f"{where}.cel"))
        else:
            errors += validate_expression(selector.cel.expression, f"{where}.cel.expression", declarations)
    return errors


def validate_selected_content(
    rule: v1.DeviceTaintRule, release: Release, old: v1.DeviceTaintRule | None = None
) -> list[FieldError]:
    """Check the class and the expressions by which a DeviceTaintRule of Kubernetes 1.34 selects devices.

    Args:
        rule: the rule.
        release: of the API server.
        old: what it replaces: expressions that all stay as they are compile as stored ones.
    """
    selector, path = rule.spec.device_selector, "spec.deviceSelector"
    if selector is None:
        return []
    name, before = selector.device_class_name, None if old is None else old.spec.device_selector
    problems = [] if name is None else names.dns_subdomain(name)
    errors = [invalid(f"{path}.deviceClassName", name, text) for text in problems]
    stay = before is not None and selector.selectors == before.selectors
    declarations = DeviceEnvironment(version=release.version) if stay else environment(release)
    return errors + validate_selectors(selector.selectors, f"{path}.selectors", declarations, release)


def validate_expression(
    expression: str, path: str, declarations: DeviceEnvironment, *, derived: bool = False
) -> list[FieldError]:
    """Check that an expression compiles, has the right type, and is neither too long nor too expensive."""
    if errors := check_length(expression, MAX_LENGTH, path):
        return errors
    cost, problem = _compiled(expression, declarations, derived=derived)
    if problem:
        return [invalid(path, expression, problem)]
    return [forbidden(path, "too complex, exceeds cost limit")] if cost > MAX_COST else []


@lru_cache(maxsize=512)
def _compiled(expression: str, declarations: DeviceEnvironment, *, derived: bool) -> tuple[int, str]:
    """Return the estimated cost, or 0 and the errors if it does not compile."""
    compiler = compile_derived if derived else compile_selector
    try:
        return compiler(expression, environment=declarations).cost, ""
    except CelCompileError as error:
        return 0, _problem(expression, error)


def _problem(expression: str, error: CelCompileError) -> str:
    """Return a compile error with its position in the format of cel-go."""
    if not error.line:
        return error.problem
    line = expression.split("\n")[error.line - 1]
    shown = f" | {line}\n | {'.' * (error.column - 1)}^"
    return f"compilation failed: ERROR: <input>:{error.line}:{error.column}: {error.problem}\n{shown}"


CLASS_CONFIGS_MAX: Final = 32
_REQUESTS_PREFIX: Final = "requests."
_NATIVE_DOMAIN: Final = "kubernetes.io/"


def validate_class(
    device_class: v1.DeviceClass, release: Release, old: v1.DeviceClass | None = None
) -> list[FieldError]:
    """Check all rules of the API server for the name and spec of a class, in its paths and texts.

    Args:
        device_class: fields of gates that are off have been dropped from it.
        release: of the API server.
        old: what it replaces. Selectors that all stay as they are compile as stored ones, and the size of
            configuration that all stays does not count.
    """
    spec = device_class.spec
    selectors_stay = old is not None and spec.selectors == old.spec.selectors
    configs_stay = old is not None and spec.config == old.spec.config
    declarations = DeviceEnvironment(version=release.version) if selectors_stay else environment(release)
    name = device_class.metadata.name
    errors = (
        mark_declarative(invalid("metadata.name", name, text) for text in names.dns_subdomain(name)) if name else []
    )
    errors += validate_selectors(spec.selectors, "spec.selectors", declarations, release)
    errors += check_limit(spec.config, CLASS_CONFIGS_MAX, "spec.config")
    for where, entry in entries_within(spec.config, CLASS_CONFIGS_MAX, "spec.config", release):
        errors += validate_opaque(entry.opaque, where, stored=configs_stay)
    if spec.extended_resource_name is not None:
        errors += mark_declarative(
            _validate_extended_resource(spec.extended_resource_name, "spec.extendedResourceName")
        )
    return errors


def _validate_extended_resource(name: str, path: str) -> list[FieldError]:
    """Check a resource name with a domain other than Kubernetes', short enough for quotas."""
    problems = []
    if "/" not in name:
        problems.append("a name must be a domain-prefixed path, such as 'example.com/my-prop'")
    elif _NATIVE_DOMAIN in name:
        problems.append(f'must not have "{_NATIVE_DOMAIN}" domain')
    if name.startswith(_REQUESTS_PREFIX):
        problems.append(f'must not have "{_REQUESTS_PREFIX}" prefix')
    # the name of its quota, with this prefix, must be valid
    problems += names.label_key(f"{_REQUESTS_PREFIX}{name}")
    return [invalid(path, name, text) for text in problems]


_NOT_IN_TEMPLATES: Final = (
    ("name", "name"), ("generateName", "generateName"), ("namespace", "namespace"), ("selfLink", "selfLink"),
    ("uid", "uID"), ("resourceVersion", "resourceVersion"), ("generation", "generation"),
    ("creationTimestamp", "creationTimestamp"), ("deletionTimestamp", "deletionTimestamp"),
    ("deletionGracePeriodSeconds", "deletionGracePeriodSeconds"), ("ownerReferences", "ownerReferences"),
    ("finalizers", "finalizers"), ("managedFields", "managedFields"),
)  # fmt: skip
"""What the claims' metadata cannot take over, each with the name that the API server calls it by."""


def validate_template(
    template: v1.ResourceClaimTemplate, release: Release, old: v1.ResourceClaimTemplate | None = None
) -> list[FieldError]:
    """Check all rules of the API server for the spec of a template, in its paths and texts.

    Args:
        template: fields of gates that are off have been dropped from it.
        release: of the API server.
        old: what it replaces: unchanged capacities of requests are not looked at again.
    """
    metadata = template.spec.metadata.to_json()
    errors = validate_labels(metadata.get("labels"), "spec.metadata.labels")
    errors += validate_annotation_keys(metadata.get("annotations", ()), "spec.metadata.annotations")
    errors += [
        forbidden(f"spec.metadata.{shown}", "cannot be set") for name, shown in _NOT_IN_TEMPLATES if metadata.get(name)
    ]
    stored = None if old is None else old.spec.spec
    return errors + validate_claim_spec(template.spec.spec, release, path="spec.spec", old=stored)


def validate_template_update(
    template: v1.ResourceClaimTemplate, old: v1.ResourceClaimTemplate, release: Release
) -> list[FieldError]:
    """Check it as a new template, and that the spec is unchanged."""
    errors = validate_template(template, release, old)
    if template.spec != old.spec:
        # the fields of its metadata, written as in JSON, are beside those of the struct
        shown = GoStruct({**template.spec.metadata.to_json(), "Spec": go_struct(template.spec.spec)})
        errors.append(invalid("spec", shown, "field is immutable"))
    return errors
