"""Manifests: YAML files with Kubernetes objects, as ``kubectl apply -f`` takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dra_kit.errors import ConfigurationError
from dra_kit.kube.resources import (
    DEVICE_CLASSES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Resource,
)

KINDS = {resource.kind: resource for resource in (PODS, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES, DEVICE_CLASSES)}
"""The kinds that a story may use, by kind."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object of a file.

    Attributes:
        file: the file's name.
        resource: what it is.
        body: the object; without namespace when it is namespaced.
    """

    file: str
    resource: Resource
    body: Mapping[str, Any]

    @property
    def name(self) -> str:
        """``metadata.name``."""
        return str(self.body["metadata"]["name"])

    def __str__(self) -> str:
        return f"{self.resource.kind}/{self.name}"


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


def read_documents(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects of a YAML or JSON file, of any kind, each with the words that name its place.

    Raises:
        ConfigurationError: naming the file, the document and what is wrong with it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"manifest {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"manifest {path} is no YAML: {error}") from None
    return _documents(text, str(path))


def _documents(source: str | Iterable[Any], name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        documents = list(yaml.safe_load_all(source) if isinstance(source, str) else source)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"manifest {name} is no YAML: {' '.join(str(error).split())}") from None
    for number, document in enumerate(documents, start=1):
        where = f"manifest {name}, document {number}"
        if document is None:
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
    resource = KINDS.get(str(document.get("kind")))
    if resource is None or document.get("apiVersion") != resource.api_version:
        known = ", ".join(f"{item.kind} ({item.api_version})" for item in KINDS.values())
        raise ConfigurationError(
            f"{where} is of kind {document.get('kind')} ({document.get('apiVersion')}); use one of {known}"
        )
    metadata = document["metadata"]
    if not isinstance(metadata.get("name"), str):
        raise ConfigurationError(f"{where} ({resource.kind}) has no metadata.name")
    if metadata.get("namespace"):
        raise ConfigurationError(
            f"{where} ({resource.kind}/{metadata['name']}) sets metadata.namespace; leave it out, each run of a "
            "story has a namespace of its own"
        )
    return Manifest(file, resource, document)
