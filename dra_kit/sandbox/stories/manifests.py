"""Manifests of a story or of ``-f``: read, ordered, applied, tried without being stored."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from dra_kit.apiserver.api import KINDS
from dra_kit.apiserver.kinds.kind import VersionLife
from dra_kit.client.api import MERGE_PATCH, STRATEGIC_MERGE_PATCH, Client, server_version
from dra_kit.client.resources import NAMESPACES, Resource
from dra_kit.errors import ConfigurationError, Conflict, Forbidden, KubeError, NotFound, Unavailable
from dra_kit.kubernetes.manifests.documents import SourceFile, check_objects, read_objects, source_file, source_files
from dra_kit.kubernetes.resource.schema.types import LIST, MAP, SchemaField, item_type, struct_of_all
from dra_kit.kubernetes.values.json import byte_length, go_json
from dra_kit.text import did_you_mean

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_LAST_APPLIED_MAX: Final = 200_000  # bytes; the annotations of an object may have 262,144
_FIRST: Final = ("Namespace", "CustomResourceDefinition", "DeviceClass", "ResourceClaimTemplate", "ResourceClaim")


class AppliedManifest(Struct, frozen=True):
    """An object of a file, as the server stored it."""

    resource: Resource
    object: Mapping[str, Any]

    @property
    def name(self) -> str:
        """``metadata.name``."""
        return str(self.object["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """``metadata.namespace``, empty for a cluster-scoped one."""
        return str(self.object["metadata"].get("namespace", ""))


async def apply_files(client: Client, paths: Iterable[Path], *, namespace: str = "default") -> list[AppliedManifest]:
    """Create the objects of files and folders, or update those that exist already; pods last.

    The YAML and JSON files of a folder are read in the order of their names; documents in folders that are not objects
    are ignored. Objects that name no namespace are created in ``namespace``.

    Raises:
        ConfigurationError: a file is invalid, or the API server rejects its object; the message names the file.
        KubeError: the API server does not answer.
    """
    return await apply_documents(client, in_order(paths), namespace=namespace)


async def apply_documents(
    client: Client, documents: Iterable[tuple[str, Mapping[str, Any]]], *, namespace: str = "default"
) -> list[AppliedManifest]:
    """Do the same with objects that are already read, each with its place, in the given order."""
    kinds = KindDiscovery(client)
    return [await apply_object(client, kinds, where, body, namespace) for where, body in documents]


def in_order(paths: Iterable[Path]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the objects of files and folders in the order in which they are applied, each with its place.

    Raises:
        ConfigurationError: a file is invalid; the message names the file and the problem.
    """
    documents: list[tuple[str, Mapping[str, Any]]] = []
    for path in paths:
        found = list(read_manifests(path))
        if not found and path.is_dir():
            raise ConfigurationError(f"{path}: no YAML or JSON file in this folder contains a Kubernetes object")
        documents += found
    return sort_for_application(documents)


def sort_for_application(documents: Iterable[tuple[str, Mapping[str, Any]]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return objects in the order in which they are applied, pods last; those of a kind keep their order."""
    return sorted(documents, key=lambda item: _order(str(item[1].get("kind"))))


async def apply_object(
    client: Client, kinds: KindDiscovery, where: str, body: Mapping[str, Any], namespace: str
) -> AppliedManifest:
    """Create an object, or change the one that exists already.

    Raises:
        ConfigurationError: the API server rejects the object; the message names the place and the reason.
        KubeError: the API server does not answer.
    """
    resource = await kinds.resource(where, body)
    placed = in_namespace(resource, body, namespace)
    with _naming(where):
        try:
            stored = await client.create(resource, annotated(placed), strict=True)
        except Conflict:
            stored = await update_object(client, resource, placed)
        except Forbidden as refusal:  # also by a quota that is full, of an object that is counted already
            if not placed["metadata"].get("name"):
                raise
            try:
                stored = await update_object(client, resource, placed)
            except NotFound:
                raise refusal from None
    return AppliedManifest(resource, stored)


def annotated(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an object as ``kubectl apply`` sends it: with the annotation in which it finds what was applied before.

    All keys are sorted. The API server compares opaque parameters by their bytes, and a patch sorts them: other bytes
    would be a change of a claim or template, which cannot change.

    The annotation is left out if it is too long for an object, or if the object is not JSON, which the client rejects.
    """
    try:
        sent: dict[str, Any] = json.loads(json.dumps(body, allow_nan=False, sort_keys=True))
    except (TypeError, ValueError):
        return body
    given = sent["metadata"].get("annotations") or {}
    if not isinstance(given, dict):
        return sent  # the API server rejects it
    annotations = {key: text for key, text in given.items() if key != _LAST_APPLIED}
    text = go_json({**sent, "metadata": {**sent["metadata"], "annotations": annotations}}) + "\n"
    if byte_length(text) > _LAST_APPLIED_MAX:
        return sent
    return {**sent, "metadata": {**sent["metadata"], "annotations": {**annotations, _LAST_APPLIED: text}}}


async def update_object(client: Client, resource: Resource, body: Mapping[str, Any]) -> dict[str, Any]:
    """Change an existing object as ``kubectl apply`` does, and return it as stored.

    Fields of the manifest that was applied before are removed if this one lacks them. Fields that the API server or
    other clients have set stay. Items of lists are merged by the keys of their type; custom resources have none.

    Raises:
        KubeError: the API server rejects the change, also for an unknown field.
    """
    name, namespace = body["metadata"]["name"], body["metadata"].get("namespace")
    live = await client.get(resource, name, namespace)
    kind = next((kind for kind in KINDS if (kind.group, kind.plural) == (resource.group, resource.plural)), None)
    type_name = "" if kind is None else kind.types.get(resource.version, "")
    patch = apply_patch(_last_applied(live), annotated(body), live, type_name)
    if not patch:
        return live
    content_type = STRATEGIC_MERGE_PATCH if type_name else MERGE_PATCH
    return await client.patch(resource, name, patch, namespace, content_type=content_type, strict=True)


def _last_applied(live: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the manifest that was applied before; empty if the object was not applied."""
    try:
        former = json.loads((live["metadata"].get("annotations") or {}).get(_LAST_APPLIED, "{}"))
    except ValueError:
        return {}
    return former if isinstance(former, dict) else {}


async def dry_run(
    client: Client, documents: Iterable[tuple[str, Mapping[str, Any]]], *, namespace: str = "default"
) -> None:
    """Check by dry run whether the API server would accept objects as replacements of those with the same names.

    Raises:
        ConfigurationError: the API server rejects an object; the message names the file and the reason.
        KubeError: the API server does not answer.
    """
    kinds = KindDiscovery(client)
    for where, body in documents:
        resource = await kinds.resource(where, body)
        with _naming(where), suppress(Conflict):  # the name is taken by what it is to replace
            await client.create(resource, in_namespace(resource, body, namespace), dry_run=True, strict=True)


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Name the place of an object that is refused."""
    try:
        yield
    except Unavailable:
        raise
    except KubeError as error:
        raise ConfigurationError(f"{where}: {error}{_remedy(error)}", code=error.code) from None


def _remedy(error: KubeError) -> str:
    missing = isinstance(error, NotFound) and error.about == NAMESPACES.plural
    return "; add the Namespace to the file, or leave out metadata.namespace" if missing else ""


def _order(kind: str) -> int:
    if kind in _FIRST:
        return _FIRST.index(kind)
    return len(_FIRST) + (kind == "Pod")


def in_namespace(resource: Resource, body: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """Return an object with its namespace, or with this one where it names none."""
    return {**body, "metadata": {**({"namespace": namespace} if resource.namespaced else {}), **body["metadata"]}}


def apply_patch(
    former: Mapping[str, Any], wanted: Mapping[str, Any], live: Mapping[str, Any], type_name: str
) -> dict[str, Any]:
    """Return the patch with which ``kubectl apply`` updates an object or a part of one; empty if nothing changes.

    It removes what ``former`` has and ``wanted`` lacks. Everything else that only ``live`` has stays. Source:
    k8s.io/apimachinery 0.37 ``pkg/util/strategicpatch`` and ``pkg/util/jsonmergepatch``.

    Args:
        former: the manifest that was applied before; empty if it is not known.
        wanted: the manifest.
        live: the object as the API server has it.
        type_name: the type of the object, for a strategic merge patch; empty for a JSON merge patch.
    """
    patch: dict[str, Any] = dict.fromkeys(key for key in former if key not in wanted and key in live)
    for key, value in wanted.items():
        current, known, entry = live.get(key), former.get(key), _field_of(type_name, key)
        if isinstance(value, Mapping) and isinstance(current, Mapping) and "replace" not in entry.patch:
            patch |= {key: inner} if (inner := _item_patch(known, value, current, entry)) else {}
        elif isinstance(value, list) and isinstance(current, list) and "merge" in entry.patch:
            patch |= _list_patch(key, known if isinstance(known, list) else [], value, current, entry)
        elif go_json(value) != go_json(current):
            patch[key] = value
    return patch


def _field_of(type_name: str, name: str) -> SchemaField:
    """Return the schema of a field; the API server rejects unknown ones."""
    if type_name.startswith(MAP):
        return SchemaField(item_type(type_name))
    known = struct_of_all(type_name)
    return SchemaField("") if known is None or name not in known.fields else known.fields[name]


def _item_patch(former: Any, wanted: Mapping[str, Any], live: Mapping[str, Any], entry: SchemaField) -> dict[str, Any]:
    """Return the patch of a field, or of an item of a list, that contains fields."""
    patch = apply_patch(former if isinstance(former, Mapping) else {}, wanted, live, entry.type.removeprefix(LIST))
    if patch and "retainKeys" in entry.patch:
        patch["$retainKeys"] = sorted(key for key, value in wanted.items() if value is not None)
    return patch


def _list_patch(name: str, former: list[Any], wanted: list[Any], live: list[Any], entry: SchemaField) -> dict[str, Any]:
    """Return the patch of a list whose items are merged: the fields of the object that contains the list."""
    if not entry.merge_key:
        added, removed = [item for item in wanted if item not in live], [item for item in former if item not in wanted]
        lists = {name: added, f"$deleteFromPrimitiveList/{name}": [item for item in removed if item in live]}
        order = wanted
    else:
        there, given, known = (_by_key(items, entry.merge_key) for items in (live, wanted, former))
        if there is None or given is None:  # an item lacks its key, or two have the same
            return {} if wanted == live else {name: [*wanted, {"$patch": "replace"}]}
        changes = {key: item if key not in there else _item_patch((known or {}).get(key), item, there[key], entry)
                   for key, item in given.items()}  # fmt: skip
        gone = [{"$patch": "delete", entry.merge_key: key} for key in known or {} if key in there.keys() - given.keys()]
        lists = {name: [{entry.merge_key: key, **change} for key, change in changes.items() if change] + gone}
        order = [{entry.merge_key: key} for key in given]
        wanted, live = list(given), list(there)
    moved = [item for item in live if item in wanted] != [item for item in wanted if item in live]
    patch = {key: items for key, items in lists.items() if items}
    return patch | {f"$setElementOrder/{name}": order} if patch or moved else {}


def _by_key(items: list[Any], key: str) -> dict[Any, Mapping[str, Any]] | None:
    """Return items by their merge key; None if one lacks it or two have the same."""
    if not all(isinstance(item, Mapping) and isinstance(item.get(key), str | int) for item in items):
        return None
    found = {item[key]: item for item in items}
    return found if len(found) == len(items) else None


class Manifest(Struct, frozen=True):
    """One object of a file."""

    file: str
    body: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """``kind``."""
        return str(self.body.get("kind"))

    @property
    def name(self) -> str:
        """``metadata.name``."""
        return str(self.body["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """``metadata.namespace``; empty for the namespace of the story or test."""
        return str(self.body["metadata"].get("namespace") or "")

    def __str__(self) -> str:
        return "/".join(filter(None, (self.kind, self.namespace, self.name)))


def load_manifests(path: Path) -> tuple[Manifest, ...]:
    """Return the objects of a YAML file that a story may use, in its order.

    Raises:
        ConfigurationError: naming the file, the document and what is wrong with it.
    """
    return tuple(_manifest(path.name, *found) for found in read_objects(source_file(path), name=f"manifest {path}"))


def parse_manifests(source: str | Iterable[Any], name: str) -> tuple[Manifest, ...]:
    """Return the objects of a YAML text; objects are returned unchanged.

    Raises:
        ConfigurationError: a document is invalid; the message names the source, the document and the problem.
    """
    named = f"manifest {name}"
    found = read_objects(SourceFile(named, source)) if isinstance(source, str) else check_objects(source, named)
    return tuple(_manifest(name, *one) for one in found)


def read_manifests(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects of a file, or of the files of a folder, of any kind, each with a text that names its place.

    Subfolders of a folder are not read, and documents that are not objects are skipped.

    Raises:
        ConfigurationError: a document is invalid; the message names the file, the document and the problem.
    """
    for file in source_files(path):
        yield from read_objects(file, name=f"manifest {file.name}")


def _manifest(file: str, where: str, document: Mapping[str, Any]) -> Manifest:
    metadata = document["metadata"]
    if not isinstance(metadata.get("name"), str):
        raise ConfigurationError(f"{where} ({document['kind']}) has no metadata.name")
    return Manifest(file, document)


_API_VERSION: Final = re.compile(r"([a-z0-9.-]+/)?[a-z0-9]+")


class KindDiscovery:
    """The resources of a server by apiVersion and kind."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, dict[str, Resource]] = {}

    async def resource(self, where: str, body: Mapping[str, Any]) -> Resource:
        """Return the resource of an object.

        Raises:
            ConfigurationError: the server does not serve its apiVersion and kind.
            KubeError: the server does not answer.
        """
        version, kind = str(body.get("apiVersion") or ""), str(body.get("kind") or "")
        if _API_VERSION.fullmatch(version) and kind not in self._known.get(version, {}):
            self._known[version] = await self._discover(version)  # again: a CustomResourceDefinition may be new
        found = self._known.get(version, {}).get(kind)
        if found is None:
            raise ConfigurationError(
                f"{where}: the API server has no kind {kind or '(none)'} of {version or '(no apiVersion)'}"
                f"{await self._why_unserved(version, kind)}"
            )
        return found

    async def _why_unserved(self, version: str, kind: str) -> str:
        """Return cause and remedy for a version and kind that are not served, as the end of a message."""
        known = next((one for one in KINDS if one.kind == kind and version in map(one.api_version, one.types)), None)
        if known is None:
            return "; correct apiVersion and kind"
        others = [one for one in map(known.api_version, known.types) if one != version]
        served = next(iter([one for one in others if kind in await self._discover(one)]), "")
        instead = f"write {served} and its fields" if served else "correct apiVersion and kind"
        now = server_version(await self._client.get_path("/version"))
        life = known.lives.get(version.rpartition("/")[2], VersionLife())
        if life.is_over(now):
            return f": Kubernetes {now} has removed this version; {instead}"
        if not life.has_begun(now):
            return f": this version exists since Kubernetes 1.{life.introduced}, not in {now}; {instead}"
        alternative = f"write {served} and its fields, or " if served else ""
        if version.rpartition("/")[2] in known.off_by_default:
            return f": this version is off by default; {alternative}switch it on with --runtime-config {version}=true"
        if known.gate:
            gate = f"{known.gate}=true"
            return f": it needs the feature gate {known.gate}; {alternative}switch it on with --feature-gates {gate}"
        return f"; {instead}"

    async def named(self, kind: str, version: str = "") -> Resource:
        """Return the resource of a kind; without an apiVersion, the first that has it: ``v1``, then the other groups.

        Raises:
            ConfigurationError: the server does not serve the kind, or not in this version.
            KubeError: the server does not answer.
        """
        if version:
            return await self.resource(f"{version} {kind}", {"apiVersion": version, "kind": kind})
        groups = (await self._client.get_path("/apis"))["groups"]
        for served in ("v1", *(group["preferredVersion"]["groupVersion"] for group in groups)):
            if kind not in self._known.get(served, {}):
                self._known[served] = await self._discover(served)
            if found := self._known[served].get(kind):
                return found
        kinds = {name for known in self._known.values() for name in known}
        raise ConfigurationError(
            f"kind {kind} is not served{did_you_mean(kind, kinds) or ';'} write the kind as in a manifest, or pass "
            "api_version"
        )

    async def _discover(self, version: str) -> dict[str, Resource]:
        group, _, name = version.rpartition("/")
        path = f"/apis/{version}" if group else f"/api/{version}"
        try:
            document = await self._client.get_path(path)
        except NotFound:
            return {}
        return {
            item["kind"]: Resource(group, name, item["name"], item["kind"], namespaced=item["namespaced"])
            for item in document["resources"]
            if "/" not in item["name"]
        }
