"""Kubernetes objects in files, each with the words that name its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dra_kit.errors import ConfigurationError
from dra_kit.manifests.files import read_file
from dra_kit.manifests.limits import MANIFESTS, Limits
from dra_kit.manifests.text import decoded, documents, items
from dra_kit.manifests.unreadable import Unreadable


def values(content: bytes | str, name: str, limits: Limits = MANIFESTS) -> list[Any]:
    """The documents of YAML or JSON, as kubectl reads them.

    Args:
        content: what is to be read.
        name: of the file, for errors.
        limits: of all documents together.

    Raises:
        ConfigurationError: naming the file, the place and what is wrong there.
    """
    text = ""
    try:
        text = decoded(content) if isinstance(content, bytes) else content
        return [document.value for document in documents(text, limits, places=False)]
    except Unreadable as error:
        raise ConfigurationError(f"{name} cannot be read: {error.within(text)}") from None


def file_values(path: Path, limits: Limits = MANIFESTS) -> list[Any]:
    """The documents of a file; errors are those of ``values`` and of ``read_file``."""
    return values(read_file(path, limits), str(path), limits)


def named_objects(found: Iterable[Any], name: str, *, chosen: bool = True) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of documents, those of lists one by one.

    Args:
        found: values of documents; those that are empty are passed over.
        name: of the file.
        chosen: whether it was named, and not just found in a folder: what is in it must be Kubernetes objects then.

    Raises:
        ConfigurationError: naming the document that is none.
    """
    for number, value in enumerate(found, start=1):
        if value is None or (not chosen and not is_meant(value)):
            continue
        for path, body in items(value):
            where = f"{name}, document {number}{', ' if path else ''}{path}"
            if not isinstance(body, dict):
                raise ConfigurationError(f"{where} is no object; it must have apiVersion, kind and metadata")
            for field in ("apiVersion", "kind"):
                if not isinstance(body.get(field), str) or not body[field]:
                    raise ConfigurationError(f"{where} has no {field}, which must be a text")
            if not isinstance(body.get("metadata"), dict):
                raise ConfigurationError(f"{where} ({body['kind']}) has no metadata.name")
            yield where, body


def is_meant(body: Any) -> bool:
    """Whether a document that was found in a folder is meant as a Kubernetes object, be it right or wrong."""
    if not isinstance(body, Mapping):
        return False
    # Chart.yaml and its like have an apiVersion, too
    return {"apiVersion", "kind"} <= body.keys() or ("metadata" in body and bool({"apiVersion", "kind"} & body.keys()))
