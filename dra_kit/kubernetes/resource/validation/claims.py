"""The requests of a claim."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from dra_kit import cel
from dra_kit.resource import names, v1
from dra_kit.resource.fielderror import FieldError, declarative, forbidden, invalid, required, unsupported
from dra_kit.resource.validation.fields.expressions import expression_cost, validate_expression, validate_selectors
from dra_kit.resource.validation.fields.formats import full_name
from dra_kit.resource.validation.fields.lists import limited, over_limit, repeated, repeated_names
from dra_kit.resource.validation.fields.tolerations import validate_tolerations

REQUESTS_MAX: Final = 32
ALTERNATIVES_MAX: Final = 8
"""Subrequests of ``firstAvailable``."""

DERIVED_ATTRIBUTES_MAX: Final = 32
_MODES: Final = ("All", "ExactCount")
_NOT_REFERENCED: Final = (
    "must be referenced by at least one matchAttribute or distinctAttribute constraint targeting this request"
)
_ONE_OF: Final = "exactly one of `exactly` or `firstAvailable` is required"
_REFERENCE: Final = (
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
)


def request_names(requests: Iterable[v1.DeviceRequest]) -> frozenset[str]:
    """Return the names for constraints, configuration and results: ``request`` and ``request/subrequest``."""
    found = set()
    for request in requests:
        found.add(request.name)
        found |= {f"{request.name}/{alternative.name}" for alternative in request.first_available}
    return frozenset(found)


def validate_reference(reference: str, known: frozenset[str], path: str) -> list[FieldError]:
    """Check the name of a request or subrequest where it is referred to."""
    segments = reference.split("/")
    errors = []
    if len(segments) <= 2:
        for segment in segments:
            errors += _request_name(segment, path)
    return errors if reference in known else [*errors, invalid(path, reference, _REFERENCE)]


def validate_requests(claim: v1.DeviceClaim, path: str, declarations: cel.Environment) -> list[FieldError]:
    """Check ``requests`` of a claim; ``path`` is that of ``devices``."""
    where = f"{path}.requests"
    errors = over_limit(claim.requests, REQUESTS_MAX, where)
    if not errors:
        errors += repeated(claim.requests, lambda request: request.name, where)
    for below, request in limited(claim.requests, REQUESTS_MAX, where):
        errors += _validate_request(request, claim.constraints, below, declarations)
    bodies: list[v1.ExactDeviceRequest | v1.DeviceSubRequest] = []
    for request in claim.requests:
        bodies += [*([request.exactly] if request.exactly else []), *request.first_available]
    derived = [attribute.expression for body in bodies for attribute in body.derived_attributes]
    if sum(expression_cost(expression, declarations) for expression in derived if expression) > cel.MAX_COST:
        detail = "too complex, total cost of derived attribute CEL expressions in the claim exceeds cost limit"
        errors.append(forbidden(path, detail))
    return errors


def _validate_request(
    request: v1.DeviceRequest, constraints: Sequence[v1.DeviceConstraint], path: str, declarations: cel.Environment
) -> list[FieldError]:
    errors = _request_name(request.name, f"{path}.name")
    content = _validate_alternatives(request, constraints, f"{path}.firstAvailable", declarations)
    if request.exactly is not None:
        attributes = _attributes_of(constraints, {request.name})
        content += _validate_body(request.exactly, attributes, f"{path}.exactly", declarations)
    if not request.first_available and request.exactly is None:
        return [*errors, required(path, _ONE_OF)]
    if request.first_available and request.exactly is not None:
        # hand-written rules look no further then
        content = [error for error in content if error.declarative]
        content.append(invalid(path, None, f"{_ONE_OF}, but multiple fields are set"))
    return errors + content


def _validate_alternatives(
    request: v1.DeviceRequest, constraints: Sequence[v1.DeviceConstraint], path: str, declarations: cel.Environment
) -> list[FieldError]:
    alternatives = request.first_available
    errors = over_limit(alternatives, ALTERNATIVES_MAX, path)
    errors = errors or repeated(alternatives, lambda alternative: alternative.name, path)
    for where, alternative in limited(alternatives, ALTERNATIVES_MAX, path):
        errors += _request_name(alternative.name, f"{where}.name")
        targets = {request.name, f"{request.name}/{alternative.name}"}
        errors += _validate_body(alternative, _attributes_of(constraints, targets), where, declarations)
    return errors


def _request_name(name: str, path: str) -> list[FieldError]:
    return [invalid(path, name, text) for text in names.dns_label(name, unit="characters")]


def _attributes_of(constraints: Sequence[v1.DeviceConstraint], targets: set[str]) -> frozenset[str]:
    """Return the attributes that constraints of these requests compare."""
    found: set[str | None] = set()
    for constraint in constraints:
        if not constraint.requests or targets.intersection(constraint.requests):
            found |= {constraint.match_attribute, constraint.distinct_attribute}
    return frozenset(name for name in found if name is not None)


def _validate_body(
    body: v1.ExactDeviceRequest | v1.DeviceSubRequest,
    constrained: frozenset[str],
    path: str,
    declarations: cel.Environment,
) -> list[FieldError]:
    """Check what ``exactly`` and each of ``firstAvailable`` have in common."""
    errors = _validate_class_name(body, f"{path}.deviceClassName")
    errors += validate_selectors(body.selectors, f"{path}.selectors", declarations)
    errors += _validate_mode(body.allocation_mode, body.count, path)
    errors += validate_tolerations(body.tolerations, f"{path}.tolerations")
    return errors + _validate_derived(body.derived_attributes, constrained, f"{path}.derivedAttributes", declarations)


def _validate_class_name(body: v1.ExactDeviceRequest | v1.DeviceSubRequest, path: str) -> list[FieldError]:
    """Check the name of a class; of a subrequest the rule is a declarative one."""
    name = body.device_class_name
    if isinstance(body, v1.ExactDeviceRequest):
        if not name:
            return [required(path)]
        return [invalid(path, name, text) for text in names.dns_subdomain(name, unit="characters")]
    if not name:
        return declarative([required(path)])
    return declarative(invalid(path, name, text) for text in names.dns_subdomain(name))


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
            return declarative([unsupported(f"{path}.allocationMode", mode, _MODES)])
    return []


def _validate_derived(
    attributes: Sequence[v1.DerivedAttribute], constrained: frozenset[str], path: str, declarations: cel.Environment
) -> list[FieldError]:
    """Check derived attributes of a request; hand-written rules check those of a list that is too long, too."""
    errors = []
    for i, attribute in enumerate(attributes):
        where = f"{path}[{i}]"
        name, expression = attribute.name, attribute.expression
        errors += declarative(full_name(name, f"{where}.name") if name else [required(f"{where}.name")])
        if name and name not in constrained:
            errors.append(invalid(f"{where}.name", name, _NOT_REFERENCED))
        if expression:
            errors += validate_expression(expression, f"{where}.expression", declarations, derived=True)
        else:
            errors += declarative([required(f"{where}.expression")])
    errors += repeated_names([attribute.name for attribute in attributes], path)
    if len(attributes) > DERIVED_ATTRIBUTES_MAX:
        errors = [error for error in errors if not error.declarative]
    return errors + over_limit(attributes, DERIVED_ATTRIBUTES_MAX, path)
