"""Manifests: YAML files with Kubernetes objects, as ``kubectl apply -f`` takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.manifests.documents import SourceFile, check_objects, read_objects, source_file, source_files


class Manifest(Struct, frozen=True):
    """One object of a file.

    Attributes:
        file: the file's name.
        body: the object, without namespace.
    """

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

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


def load_manifests(path: Path) -> tuple[Manifest, ...]:
    """Return the objects of a YAML file that a story may use, in its order.

    Raises:
        ConfigurationError: naming the file, the document and what is wrong with it.
    """
    return tuple(_manifest(path.name, *found) for found in read_objects(source_file(path), name=f"manifest {path}"))


def parse_manifests(source: str | Iterable[Any], name: str) -> tuple[Manifest, ...]:
    """Return the objects of a YAML text, or objects as they are.

    Args:
        source: the text, or the objects.
        name: of the source, for errors.

    Raises:
        ConfigurationError: naming the source, the document and what is wrong with it.
    """
    named = f"manifest {name}"
    found = read_objects(SourceFile(named, source)) if isinstance(source, str) else check_objects(source, named)
    return tuple(_manifest(name, *one) for one in found)


def read_manifests(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects of a file, or of the files of a folder, of any kind, each with the words that name its place.

    Of a folder, what is in folders below is left out, and what is no object passed over.

    Raises:
        ConfigurationError: naming the file, the document and what is wrong with it.
    """
    for file in source_files(path):
        yield from read_objects(file, name=f"manifest {file.name}")


def _manifest(file: str, where: str, document: Mapping[str, Any]) -> Manifest:
    metadata = document["metadata"]
    if not isinstance(metadata.get("name"), str):
        raise ConfigurationError(f"{where} ({document['kind']}) has no metadata.name")
    if metadata.get("namespace"):
        raise ConfigurationError(
            f"{where} ({document['kind']}/{metadata['name']}) sets metadata.namespace; leave it out, each run of a "
            "story has a namespace of its own"
        )
    return Manifest(file, document)
