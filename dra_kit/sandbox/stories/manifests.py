"""Manifests: YAML files with Kubernetes objects, as ``kubectl apply -f`` takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_kit.errors import ConfigurationError
from dra_kit.manifests.files import files_in, read_folder
from dra_kit.manifests.limits import MANIFESTS
from dra_kit.manifests.objects import file_values, named_objects, values


@dataclass(frozen=True, slots=True)
class Manifest:
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
    """The objects of a YAML file that a story may use, in its order.

    Raises:
        ConfigurationError: naming the file, the document and what is wrong with it.
    """
    return tuple(_manifest(path.name, where, document) for where, document in read_documents(path))


def parse_manifests(source: str | Iterable[Any], name: str) -> tuple[Manifest, ...]:
    """The objects of a YAML text, or objects as they are.

    Args:
        source: the text, or the objects.
        name: of the source, for errors.

    Raises:
        ConfigurationError: naming the source, the document and what is wrong with it.
    """
    named = f"manifest {name}"
    found = named_objects(values(source, named) if isinstance(source, str) else source, named)
    return tuple(_manifest(name, where, document) for where, document in found)


def read_documents(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects of a YAML or JSON file, of any kind, each with the words that name its place.

    Args:
        path: of the file.

    Raises:
        ConfigurationError: naming the file, the document and what is wrong with it.
    """
    return named_objects(file_values(path), f"manifest {path}")


def read_folder_documents(folder: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects of the files of a folder, without those of folders in it; what is no object is passed over.

    Raises:
        ConfigurationError: naming the file, the document and what is wrong with it.
    """
    for path, content in read_folder(files_in(folder, recursive=False, hidden=True), folder, MANIFESTS):
        yield from named_objects(values(content, str(path)), f"manifest {path}", chosen=False)


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
