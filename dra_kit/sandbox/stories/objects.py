"""Objects of any kind from files, applied as ``kubectl apply -f`` does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from dra_kit.client.api import Client
from dra_kit.client.resources import NAMESPACES, Resource
from dra_kit.errors import ConfigurationError, Conflict, KubeError, NotFound, Unavailable
from dra_kit.sandbox.cluster.served_kinds import ServedKinds
from dra_kit.sandbox.stories.manifests import read_manifests

_FIRST: Final = ("Namespace", "CustomResourceDefinition", "DeviceClass", "ResourceClaimTemplate", "ResourceClaim")
_LAST: Final = ("Pod",)


class AppliedObject(Struct, frozen=True):
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
        paths: files, or folders whose YAML and JSON files are taken by name; what is no object in these is left out.
        namespace: of namespaced objects that name none.

    Raises:
        ConfigurationError: naming the file and what is wrong with it, or why the API server refuses its object.
        KubeError: the API server does not answer.
    """
    kinds = ServedKinds(client)
    return [await apply_object(client, kinds, where, body, namespace) for where, body in in_order(paths)]


def in_order(paths: Iterable[Path]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the objects of files and folders in the order in which they are applied, each with where it stands.

    Raises:
        ConfigurationError: naming the file and what is wrong with it.
    """
    documents = [found for path in paths for found in _documents(path)]
    return sorted(documents, key=lambda item: _order(str(item[1].get("kind"))))


async def apply_object(
    client: Client, kinds: ServedKinds, where: str, body: Mapping[str, Any], namespace: str
) -> AppliedObject:
    """Create an object, or change the one that exists already.

    Args:
        client: of the API server.
        kinds: that it serves.
        where: the object stands.
        body: the object.
        namespace: of a namespaced object that names none.

    Raises:
        ConfigurationError: naming the place, and why the API server refuses the object.
        KubeError: the API server does not answer.
    """
    resource = await kinds.resource(where, body)
    placed = in_namespace(resource, body, namespace)
    with _naming(where):
        try:
            stored = await client.create(resource, placed, strict=True)
        except Conflict:
            metadata = placed["metadata"]
            stored = await client.patch(resource, metadata["name"], body, metadata.get("namespace"), strict=True)
    return AppliedObject(resource, stored)


async def check(
    client: Client, documents: Iterable[tuple[str, Mapping[str, Any]]], *, namespace: str = "default"
) -> None:
    """Ask whether the API server would take objects in the place of those that have their names; nothing is stored.

    Args:
        client: of the API server.
        documents: where each object stands, and the object.
        namespace: of namespaced objects that name none.

    Raises:
        ConfigurationError: naming the file, and why the API server refuses its object.
        KubeError: the API server does not answer.
    """
    kinds = ServedKinds(client)
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
    return len(_FIRST) + (kind in _LAST)


def _documents(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects of a file, or of the files in a folder, where others may lie too."""
    found = list(read_manifests(path))
    if not found and path.is_dir():
        raise ConfigurationError(f"{path}: there is no YAML or JSON file with a Kubernetes object in this folder")
    yield from found


def in_namespace(resource: Resource, body: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """Return an object with its namespace, or with this one where it names none."""
    return {**body, "metadata": {**({"namespace": namespace} if resource.namespaced else {}), **body["metadata"]}}
