"""Manifests: YAML files with Kubernetes objects, as ``kubectl apply -f`` takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dra_kit.errors import ConfigurationError
from dra_kit.lint.manifests import is_meant


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
    return tuple(_manifest(name, where, document) for where, document in _documents(source, name))


def read_documents(path: Path, *, chosen: bool = True) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects of a YAML or JSON file, of any kind, each with the words that name its place.

    Args:
        path: of the file.
        chosen: whether it was named, and not just found in a folder: everything in it must be an object then.

    Raises:
        ConfigurationError: naming the file, the document and what is wrong with it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"manifest {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"manifest {path} is no YAML: {error}") from None
    return _documents(text, str(path), chosen=chosen)


def _documents(
    source: str | Iterable[Any], name: str, *, chosen: bool = True
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        documents = list(yaml.safe_load_all(source) if isinstance(source, str) else source)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"manifest {name} is no YAML: {' '.join(str(error).split())}") from None
    for number, document in enumerate(documents, start=1):
        where = f"manifest {name}, document {number}"
        if document is None or (not chosen and not is_meant(document)):
            continue
        if not isinstance(document, dict):
            raise ConfigurationError(f"{where} is no object; it must have apiVersion, kind and metadata")
        if document.get("kind") == "List" and isinstance(document.get("items"), list):
            yield from _documents(document["items"], f"{name}, document {number}")
            continue
        if not isinstance(document.get("metadata"), dict):
            raise ConfigurationError(f"{where} ({document.get('kind')}) has no metadata.name")
        yield where, document


def _manifest(file: str, where: str, document: Mapping[str, Any]) -> Manifest:
    for name in ("apiVersion", "kind"):
        if not isinstance(document.get(name), str) or not document[name]:
            raise ConfigurationError(f"{where} has no {name}, which must be a text")
    metadata = document["metadata"]
    if not isinstance(metadata.get("name"), str):
        raise ConfigurationError(f"{where} ({document['kind']}) has no metadata.name")
    if metadata.get("namespace"):
        raise ConfigurationError(
            f"{where} ({document['kind']}/{metadata['name']}) sets metadata.namespace; leave it out, each run of a "
            "story has a namespace of its own"
        )
    return Manifest(file, document)
