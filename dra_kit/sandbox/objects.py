"""Objects of any kind from files, applied as ``kubectl apply -f`` does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dra_kit.errors import ConfigurationError, Conflict, NotFound
from dra_kit.kube.client import Client
from dra_kit.kube.resources import Resource
from dra_kit.sandbox.manifests import read_documents

_FIRST: Final = ("Namespace", "CustomResourceDefinition", "DeviceClass", "ResourceClaimTemplate", "ResourceClaim")
_LAST: Final = ("Pod",)
_SUFFIXES: Final = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class AppliedObject:
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


async def apply(client: Client, paths: Iterable[Path], *, namespace: str = "default") -> list[AppliedObject]:
    """Create the objects of files and folders, or change those that exist already; pods last.

    Args:
        client: of the API server, which says which kinds there are.
        paths: files, or folders whose YAML and JSON files are taken by name.
        namespace: of namespaced objects that name none.

    Raises:
        ConfigurationError: naming the file and what is wrong with it.
        KubeError: the API server refuses an object.
    """
    documents = [(where, item) for path in _files(paths) for where, item in read_documents(path)]
    kinds = _Kinds(client)
    applied = []
    for where, body in sorted(documents, key=lambda item: _order(str(item[1].get("kind")))):
        resource = await kinds.resource(where, body)
        stored = await _apply(client, resource, body, namespace if resource.namespaced else "")
        applied.append(AppliedObject(resource, stored))
    return applied


def _order(kind: str) -> int:
    if kind in _FIRST:
        return _FIRST.index(kind)
    return len(_FIRST) + (kind in _LAST)


def _files(paths: Iterable[Path]) -> Iterable[Path]:
    for path in paths:
        if path.is_dir():
            found = sorted(item for item in path.iterdir() if item.suffix in _SUFFIXES)
            if not found:
                raise ConfigurationError(f"{path}: there is no YAML or JSON file in this folder")
            yield from found
        else:
            yield path


async def _apply(client: Client, resource: Resource, body: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    metadata = {**({"namespace": namespace} if namespace else {}), **body["metadata"]}
    try:
        return await client.create(resource, {**body, "metadata": metadata})
    except Conflict:
        return await client.patch(resource, metadata["name"], body, metadata.get("namespace"))


class _Kinds:
    """The resources of a server by apiVersion and kind, as its discovery tells."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, dict[str, Resource]] = {}

    async def resource(self, where: str, body: Mapping[str, Any]) -> Resource:
        version, kind = str(body.get("apiVersion", "")), str(body.get("kind", ""))
        if version not in self._known or kind not in self._known[version]:
            self._known[version] = await self._discover(version)
        found = self._known[version].get(kind)
        if found is None:
            raise ConfigurationError(
                f"{where}: the API server has no kind {kind or '(none)'} of {version or '(no apiVersion)'}; "
                "correct apiVersion and kind"
            )
        return found

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
