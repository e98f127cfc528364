"""A whole ResourceClaimTemplate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dra_kit.resource import names, v1
from dra_kit.resource.fielderror import FieldError, forbidden, invalid
from dra_kit.resource.gates import FeatureGates
from dra_kit.resource.validation.claims.claims import validate_claim_spec
from dra_kit.resource.validation.fields.gostructs import go_template_spec

_NOT_IN_TEMPLATES: Final = (
    ("name", "name"), ("generateName", "generateName"), ("namespace", "namespace"), ("selfLink", "selfLink"),
    ("uid", "uID"), ("resourceVersion", "resourceVersion"), ("generation", "generation"),
    ("creationTimestamp", "creationTimestamp"), ("deletionTimestamp", "deletionTimestamp"),
    ("deletionGracePeriodSeconds", "deletionGracePeriodSeconds"), ("ownerReferences", "ownerReferences"),
    ("finalizers", "finalizers"), ("managedFields", "managedFields"),
)  # fmt: skip
"""What the claims' metadata cannot take over, each with the name that the API server calls it by."""


def validate_template(template: v1.ResourceClaimTemplate, gates: FeatureGates | None = None) -> list[FieldError]:
    """Check all rules of the API server (Kubernetes 1.37) for the spec of a template, in its paths and texts.

    Args:
        template: fields of gates that are off have been dropped from it.
        gates: of the API server; the defaults if absent.
    """
    errors = _validate_metadata(template.spec.metadata.to_json(), "spec.metadata")
    return errors + validate_claim_spec(template.spec.spec, gates, path="spec.spec")


def validate_template_update(
    template: v1.ResourceClaimTemplate, old: v1.ResourceClaimTemplate, gates: FeatureGates | None = None
) -> list[FieldError]:
    """Check it as a new template, and that the spec stays."""
    errors = validate_template(template, gates)
    if template.spec != old.spec:
        errors.append(invalid("spec", go_template_spec(template.spec), "field is immutable"))
    return errors


def _validate_metadata(metadata: Mapping[str, Any], path: str) -> list[FieldError]:
    errors = []
    for key, value in sorted(metadata.get("labels", {}).items()):
        errors += [invalid(f"{path}.labels", key, text) for text in names.label_key(key)]
        errors += [invalid(f"{path}.labels", value, text) for text in names.label_value(value)]
    for key in sorted(metadata.get("annotations", {})):
        errors += [invalid(f"{path}.annotations", key, text) for text in names.label_key(key.lower())]
    return errors + [
        forbidden(f"{path}.{shown}", "cannot be set") for name, shown in _NOT_IN_TEMPLATES if metadata.get(name)
    ]
