"""OpenAPI v3 and v2 documents of the served kinds.

Descriptions exist for the types of resource.k8s.io that dra-kit has models of: their docstrings.

kubectl validates by v3, but for ``kind: List`` it reads v2, in protobuf alone, and refuses to go on without it
(k8s.io/cli-runtime 0.37 ``resource/query_param_verifier_v3.go``, k8s.io/client-go 0.37 ``openapi``). It skips what has
no definition there. The form is ``Document`` of gnostic's OpenAPIv2.proto.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from dra_kit.apiserver.api import encode
from dra_kit.apiserver.kinds.kind import Kind, KindRegistry
from dra_kit.kubernetes.release import KubernetesVersion, Release
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.schema.types import (
    CUSTOM_RESOURCE,
    LIST,
    MAP,
    SchemaField,
    fields_after,
    item_type,
    struct,
)
from dra_kit.kubernetes.values.json import Object

_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"
_PREFIXES: Final = {
    "meta/": "io.k8s.apimachinery.pkg.apis.meta.",
    "apiextensions/": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.",
}
_SCALARS: Final[Mapping[str, Object]] = {
    "string": {"type": "string"},
    "bool": {"type": "boolean"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "double": {"type": "number", "format": "double"},
    "bytes": {"type": "string", "format": "byte"},
    "JSON": {},
}
_NAMED_SCALARS: Final[Mapping[str, tuple[str, Object]]] = {
    "Time": (f"{_META}.Time", {"type": "string", "format": "date-time"}),
    "MicroTime": (f"{_META}.MicroTime", {"type": "string", "format": "date-time"}),
    "FieldsV1": (f"{_META}.FieldsV1", {"type": "object"}),
    "Quantity": (
        "io.k8s.apimachinery.pkg.api.resource.Quantity",
        {"oneOf": [{"type": "string"}, {"type": "number"}]},
    ),
    "IntOrString": (
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
        {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]},
    ),
    "RawExtension": ("io.k8s.apimachinery.pkg.runtime.RawExtension", {"type": "object"}),
}
_EXTENSIONS: Final = {"list": "list-type", "keys": "list-map-keys", "map": "map-type", "merge_key": "patch-merge-key"}
_ALWAYS: Final = ("meta/v1.APIResourceList", "meta/v1.DeleteOptions", "meta/v1.Patch", "meta/v1.Status",
                  "meta/v1.WatchEvent")  # fmt: skip
_PATCH_PARAMETERS: Final = ("dryRun", "fieldManager", "fieldValidation", "force")


def openapi_index(registry: KindRegistry, groups: Mapping[str, Sequence[str]], release: Release) -> Object:
    """Return the document at ``/openapi/v3``: the address of each group's version; ``groups`` are those served."""
    addresses = {}
    for path in sorted(_paths(groups)):
        content = openapi_document(registry, groups, path, release)
        digest = hashlib.sha512(encode(content)).hexdigest().upper()
        addresses[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": addresses}


def _paths(groups: Mapping[str, Sequence[str]]) -> list[str]:
    versions = [f"{group}/{version}" for group, found in groups.items() for version in found]
    return ["version", "api", "api/v1", "apis", *(f"apis/{name}" for name in [*groups, *versions])]


def openapi_document(
    registry: KindRegistry, groups: Mapping[str, Sequence[str]], path: str, release: Release
) -> Object | None:
    """Return the document of ``api/v1`` or ``apis/<group>/<version>``; one without schemas for the other paths."""
    if path not in _paths(groups):
        return None
    group, _, version = path.removeprefix("apis/").rpartition("/") if path != "api/v1" else ("", "", "v1")
    kinds = [kind for kind in registry if kind.group == group and version in kind.types]
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": release.version.published},
        "paths": {address: item for kind in kinds for address, item in _operations(kind, version)},
        "components": {"schemas": _schemas(kinds, version, release.version)},
    }


def _schemas(kinds: list[Kind], version: str, release: KubernetesVersion) -> Object:
    schemas: Object = {}
    waiting: list[str] = list(_ALWAYS) if kinds else []
    for kind in kinds:
        type_name = kind.types[version]
        known = {"group": kind.group, "kind": kind.kind, "version": version}
        if type_name == CUSTOM_RESOURCE.name:
            schemas[custom_name(kind, version)] = _custom(kind.schemas.get(version, {}), known)
            waiting.append("meta/v1.ObjectMeta")
            continue
        schemas[full_name(type_name)] = _struct_schema(type_name, release) | {
            "x-kubernetes-group-version-kind": [known]
        }
        schemas[full_name(type_name) + "List"] = _list_schema(type_name, known)
        waiting += [entry.type for entry in _fields(type_name, release).values()] + ["meta/v1.ListMeta"]
    while waiting:
        name = re.sub(r"^(\[\]|map\[string\])+", "", waiting.pop())
        if name in _NAMED_SCALARS:
            full, schema = _NAMED_SCALARS[name]
            schemas[full] = schema
        elif "." in name and full_name(name) not in schemas:
            schemas[full_name(name)] = _struct_schema(name, release)
            waiting += [entry.type for entry in _fields(name, release).values()]
    return dict(sorted(schemas.items()))


def full_name(type_name: str) -> str:
    """Return ``core/v1.Pod`` as ``io.k8s.api.core.v1.Pod``."""
    for prefix, full in _PREFIXES.items():
        if type_name.startswith(prefix):
            return full + type_name.removeprefix(prefix)
    return "io.k8s.api." + type_name.replace("/", ".")


def custom_name(kind: Kind, version: str) -> str:
    """Return the name of a custom resource's schema: its group reversed."""
    return ".".join([*reversed(kind.group.split(".")), version, kind.kind])


def _fields(type_name: str, release: KubernetesVersion) -> Mapping[str, SchemaField]:
    known = struct(type_name)
    newer = fields_after(type_name, release)
    return {name: entry for name, entry in known.fields.items() if name not in newer} if known else {}


@cache
def _struct_schema(type_name: str, release: KubernetesVersion) -> Object:
    known = struct(type_name)
    if known is None:
        return {"type": "object"}
    schema: Object = {"type": "object"}
    if text := type_description(type_name):
        schema["description"] = text
    fields = _fields(type_name, release)
    if required := [name for name, entry in fields.items() if entry.required]:
        schema["required"] = required
    if fields:
        schema["properties"] = {name: _property(entry) for name, entry in fields.items()}
    if known.map:
        schema["x-kubernetes-map-type"] = known.map
    return schema


def type_description(type_name: str) -> str:
    """Return the description of a type from our own model; empty without a model."""
    package, _, kind = type_name.partition(".")
    model = getattr(v1, kind, None) if package.startswith("resource/") else None
    text = inspect.getdoc(model) if model is not None else None
    return re.sub(r"`+|:\w+:", "", " ".join((text or "").split()))


def _property(entry: SchemaField) -> Object:
    schema = _type_schema(entry.type)
    reference = "$ref" in schema
    extra: Object = {}
    if entry.default is not None:
        extra["default"] = entry.default
    if entry.enum:
        (schema["items"] if entry.type.startswith(LIST) else extra)["enum"] = list(entry.enum)
    for attribute, name in _EXTENSIONS.items():
        if value := getattr(entry, attribute):
            extra[f"x-kubernetes-{name}"] = list(value) if isinstance(value, tuple) else value
    if entry.patch:
        extra["x-kubernetes-patch-strategy"] = ",".join(entry.patch)
    return {"allOf": [schema], **extra} if reference and extra else schema | extra


def _type_schema(type_name: str) -> Object:
    if type_name.startswith(LIST):
        return {"type": "array", "items": _type_schema(item_type(type_name))}
    if type_name.startswith(MAP):
        return {"type": "object", "additionalProperties": _type_schema(item_type(type_name))}
    if type_name in _SCALARS:
        return dict(_SCALARS[type_name])
    full = _NAMED_SCALARS[type_name][0] if type_name in _NAMED_SCALARS else full_name(type_name)
    return {"$ref": f"#/components/schemas/{full}"}


def _list_schema(type_name: str, known: Object) -> Object:
    return {
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "items": {"type": "array", "items": _type_schema(type_name)},
            "kind": {"type": "string"},
            "metadata": _type_schema("meta/v1.ListMeta"),
        },
        "x-kubernetes-group-version-kind": [{**known, "kind": f"{known['kind']}List"}],
    }


def _custom(schema: Object, known: Object) -> Object:
    """Return the schema of a definition, with the fields of every object."""
    properties = {
        **(schema.get("properties") or {}),
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": _type_schema("meta/v1.ObjectMeta"),
    }
    return {"type": "object", **schema, "properties": properties, "x-kubernetes-group-version-kind": [known]}


def _operations(kind: Kind, version: str) -> Iterator[tuple[str, Object]]:
    """Yield the paths of a kind with the parts that clients read: the verbs, and the parameters of a patch."""
    root = f"/apis/{kind.group}/{version}" if kind.group else f"/api/{version}"
    collection = f"{root}/namespaces/{{namespace}}/{kind.plural}" if kind.namespaced else f"{root}/{kind.plural}"
    known = {"group": kind.group, "kind": kind.kind, "version": version}
    if kind.types[version] == CUSTOM_RESOURCE.name:
        schema: Any = {"$ref": f"#/components/schemas/{custom_name(kind, version)}"}
    else:
        schema = _type_schema(kind.types[version])

    def operation(action: str, *parameters: str) -> Object:
        content = {"application/json": {"schema": schema}}
        return {
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": known,
            "parameters": [{"name": name, "in": "query", "schema": {"type": "string"}} for name in parameters],
            "responses": {"200": {"description": "OK", "content": content}},
        }

    many = {"get": operation("list"), "post": operation("post", *_PATCH_PARAMETERS[:3])}
    yield collection, many | ({"delete": operation("deletecollection")} if kind.collection_deletion else {})
    one = {
        "get": operation("get"),
        "put": operation("put", *_PATCH_PARAMETERS[:3]),
        "patch": operation("patch", *_PATCH_PARAMETERS),
        "delete": operation("delete", "dryRun"),
    }
    yield f"{collection}/{{name}}", one
    if kind.status:
        yield f"{collection}/{{name}}/status", {name: one[name] for name in ("get", "put", "patch")}


PROTOBUF: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_SWAGGER, _INFO, _PATHS = 1, 2, 8
_TITLE, _VERSION = 1, 2


def openapi_v2_json(release: Release) -> bytes:
    """Return the document as JSON."""
    info = {"title": "Kubernetes", "version": release.version.published}
    return json.dumps({"swagger": "2.0", "info": info, "paths": {}}).encode()


def openapi_v2_protobuf(release: Release) -> bytes:
    """Return the document in protobuf."""
    info = _field(_TITLE, b"Kubernetes") + _field(_VERSION, release.version.published.encode())
    return _field(_SWAGGER, b"2.0") + _field(_INFO, info) + _field(_PATHS, b"")


def _field(number: int, value: bytes) -> bytes:
    """Return one field of bytes, of fewer than 128 of them."""
    return bytes([number << 3 | 2, len(value)]) + value
