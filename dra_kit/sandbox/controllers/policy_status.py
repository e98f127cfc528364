"""The status of ValidatingAdmissionPolicies: that they were observed, and mistakes in the types of their expressions.

Custom resources are not checked. Sources: Kubernetes 1.37 ``pkg/controller/validatingadmissionpolicystatus``;
k8s.io/apiserver 0.37 ``pkg/admission/plugin/policy/validating/typechecking.go`` and ``pkg/cel/common/schemas.go``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import product
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from dra_kit.client.api import Client
from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import VALIDATING_ADMISSION_POLICIES
from dra_kit.errors import CelCompileError, NotFound
from dra_kit.kubernetes.cel import types
from dra_kit.kubernetes.cel.admission import AdmissionEnvironment, AdmissionExpression
from dra_kit.kubernetes.cel.types import Type, list_of, map_of
from dra_kit.kubernetes.release import NEWEST, Release
from dra_kit.kubernetes.resource.objects import ObjectKey, object_key
from dra_kit.kubernetes.resource.schema.types import LIST, MAP, item_type, struct
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.informers import SharedInformers, WorkQueue

ServedKind: TypeAlias = tuple[str, str, str, str]
"""Group, version and kind of a served kind, and the type of its objects in the schema table."""
KindLookup: TypeAlias = Callable[[str, str, str], ServedKind | None]
"""Returns the kind that is served by group, version and plural or kind."""
_MOST_TYPES: Final = 10  # per policy
_SCALARS: Final = {
    "string": types.STRING, "bool": types.BOOL, "int32": types.INT, "int64": types.INT, "double": types.DOUBLE,
    "bytes": types.BYTES, "Time": types.TIMESTAMP, "MicroTime": types.TIMESTAMP, "IntOrString": types.DYN,
}  # fmt: skip
_OPAQUE: Final = {"RawExtension", "FieldsV1"}  # objects without known fields
_RESERVED: Final = frozenset({
    "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let",
    "loop", "package", "namespace", "return", "var", "void", "while",
})  # fmt: skip
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPES: Final = (("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__"), ("/", "__slash__"))


class PolicyStatusController:
    """Writes ``status.observedGeneration`` and ``status.typeChecking`` of each policy that has changed."""

    def __init__(self, client: Client, informers: SharedInformers, kinds: KindLookup, release: Release) -> None:
        self._client = client
        self._kinds = kinds
        self._release = release
        self._policies: Mapping[ObjectKey, Any] = informers.objects(VALIDATING_ADMISSION_POLICIES)
        self._queue: WorkQueue[ObjectKey] = WorkQueue("policies", self._sync)
        informers.listen(VALIDATING_ADMISSION_POLICIES, self._changed)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._queue.run()

    def _changed(self, change: ObjectChange) -> None:
        if change.type != "DELETED":
            self._queue.add(object_key(change.object))

    async def _sync(self, key: ObjectKey) -> None:
        policy = self._policies.get(key)
        if policy is None:
            return
        generation = policy["metadata"]["generation"]
        if generation <= (policy.get("status") or {}).get("observedGeneration", 0):
            return
        warnings = type_warnings(policy["spec"], self._kinds, self._release)
        checking = {"expressionWarnings": warnings} if warnings else {}
        status = {**(policy.get("status") or {}), "observedGeneration": generation, "typeChecking": checking}
        with suppress(NotFound):
            await self._client.update(VALIDATING_ADMISSION_POLICIES, {**policy, "status": status}, subresource="status")


def type_warnings(spec: ObjectView, kinds: KindLookup, release: Release) -> list[dict[str, str]]:
    """Return the warnings about the types of a policy's validations, for each kind that it names."""
    checked = _kinds_to_check(spec, kinds)
    parameter = spec.get("paramKind")
    params: ServedKind | None = None
    if parameter:
        group, _, version = parameter["apiVersion"].rpartition("/")
        params = kinds(group, version, parameter["kind"])
    found = []
    for i, validation in enumerate(spec.get("validations") or ()):
        for field in ("expression", "messageExpression"):
            if not (text := validation.get(field) or ""):
                continue
            problems = [
                f"{group}/{version}, Kind={kind}: {problem}\n"
                for group, version, kind, of in checked
                if (problem := _problem(text, spec, _TypedEnvironment.of(spec, kind, of, params, release)))
            ]
            if problems:
                found.append({"fieldRef": f"spec.validations[{i}].{field}", "warning": "\n".join(problems)})
    return found


def _kinds_to_check(spec: ObjectView, kinds: KindLookup) -> list[ServedKind]:
    """Return the kinds of the rules that name groups, versions and resources without wildcards, sorted."""
    found: set[ServedKind] = set()
    for rule in (spec.get("matchConstraints") or {}).get("resourceRules") or ():
        groups, versions = rule.get("apiGroups") or (), rule.get("apiVersions") or ()
        if any("*" in item for item in (*groups, *versions)):
            continue
        resources = [item for item in rule.get("resources") or () if "*" not in item and "/" not in item]
        for place in product(sorted(groups), sorted(versions), sorted(resources)):
            if (kind := kinds(*place)) is not None:
                found.add(kind)
            if len(found) == _MOST_TYPES:
                return sorted(found)
    return sorted(found)


def _problem(text: str, spec: ObjectView, environment: _TypedEnvironment) -> str:
    """Return the error of an expression with typed objects; empty if there is none."""
    variables: dict[str, Type] = {}
    typed = environment.with_variables(variables if spec.get("variables") else None)
    for variable in spec.get("variables") or ():
        try:
            variables[variable["name"]] = AdmissionExpression(variable["expression"], typed).type
        except CelCompileError:
            variables[variable["name"]] = types.DYN
    try:
        AdmissionExpression(text, typed)
    except CelCompileError as error:
        return str(error)
    return ""


class _TypedEnvironment(AdmissionEnvironment, frozen=True):
    """The names of an expression, with types for ``object``, ``oldObject`` and ``params``.

    Attributes:
        object_type: of the objects that the policy is about.
        params_type: of its parameters; dynamic if it is not known.
        declared: the schema type of each type of objects, by name; filled as fields are asked for.
    """

    object_type: Type = types.DYN
    params_type: Type = types.DYN
    declared: dict[str, str] = {}

    @classmethod
    def of(
        cls, spec: ObjectView, kind: str, type_name: str, params: ServedKind | None, release: Release
    ) -> _TypedEnvironment:
        """Return the environment for objects of a kind."""
        declared: dict[str, str] = {}
        parameters = _declare(params[3], params[2], declared) if params else None
        return cls(
            release.version,
            params=bool(spec.get("paramKind")),
            object_type=_declare(type_name, kind, declared) or types.DYN,
            params_type=parameters or types.DYN,
            declared=declared,
        )

    def with_variables(self, variables: Mapping[str, Type] | None) -> _TypedEnvironment:
        """Return the same environment with the variables of the policy."""
        return replace(self, variables=variables)

    def variable(self, name: str) -> Type | None:
        """Return the type of a variable."""
        if name in {"object", "oldObject"}:
            return self.object_type
        if name == "params" and self.params:
            return self.params_type
        return super().variable(name)

    def fields(self, of: Type) -> Mapping[str, Type] | None:
        """Return the fields of a type of objects."""
        if of.name not in self.declared:
            return super().fields(of)
        known = struct(self.declared[of.name], self.version) if self.declared[of.name] else None
        return dict(_fields(of.name, known.fields if known else {}, self.declared))


def _fields(name: str, fields: Mapping[str, Any], declared: dict[str, str]) -> Iterator[tuple[str, Type]]:
    for field, entry in fields.items():
        escaped, of = _escaped(field), _declare(entry.type, f"{name}.{field}", declared)
        if escaped and of is not None:
            yield escaped, of


def _declare(type_name: str, name: str, declared: dict[str, str]) -> Type | None:
    """Return the CEL type of a schema type, named by its place; None where CEL cannot see it, as with quantities."""
    if type_name.startswith(LIST):
        item = _declare(item_type(type_name), f"{name}.@idx", declared)
        return list_of(item) if item else None
    if type_name.startswith(MAP):
        item = _declare(item_type(type_name), f"{name}.@elem", declared)
        return map_of(types.STRING, item) if item else None
    if type_name in _SCALARS:
        return _SCALARS[type_name]
    if type_name not in _OPAQUE and ("." not in type_name or struct(type_name, NEWEST) is None):
        return None
    declared[name] = "" if type_name in _OPAQUE else type_name
    return Type("struct", name)


def _escaped(field: str) -> str:
    """Return a field's name as CEL has it; empty for one that it cannot name."""
    if field in _RESERVED:
        return f"__{field}__"
    for text, escape in _ESCAPES:
        field = field.replace(text, escape)
    return field if _PLAIN.fullmatch(field) else ""
