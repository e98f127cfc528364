"""What expressions of admission policies may name.

Source: k8s.io/apiserver 0.37 ``pkg/admission/plugin/cel`` (``compile.go``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from dra_kit.cel import types
from dra_kit.cel.declarations import Overload, all_functions
from dra_kit.cel.types import Type, list_of, map_of

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
    """What an expression of a policy may name.

    Attributes:
        params: ``params`` exists.
        authorizer: ``authorizer`` exists.
        variables: the types of the policy's variables that come before the expression; None where there is no
            ``variables``.
    """

    params: bool = False
    authorizer: bool = True
    variables: Mapping[str, Type] | None = None

    @property
    def has_bind(self) -> bool:
        """There is no ``cel.bind``: policies have variables."""
        return False

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
        return () if name == "includes" else all_functions().get(name, ())
