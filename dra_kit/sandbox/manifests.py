"""Manifests: YAML files with Kubernetes objects, as ``kubectl apply -f`` takes them."""

from __future__ import annotations

from collections.abc import Mapping
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
    """The objects of a YAML file, in its order.

    Raises:
        ConfigurationError: naming the file, the document and what is wrong with it.
    """
    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigurationError(f"manifest {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"manifest {path} is no YAML: {' '.join(str(error).split())}") from None
    return tuple(
        _manifest(path, f"manifest {path}, document {number}", document)
        for number, document in enumerate(documents, start=1)
        if document is not None
    )


def _manifest(path: Path, where: str, document: Any) -> Manifest:
    if not isinstance(document, dict):
        raise ConfigurationError(f"{where} is no object; it must have apiVersion, kind and metadata")
    resource = KINDS.get(str(document.get("kind")))
    if resource is None or document.get("apiVersion") != resource.api_version:
        known = ", ".join(f"{item.kind} ({item.api_version})" for item in KINDS.values())
        raise ConfigurationError(
            f"{where} is of kind {document.get('kind')} ({document.get('apiVersion')}); use one of {known}"
        )
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise ConfigurationError(f"{where} ({resource.kind}) has no metadata.name")
    if metadata.get("namespace"):
        raise ConfigurationError(
            f"{where} ({resource.kind}/{metadata['name']}) sets metadata.namespace; leave it out, each run of a "
            "story has a namespace of its own"
        )
    return Manifest(path.name, resource, document)
