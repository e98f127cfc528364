"""What the API server makes of a new object: its defaults, what it drops of it, and why it refuses it.

Nothing of a cluster is known here: what admission says, of namespaces, accounts or priority classes, is left out.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from dra_kit.manifests.kinds import KnownKind
from dra_kit.resource.conversion import to_v1
from dra_kit.resource.defaulting.defaults import fill_in_defaults
from dra_kit.resource.defaulting.dropping import drop_disabled_fields
from dra_kit.resource.defaulting.pod_defaults import default_pull_policies
from dra_kit.resource.fielderror import FieldError
from dra_kit.resource.gates import FeatureGates
from dra_kit.resource.schema.defaults import apply_defaults
from dra_kit.resource.validation.fields.metadata import subdomain_problems, validate_object_meta
from dra_kit.resource.validation.new_objects import validate_new
from dra_kit.values.json import Object
from dra_kit.values.paths import value_at

NO_TIME: Final = "1970-01-01T00:00:00Z"
"""When something was made that is not in a cluster; no rule looks at it."""

_ASSIGNED: Final = (
    "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields",
)  # fmt: skip
"""What the API server alone sets in metadata, and clients may send."""


class Answer(Struct, frozen=True):
    """What an API server says to a new object.

    Attributes:
        stored: the object as it would be stored: without fields of features that are off.
        errors: why it would be refused, with the paths of v1; empty if it would not.
    """

    stored: Object
    errors: tuple[FieldError, ...]


def with_defaults(obj: Object, kind: KnownKind, *, namespace: str = "default") -> Object:
    """Return a new object as the API server completes it: with its defaults; one of resource.k8s.io in v1.

    Args:
        obj: values of the right types, as :func:`dra_kit.resource.schema.decode.decode` gives them; changed in place.
        kind: that it is of; ``apiVersion`` is one of its versions.
        namespace: of a namespaced object that names none.
    """
    api_version = str(obj["apiVersion"])
    metadata = obj.setdefault("metadata", {})
    for name in _ASSIGNED:
        metadata.pop(name, None)
    if kind.generation:
        metadata.pop("generation", None)
    if kind.namespaced:
        metadata["namespace"] = metadata.get("namespace") or namespace
    else:
        metadata.pop("namespace", None)  # the path of the request has none
    if kind.status:
        obj.pop("status", None)
    apply_defaults(value_at(obj, kind.part), kind.types[api_version])
    fill_in_defaults(obj, kind.name, api_version, NO_TIME)
    if len(kind.pod) > 1 and value_at(obj, kind.pod) is not None:  # a template
        default_pull_policies(value_at(obj, kind.pod[:-1]))
    return to_v1(obj, kind.name, api_version)


def answer(obj: Object, kind: KnownKind, gates: FeatureGates) -> Answer:
    """Return the answer of an API server with these gates to a new object.

    Args:
        obj: as :func:`with_defaults` gives it; not changed.
        kind: that it is of.
        gates: of the API server.
    """
    stored = drop_disabled_fields(obj, None, gates) if kind.model is not None else obj
    # of a class the name is looked at together with its spec
    own_rule = subdomain_problems if kind.name != "DeviceClass" else _no_problems
    errors = validate_object_meta(
        stored["metadata"], namespaced=kind.namespaced, name_problems=own_rule, prefix_problems=subdomain_problems
    )
    return Answer(stored, (*errors, *validate_new(stored, kind.name, gates)))


def _no_problems(name: str) -> list[str]:
    del name
    return []
