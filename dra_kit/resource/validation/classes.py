"""A whole DeviceClass."""

from __future__ import annotations

from typing import Final

from dra_kit import cel
from dra_kit.resource import names, v1
from dra_kit.resource.fielderror import FieldError, declarative, invalid
from dra_kit.resource.gates import FeatureGates
from dra_kit.resource.validation.fields.expressions import environment, validate_selectors
from dra_kit.resource.validation.fields.lists import limited, over_limit
from dra_kit.resource.validation.fields.opaque import validate_opaque

CONFIGS_MAX: Final = 32
_REQUESTS_PREFIX: Final = "requests."
_NATIVE_DOMAIN: Final = "kubernetes.io/"


def validate_class(
    device_class: v1.DeviceClass, old: v1.DeviceClass | None = None, gates: FeatureGates | None = None
) -> list[FieldError]:
    """Check all rules of the API server (Kubernetes 1.37) for the name and spec of a class, in its paths and texts.

    Args:
        device_class: fields of gates that are off have been dropped from it.
        old: what it replaces. Selectors that all stay as they are compile as stored ones, and the size of
            configuration that all stays does not count.
        gates: of the API server; the defaults if absent.
    """
    spec = device_class.spec
    selectors_stay = old is not None and spec.selectors == old.spec.selectors
    configs_stay = old is not None and spec.config == old.spec.config
    declarations = cel.STORED if selectors_stay else environment(gates or FeatureGates.default())
    name = device_class.metadata.name
    errors = declarative(invalid("metadata.name", name, text) for text in names.dns_subdomain(name)) if name else []
    errors += validate_selectors(spec.selectors, "spec.selectors", declarations)
    errors += over_limit(spec.config, CONFIGS_MAX, "spec.config")
    for where, entry in limited(spec.config, CONFIGS_MAX, "spec.config"):
        errors += validate_opaque(entry.opaque, where, stored=configs_stay)
    if spec.extended_resource_name is not None:
        errors += declarative(_validate_extended_resource(spec.extended_resource_name, "spec.extendedResourceName"))
    return errors


def _validate_extended_resource(name: str, path: str) -> list[FieldError]:
    """Check a resource name with a domain that is not Kubernetes' own, short enough for a quota on it."""
    problems = []
    if "/" not in name:
        problems.append("a name must be a domain-prefixed path, such as 'example.com/my-prop'")
    elif _NATIVE_DOMAIN in name:
        problems.append(f'must not have "{_NATIVE_DOMAIN}" domain')
    if name.startswith(_REQUESTS_PREFIX):
        problems.append(f'must not have "{_REQUESTS_PREFIX}" prefix')
    # a quota's name for it, which begins with that prefix, must be fine
    problems += names.label_key(f"{_REQUESTS_PREFIX}{name}")
    return [invalid(path, name, text) for text in problems]
