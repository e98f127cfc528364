"""Objects from files: manifests as users write them, and what ``dra-kit snapshot`` saved."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import yaml

from dra_kit.apiserver.kinds.builtin import KINDS as SERVED
from dra_kit.apiserver.kinds.kind import Kind
from dra_kit.apiserver.kinds.registry import Registry
from dra_kit.apiserver.kinds.strategy import Context
from dra_kit.apiserver.kinds.versioned import GROUP
from dra_kit.apiserver.schema.decode import Strictness, decode
from dra_kit.apiserver.schema.defaults import apply_defaults
from dra_kit.apiserver.schema.scalars import WrongType
from dra_kit.errors import ConfigurationError
from dra_kit.explain.cluster import Document, Gap
from dra_kit.explain.snapshot import KINDS, Objects, reduced
from dra_kit.resource.conversion import V1, to_v1
from dra_kit.resource.gates import FeatureGates

_INDEX: Final = "snapshot.json"
_ARCHIVES: Final = (".tar.gz", ".tgz")
_SUFFIXES: Final = (".json", ".yaml", ".yml")
_SERVED: Final = Registry(kind for kind in SERVED if kind.kind in KINDS)
_NEWEST: Final = "1.37"
_NO_TIME: Final = "1970-01-01T00:00:00Z"  # when a taint was added decides nothing here


def read_manifests(paths: Iterable[Path], namespace: str) -> dict[str, list[Document]]:
    """Manifests of any of the kinds that explanations look at, as an API server would store them.

    Args:
        paths: YAML or JSON files.
        namespace: of objects that name none.

    Raises:
        ConfigurationError: naming the file, the document and what is wrong with it.
    """
    found: dict[str, list[Document]] = {}
    for path in paths:
        for where, document in _parsed(str(path), _bytes(path)):
            kind = document.get("kind")
            if kind not in KINDS:
                continue  # other objects of an application
            found.setdefault(kind, []).append(_stored(document, where, namespace))
    return found


def save(objects: Objects, path: Path) -> int:
    """Writes a snapshot.

    Args:
        objects: what to save.
        path: a new or empty directory, or an archive by the name of ``….tar.gz``.

    Returns:
        How many objects that are.

    Raises:
        ConfigurationError: it cannot be written there.
    """
    index = {
        "version": objects.version,
        "alpha": objects.alpha,
        "gaps": [asdict(gap) for gap in objects.gaps],
    }
    files = {_INDEX: json.dumps(index, indent=2)}
    count = 0
    for kind, documents in objects.documents.items():
        items = [reduced(kind, document) for document in documents]
        count += len(items)
        files[f"{kind.lower()}{'es' if kind.endswith('s') else 's'}.json"] = json.dumps(
            {"apiVersion": "v1", "kind": "List", "items": items}, indent=1
        )
    try:
        _write(path, files)
    except OSError as error:
        raise ConfigurationError(f"snapshot {path}: {error.strerror or error}") from None
    return count


def load(path: Path) -> Objects:
    """Reads a snapshot, or a file or directory with objects that somebody saved with kubectl.

    Args:
        path: directory, archive, or a single file.

    Raises:
        ConfigurationError: it is none, or holds no ResourceSlices or other objects.
    """
    documents: dict[str, list[Document]] = {}
    index: Mapping[str, Any] = {}
    for name, content in _contents(path):
        if Path(name).name == _INDEX:
            index = json.loads(content)
            continue
        for where, document in _parsed(f"{path}: {name}", content):
            kind = document.get("kind")
            if kind in KINDS:
                documents.setdefault(kind, []).append(_converted(document, where))
    if not documents:
        raise ConfigurationError(f"{path} holds no objects that a claim could be explained with: {', '.join(KINDS)}")
    gaps = tuple(Gap(**gap) for gap in index.get("gaps", ()))
    return Objects(documents, str(index.get("version") or _NEWEST), bool(index.get("alpha")), gaps)


def _write(path: Path, files: Mapping[str, str]) -> None:
    if path.name.endswith(_ARCHIVES):
        with tarfile.open(path, "w:gz") as archive:
            for name, text in files.items():
                content = text.encode()
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        return
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name).write_text(text, encoding="utf-8")


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.suffix in _SUFFIXES:
                yield str(file.relative_to(path)), _bytes(file)
    elif path.name.endswith(_ARCHIVES):
        try:
            with tarfile.open(path) as archive:
                for entry in archive:
                    content = archive.extractfile(entry)
                    if content is not None and entry.name.endswith(_SUFFIXES):
                        yield entry.name, content.read()
        except (OSError, tarfile.TarError, EOFError, gzip.BadGzipFile) as error:
            raise ConfigurationError(f"{path} is no archive of dra-kit snapshot: {error}") from None
    else:
        yield path.name, _bytes(path)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None


def _parsed(name: str, content: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file, those of lists one by one, each with the words that name its place."""
    try:
        documents = [json.loads(content)] if name.endswith(".json") else list(yaml.load_all(content, _LOADER))
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{name} is neither YAML nor JSON: {' '.join(str(error).split())}") from None
    for number, document in enumerate(documents, start=1):
        if document is not None:
            yield from _objects(document, f"{name}, document {number}")


_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _objects(document: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise ConfigurationError(f"{where} is no object; it must have apiVersion, kind and metadata")
    if isinstance(document.get("items"), list):
        kind = document["kind"].removesuffix("List")
        for number, item in enumerate(document["items"], start=1):
            # lists of one kind leave the kind of their items out
            typed = {"apiVersion": document.get("apiVersion"), "kind": kind, **item} if kind else item
            yield from _objects(typed, f"{where}, item {number}")
        return
    if not isinstance(document.get("metadata"), dict):
        raise ConfigurationError(f"{where} ({document['kind']}) has no metadata")
    yield where, document


def _stored(document: dict[str, Any], where: str, namespace: str) -> Document:
    """A manifest as the API server would store it: known fields only, with defaults, in v1."""
    kind = _kind(document, where)
    api_version = str(document["apiVersion"])
    type_name = kind.type_of(api_version)
    strictness = Strictness()
    try:
        decoded = decode(document, type_name, strictness)
    except WrongType as error:
        raise ConfigurationError(f"{where} ({kind.kind}): {error}") from None
    if strictness.problems:
        raise ConfigurationError(f"{where} ({kind.kind}): {', '.join(strictness.problems)}")
    apply_defaults(decoded, type_name)
    context = Context(FeatureGates.alpha(), api_version, _NO_TIME, "", lambda *_: None, lambda _: ())
    kind.strategy.default(decoded, context)
    metadata = decoded.setdefault("metadata", {})
    metadata["name"] = metadata.get("name") or metadata.get("generateName", "").rstrip("-")
    if kind.namespaced:
        metadata["namespace"] = metadata.get("namespace") or namespace
    return _converted({**decoded, "apiVersion": api_version, "kind": kind.kind}, where)


def _converted(document: dict[str, Any], where: str) -> Document:
    kind = _kind(document, where)
    if kind.group != GROUP:
        return document
    return {**to_v1(document, kind.kind, str(document["apiVersion"])), "apiVersion": V1}


def _kind(document: Mapping[str, Any], where: str) -> Kind:
    api_version = str(document.get("apiVersion"))
    kind = _SERVED.by_kind(api_version, str(document["kind"]))
    if kind is None or api_version.rpartition("/")[2] not in kind.types:
        raise ConfigurationError(f"{where}: {document['kind']} of {api_version} is no API of Kubernetes 1.34 to 1.37")
    return kind
