"""The spec of a ResourceClaim, which is also what a ResourceClaimTemplate holds."""

from __future__ import annotations

from typing import Final

from dra_kit import cel
from dra_kit.resource import v1
from dra_kit.resource.fielderror import FieldError, declarative, invalid, required
from dra_kit.resource.gates import FeatureGates
from dra_kit.resource.validation.claims.requests import request_names, validate_reference, validate_requests
from dra_kit.resource.validation.fields.expressions import environment
from dra_kit.resource.validation.fields.formats import full_name
from dra_kit.resource.validation.fields.lists import limited, over_limit, repeated_names
from dra_kit.resource.validation.fields.opaque import validate_opaque

CONSTRAINTS_MAX: Final = 32
CONFIGS_MAX: Final = 32
REFERENCES_MAX: Final = 32
"""Requests that one constraint or configuration names."""

_WITHOUT_ATTRIBUTE: Final = (
    'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set'
)


def validate_claim_spec(
    spec: v1.ResourceClaimSpec,
    gates: FeatureGates | None = None,
    *,
    path: str = "spec",
    declarations: cel.Environment | None = None,
) -> list[FieldError]:
    """Check all rules of the API server (Kubernetes 1.37) for the spec of a claim, in its paths and texts.

    Args:
        spec: the spec; fields of gates that are off have been dropped from it.
        gates: of the API server; the defaults if absent.
        path: where the spec is; ``spec.spec`` in a template.
        declarations: what CEL expressions are compiled with, if they are not new.
    """
    gates = gates or FeatureGates.default()
    known = request_names(spec.devices.requests)
    devices = f"{path}.devices"
    errors = validate_requests(spec.devices, devices, declarations or environment(gates))
    sharing = "DRAConsumableCapacity" in gates
    constraints = spec.devices.constraints
    errors += over_limit(constraints, CONSTRAINTS_MAX, f"{devices}.constraints")
    for where, constraint in limited(constraints, CONSTRAINTS_MAX, f"{devices}.constraints"):
        errors += _validate_constraint(constraint, known, where, distinct_attributes=sharing)
    errors += over_limit(spec.devices.config, CONFIGS_MAX, f"{devices}.config")
    for where, entry in limited(spec.devices.config, CONFIGS_MAX, f"{devices}.config"):
        errors += validate_references(entry.requests, known, f"{where}.requests")
        errors += validate_opaque(entry.opaque, where)
    return errors


def validate_claim_spec_update(spec: v1.ResourceClaimSpec, old: v1.ResourceClaimSpec) -> list[FieldError]:
    """Check that the spec of a claim stays as it was created; nothing else is checked again."""
    return [] if spec == old else declarative([invalid("spec", None, "field is immutable")])


def validate_references(references: tuple[str, ...], known: frozenset[str], path: str) -> list[FieldError]:
    """Check the requests that a constraint or configuration names."""
    errors = over_limit(references, REFERENCES_MAX, path)
    for where, reference in limited(references, REFERENCES_MAX, path):
        errors += validate_reference(reference, known, where)
    return errors + (declarative(repeated_names(references, path)) if len(references) <= REFERENCES_MAX else [])


def _validate_constraint(
    constraint: v1.DeviceConstraint, known: frozenset[str], path: str, *, distinct_attributes: bool
) -> list[FieldError]:
    errors = validate_references(constraint.requests, known, f"{path}.requests")
    match, distinct = constraint.match_attribute, constraint.distinct_attribute
    if match is not None:
        errors += declarative(full_name(match, f"{path}.matchAttribute"))
    if distinct is not None:  # also beside matchAttribute, which is the one that counts then
        errors += declarative(full_name(distinct, f"{path}.distinctAttribute"))
    if match is None and distinct is None:
        without = required(path, _WITHOUT_ATTRIBUTE) if distinct_attributes else required(f"{path}.matchAttribute")
        errors.append(without)
    return errors
