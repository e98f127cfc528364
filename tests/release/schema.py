"""Derives the table of types and fields from a release of Kubernetes."""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from msgspec import Struct

from dra_kit.kubernetes.release import OLDEST, SUPPORTED
from dra_kit.kubernetes.resource import schema
from tests.release.server import fetch

FOLDER: Final = Path(schema.__file__).parent
SINCE: Final = FOLDER / "since.json"
MODULES: Final = ("api", "apimachinery", "apiextensions-apiserver")
"""The modules of k8s.io with the types of the table."""

DOCUMENTS: Final = (
    "api/v1",
    *(
        f"apis/{group_version}"
        for group_version in (
            "resource.k8s.io/v1",
            "resource.k8s.io/v1beta2",
            "resource.k8s.io/v1beta1",
            "resource.k8s.io/v1alpha3",
            "apps/v1",
            "batch/v1",
            "coordination.k8s.io/v1",
            "events.k8s.io/v1",
            "policy/v1",
            "rbac.authorization.k8s.io/v1",
            "networking.k8s.io/v1",
            "scheduling.k8s.io/v1",
            "scheduling.k8s.io/v1beta1",
            "node.k8s.io/v1",
            "discovery.k8s.io/v1",
            "admissionregistration.k8s.io/v1",
            "apiextensions.k8s.io/v1",
            "authentication.k8s.io/v1",
            "authorization.k8s.io/v1",
        )
    ),
)
KINDS: Final = (
    *(f"core/v1.{kind}" for kind in (
        "Node", "Namespace", "Pod", "Event", "ServiceAccount", "ConfigMap", "Secret", "Service", "Endpoints",
        "Binding", "ResourceQuota")),
    *(f"resource/{version}.{kind}" for version in ("v1", "v1beta2", "v1beta1") for kind in (
        "ResourceSlice", "ResourceClaim", "ResourceClaimTemplate", "DeviceClass")),
    *(f"resource/{version}.DeviceTaintRule" for version in ("v1", "v1beta2", "v1alpha3")),
    "resource/v1alpha3.ResourcePoolStatusRequest",
    *(f"apps/v1.{kind}" for kind in (
        "Deployment", "DaemonSet", "ReplicaSet", "StatefulSet", "ControllerRevision")),
    "batch/v1.CronJob", "batch/v1.Job", "autoscaling/v1.Scale", "coordination/v1.Lease", "events/v1.Event",
    "policy/v1.Eviction", "policy/v1.PodDisruptionBudget",
    "networking/v1.NetworkPolicy", "scheduling/v1.PriorityClass", "node/v1.RuntimeClass",
    "scheduling/v1beta1.PodGroup", "scheduling/v1beta1.Workload",
    "discovery/v1.EndpointSlice",
    *(f"rbac/v1.{kind}" for kind in ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")),
    *(f"admissionregistration/v1.{kind}" for kind in (
        "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding")),
    "apiextensions/v1.CustomResourceDefinition",
    "authentication/v1.TokenReview", "authentication/v1.SelfSubjectReview", "authentication/v1.TokenRequest",
    *(f"authorization/v1.{kind}" for kind in (
        "SelfSubjectAccessReview", "SelfSubjectRulesReview", "SubjectAccessReview", "LocalSubjectAccessReview")),
    *(f"meta/v1.{kind}" for kind in ("ListMeta", "Status", "DeleteOptions", "APIResourceList", "Patch", "WatchEvent")),
)  # fmt: skip
_PREFIXES: Final = {
    "io.k8s.apimachinery.pkg.apis.meta.": "meta/",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.": "apiextensions/",
    "io.k8s.api.": "",
}
_SCALARS: Final = {
    "meta/v1.Time": "Time",
    "meta/v1.MicroTime": "MicroTime",
    "meta/v1.FieldsV1": "FieldsV1",
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "Quantity",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "IntOrString",
    "io.k8s.apimachinery.pkg.runtime.RawExtension": "RawExtension",
}
_STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(
    r"^\s+(?:(\w+)\s+)?(\*)?((?:\[\]|map\[[\w.]+\])*\*?[\w.]+)\s+`([^`\n]*json:\"([^\"]*)\"[^`\n]*)`", re.MULTILINE
)
_TAG = re.compile(r'protobuf:"\w+,(\d+)')


class GoField(Struct, frozen=True):
    """A field as Go's struct tags tell it.

    Attributes:
        name: in JSON.
        presence: how its zero value is written.
        tag: the protobuf number, with those of the messages that Go inlines in front.
    """

    name: str
    presence: str
    tag: tuple[int, ...]


def short(name: str) -> str:
    """Return ``io.k8s.api.core.v1.Pod`` as ``core/v1.Pod``, scalars by a name of their own."""
    for prefix, replacement in _PREFIXES.items():
        if name.startswith(prefix):
            group, version, kind = (replacement + name.removeprefix(prefix)).replace("/", ".").split(".")
            name = f"{group}/{version}.{kind}"
            break
    return _SCALARS.get(name, name)


def type_of(schema: dict[str, Any]) -> str:
    """Return the type expression of a property: a scalar, a struct's name, ``[]T`` or ``map[string]T``."""
    if "allOf" in schema:
        return type_of(schema["allOf"][0])
    if "$ref" in schema:
        return short(schema["$ref"].rsplit("/", 1)[1])
    match schema.get("type"):
        case "array":
            return "[]" + type_of(schema["items"])
        case "object" if "additionalProperties" in schema:
            return "map[string]" + type_of(schema["additionalProperties"])
        case "string":
            return "bytes" if schema.get("format") == "byte" else "string"
        case "integer":
            return str(schema.get("format", "int64"))
        case "number":
            return "double"
        case "boolean":
            return "bool"
    return "JSON"


def go_fields(modules: list[Path]) -> dict[str, list[GoField]]:
    """Return the fields of each struct, in order."""
    structs: dict[str, list[tuple[str, str, str, str, str]]] = {}
    for module in modules:
        for source in sorted(module.glob("**/types*.go")):
            package = "/".join(source.parent.parts[-2:])
            text = re.sub(r"//[^\n]*", "", source.read_text())
            for name, body in _STRUCT.findall(text):
                structs[f"{package}.{name}"] = _FIELD.findall(body)

    def expand(name: str, outside: tuple[int, ...] = ()) -> Iterator[GoField]:
        package = name.partition(".")[0]
        for _, pointer, go_type, tags, json_tag in structs.get(name, ()):
            json_name, *options = json_tag.split(",")
            number = (*outside, *map(int, _TAG.findall(tags)))
            if "inline" in options or not json_name:
                if go_type != "metav1.TypeMeta":
                    yield from expand(f"{package}.{go_type}", number)
            elif json_name != "-":
                yield GoField(json_name, _presence(bool(pointer), options), number)

    return {name: list(expand(name)) for name in structs}


def _presence(pointer: bool, options: list[str]) -> str:
    if "omitzero" in options:
        return "omitzero"
    if "omitempty" not in options:
        return "nullable" if pointer else "always"
    return "pointer" if pointer else "omitempty"


def field(name: str, schema: dict[str, Any], required: list[str], go: GoField | None) -> dict[str, Any]:
    """Return one entry of the table."""
    entry: dict[str, Any] = {"type": type_of(schema)}
    if name in required:
        entry["required"] = True
    entry["presence"] = go.presence if go else "always" if name in required else "pointer"
    if go and go.tag:
        entry["tag"] = go.tag
    for key, extension in (("list", "list-type"), ("keys", "list-map-keys"), ("map", "map-type"),
                           ("mergeKey", "patch-merge-key")):  # fmt: skip
        if value := schema.get(f"x-kubernetes-{extension}"):
            entry[key] = value
    if strategy := schema.get("x-kubernetes-patch-strategy"):
        entry["patch"] = strategy.split(",")
    if "default" in schema:
        entry["default"] = schema["default"]
    if values := schema.get("enum") or schema.get("items", {}).get("enum"):
        entry["enum"] = values
    return entry


def derive(schemas: dict[str, Any], order: dict[str, list[GoField]]) -> dict[str, dict[str, Any]]:
    """Return the table: each type that a kind reaches, by its short name."""
    by_name = {short(name): schema for name, schema in schemas.items()}
    table: dict[str, dict[str, Any]] = {}
    waiting = list(KINDS)
    while waiting:
        name = waiting.pop()
        if name in table or name not in by_name or name in _SCALARS.values():
            continue
        schema = by_name[name]
        properties, required = schema.get("properties", {}), schema.get("required", [])
        known = {item.name: item for item in order.get(name, ())}
        known |= {item: GoField(item, "omitempty", ()) for item in ("apiVersion", "kind") if item not in known}
        names = [item for item in known if item in properties and item not in {"apiVersion", "kind"}]
        names = [item for item in ("apiVersion", "kind") if item in properties] + names
        names += [item for item in sorted(properties) if item not in names]
        entry: dict[str, Any] = {"fields": {}}
        if "x-kubernetes-map-type" in schema:
            entry["map"] = schema["x-kubernetes-map-type"]
        for item in names:
            described = entry["fields"][item] = field(item, properties[item], required, known.get(item))
            waiting.append(re.sub(r"^(\[\]|map\[string\])+", "", described["type"]))
        is_empty_struct = schema.get("type") == "object" and name in order and name not in KINDS
        if not properties and not is_empty_struct:
            entry["scalar"] = "JSON" if "type" not in schema or schema["type"] == "object" else schema["type"]
        table[name] = entry
    return table


def write(table: dict[str, dict[str, Any]], folder: Path | None = None) -> None:
    """Write one file for each package, one line for each field."""
    packages: dict[str, dict[str, Any]] = defaultdict(dict)
    for name in sorted(table):
        package, _, kind = name.partition(".")
        packages[package][kind] = table[name]
    for package, types in packages.items():
        lines = []
        for kind, entry in types.items():
            fields = ",\n".join(
                f"    {json.dumps(name)}: {json.dumps(described, separators=(',', ':'))}"
                for name, described in entry["fields"].items()
            )
            rest = "".join(f', "{key}": {json.dumps(value)}' for key, value in entry.items() if key != "fields")
            lines.append(
                f'  {json.dumps(kind)}: {{"fields": {{' + (f"\n{fields}\n  " if fields else "") + f"}}{rest}}}"
            )
        ((folder or FOLDER) / f"{package.replace('/', '.')}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def table_of(server: str, modules: list[Path]) -> dict[str, dict[str, Any]]:
    """Return the table of an API server, with order, presence and protobuf numbers from the Go modules of its types.

    What it does not serve stays as it is: servers of older releases do, and those with other feature gates.
    """
    schemas: dict[str, Any] = {}
    kept: dict[str, dict[str, Any]] = {}
    for document in DOCUMENTS:
        try:
            schemas |= fetch(server, f"/openapi/v3/{document}")["components"]["schemas"]
        except FileNotFoundError as error:
            package = document.removeprefix("apis/").replace(".k8s.io", "").replace(".authorization/", "/")
            print(f"{error}: the types of {package} stay as they are", file=sys.stderr)
            kept |= {name: entry for name, entry in recorded().items() if name.startswith(f"{package}.")}
    return kept | derive(schemas, go_fields(modules))


def recorded() -> dict[str, dict[str, Any]]:
    """Return the table of dra-kit."""
    found = {}
    for path in sorted(FOLDER.glob("*.v*.json")):
        group, _, version = path.stem.rpartition(".")
        types = json.loads(path.read_text(encoding="utf-8"))
        found.update({f"{group}/{version}.{kind}": entry for kind, entry in types.items()})
    return found


def differences(there: dict[str, dict[str, Any]], here: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each type and field that only one side has, or that is described otherwise."""
    for name in sorted(there.keys() | here.keys()):
        if name not in here or name not in there:
            yield f"{name} {'is new' if name not in here else 'has gone'}"
            continue
        new, old = there[name]["fields"], here[name]["fields"]
        for item in sorted(new.keys() | old.keys()):
            if item not in old or item not in new:
                yield f"{name}.{item} {'is new' if item not in old else 'has gone'}"
            elif json.dumps(new[item], sort_keys=True) != json.dumps(old[item], sort_keys=True):
                yield f"{name}.{item} is {json.dumps(new[item])}, was {json.dumps(old[item])}"
        rest = [{key: value for key, value in side[name].items() if key != "fields"} for side in (there, here)]
        if rest[0] != rest[1]:
            yield f"{name} is {json.dumps(rest[0])}, was {json.dumps(rest[1])}"


Since: TypeAlias = dict[str, dict[str, int]]
"""By type and field: the first minor release with a field that is younger than its type."""
_MODULE: Final = re.compile(r"(?P<name>[a-z-]+)@v[0-9]+\.(?P<minor>[0-9]+)\.[0-9].*")


def since_of(folders: list[Path], types: Mapping[str, dict[str, Any]]) -> Since:
    """Return since when releases have the fields of a table of types, from the Go modules of each release.

    Raises:
        ValueError: a folder is not one of :data:`MODULES` of a release, or a release lacks one.
    """
    modules: dict[int, dict[str, Path]] = {version.minor: {} for version in SUPPORTED}
    for folder in folders:
        found = _MODULE.fullmatch(folder.name)
        if found is None or found["name"] not in MODULES or not folder.is_dir():
            raise ValueError(
                f"{folder} is not the folder of a module; give folders such as k8s.io/api@v0.{OLDEST.minor}.0"
            )
        modules.setdefault(int(found["minor"]), {})[found["name"]] = folder
    lacking = [
        f"k8s.io/{name} of 1.{minor}" for minor, known in modules.items() for name in MODULES if name not in known
    ]
    if lacking:
        raise ValueError(f"give the modules of all supported releases; without {', '.join(lacking)}")
    since: Since = {}
    first: dict[str, int] = {}
    for minor, known in sorted(modules.items()):
        for name, fields in go_fields(list(known.values())).items():
            first.setdefault(name, minor)
            for item in fields:
                if name in types and item.name in types[name]["fields"]:
                    since.setdefault(name, {}).setdefault(item.name, minor)
    return {
        name: younger
        for name, fields in sorted(since.items())
        if (younger := {item: minor for item, minor in sorted(fields.items()) if minor > first[name]})
    }


def recorded_since() -> Since:
    """Return since when releases have the younger fields, as dra-kit knows it."""
    table: Since = json.loads(SINCE.read_text(encoding="utf-8"))
    return table


def since_differences(there: Since, here: Since) -> Iterator[str]:
    """Yield a line for each field that exists since another release."""
    for name in sorted(there.keys() | here.keys()):
        new, old = there.get(name, {}), here.get(name, {})
        for item in sorted(new.keys() | old.keys()):
            if new.get(item) != old.get(item):
                texts = [f"since 1.{side[item]}" if item in side else "as old as its type" for side in (new, old)]
                yield f"{name}.{item} is {texts[0]}, was {texts[1]}"


def write_since(table: Since) -> None:
    """Write one line for each type."""
    lines = [f"  {json.dumps(name)}: {json.dumps(fields)}" for name, fields in table.items()]
    SINCE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
