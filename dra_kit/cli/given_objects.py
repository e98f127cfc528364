"""Objects from files: manifests as users write them, and what ``dra-kit snapshot`` saved."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel, ValidationError

from dra_kit.apiserver.kinds.builtin import KINDS as SERVED
from dra_kit.apiserver.kinds.kind import Kind
from dra_kit.apiserver.kinds.registry import Registry
from dra_kit.apiserver.kinds.versioned import GROUP
from dra_kit.cli.acceptance import as_stored, context_of, refuse_invalid
from dra_kit.errors import ConfigurationError
from dra_kit.explain.cluster import Document, Gap
from dra_kit.explain.snapshot import KINDS, Objects, reduced
from dra_kit.lint.manifests import is_meant
from dra_kit.resource.conversion import V1, to_v1
from dra_kit.resource.schema.decode import Strictness, decode
from dra_kit.resource.schema.defaults import apply_defaults
from dra_kit.resource.schema.scalars import WrongType
from dra_kit.values.yaml_problem import yaml_problem

_INDEX: Final = "snapshot.json"
_FILES: Final = {kind: f"{kind.lower()}{'es' if kind.endswith('s') else 's'}.json" for kind in KINDS}
_ARCHIVES: Final = (".tar.gz", ".tgz")
_OTHER_FILES: Final = frozenset(
    {".7z", ".bz2", ".gz", ".json", ".rar", ".tar", ".tbz", ".txz", ".xz", ".yaml", ".yml", ".zip", ".zst"}
)
_SUFFIXES: Final = (".json", ".yaml", ".yml")
_SERVED: Final = Registry(kind for kind in SERVED if kind.kind in KINDS)
_NEWEST: Final = "1.37"
_WITH_STATUS_OF_OTHERS: Final = frozenset({"Pod", "ResourceClaim"})


def read_manifests(paths: Iterable[Path], namespace: str, *, alpha: bool) -> dict[str, list[Document]]:
    """Manifests of any of the kinds that explanations look at, as an API server would store them.

    Args:
        paths: YAML or JSON files, or folders whose files of these kinds are taken.
        namespace: of objects that name none.
        alpha: the alpha features of resource.k8s.io are on.

    Raises:
        ConfigurationError: naming the file, the document and what is wrong with it.
        Invalid: an API server would refuse an object; with the fields.
    """
    found: dict[str, list[Document]] = {}
    for path in paths:
        folder = path.is_dir()
        files = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES) if folder else [path]
        for file in files:
            for where, document in _parsed(str(file), _bytes(file), chosen=not folder):
                kind = document.get("kind")
                if kind not in KINDS:
                    continue  # other objects of an application
                found.setdefault(kind, []).append(_stored(document, where, namespace, alpha=alpha))
    return found


def save(objects: Objects, path: Path) -> int:
    """Writes a snapshot.

    Args:
        objects: what to save.
        path: a new or empty directory, one that holds a snapshot, which is replaced, or an archive by the name of
            ``….tar.gz``.

    Returns:
        How many objects that are.

    Raises:
        ConfigurationError: it cannot be written there.
    """
    index = _Index(version=objects.version, alpha=objects.alpha, gaps=objects.gaps)
    files = {_INDEX: index.model_dump_json(indent=2)}
    count = 0
    for kind, documents in objects.documents.items():
        items = [reduced(kind, document) for document in documents]
        count += len(items)
        files[_FILES[kind]] = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1)
    try:
        _write(path, files)
    except OSError as error:
        raise ConfigurationError(f"snapshot {path}: {error.strerror or error}") from None
    return count


def check_destination(path: Path) -> None:
    """Checks that a snapshot can be written under a name, before anything is read for it.

    Args:
        path: as for :func:`save`.

    Raises:
        ConfigurationError: it has the name of a file of another kind, or is a directory that holds something else.
    """
    if path.is_dir():
        present = {entry.name for entry in path.iterdir()}
        others = sorted(present - {_INDEX, *_FILES.values()}) if _INDEX in present else sorted(present)
        if others:
            raise ConfigurationError(
                f"snapshot {path}: the folder holds other files, which would be taken for the cluster's: {others[0]}"
                f"{', …' if len(others) > 1 else ''}; name a new folder"
            )
    if not path.is_dir() and path.suffix in _OTHER_FILES and not path.name.endswith(_ARCHIVES):
        raise ConfigurationError(
            f"snapshot {path}: {path.suffix} is no kind of snapshot; name a folder, or an archive that ends in "
            f"{' or '.join(_ARCHIVES)}"
        )


def load(path: Path) -> Objects:
    """Reads a snapshot, or a file or directory with objects that somebody saved with kubectl.

    Args:
        path: directory, archive, or a single file.

    Raises:
        ConfigurationError: it is none, or holds no ResourceSlices or other objects.
    """
    documents: dict[str, list[Document]] = {}
    index = _Index()
    for name, content in _contents(path):
        if Path(name).name == _INDEX:
            index = _index(f"{path}: {name}", content)
            continue
        for where, document in _parsed(str(path) if name == path.name else f"{path}: {name}", content):
            kind = document.get("kind")
            if kind in KINDS:
                served = _kind(document, where)
                documents.setdefault(kind, []).append(_converted(as_stored(served, document, where), served))
    if not documents:
        raise ConfigurationError(f"{path} holds no objects that a claim could be explained with: {', '.join(KINDS)}")
    return Objects(documents, index.version, index.alpha, index.gaps)


class _Index(BaseModel):
    """What a snapshot says of itself.

    Attributes:
        version: the Kubernetes release.
        alpha: the alpha features of resource.k8s.io are on.
        gaps: what could not be read.
    """

    version: str = _NEWEST
    alpha: bool = False
    gaps: tuple[Gap, ...] = ()


def _index(name: str, content: bytes) -> _Index:
    try:
        return _Index.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        cause = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
        raise ConfigurationError(f"{name} is damaged: {cause}; run dra-kit snapshot again") from None


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
    for name in (_INDEX, *_FILES.values()):
        (path / name).unlink(missing_ok=True)
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


def _parsed(name: str, content: bytes, *, chosen: bool = True) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file, those of lists one by one, each with the words that name its place.

    Args:
        name: of the file.
        content: what is in it.
        chosen: whether it was named, and not just found in a folder: what is in it must be Kubernetes objects then.
    """
    try:
        documents = [json.loads(content)] if name.endswith(".json") else list(yaml.load_all(content, _LOADER))
    except ValueError as error:
        raise ConfigurationError(f"{name} is neither YAML nor JSON: {' '.join(str(error).split())}") from None
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{name} is neither YAML nor JSON: {yaml_problem(error)}") from None
    for number, document in enumerate(documents, start=1):
        if document is not None and (chosen or is_meant(document)):
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


def _stored(document: dict[str, Any], where: str, namespace: str, *, alpha: bool) -> Document:
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
    context = context_of(api_version, alpha=alpha)
    kind.strategy.default(decoded, context)
    metadata = decoded.setdefault("metadata", {})
    # it is as if it were created anew, even if it was copied from one that is there
    for assigned in ("uid", "creationTimestamp", "deletionTimestamp"):
        metadata.pop(assigned, None)
    if kind.kind in _WITH_STATUS_OF_OTHERS:
        decoded.pop("status", None)
    if kind.namespaced:
        metadata["namespace"] = metadata.get("namespace") or namespace
    stored = _converted({**decoded, "apiVersion": api_version, "kind": kind.kind}, kind)
    refuse_invalid(kind, stored, context, where)
    if not metadata.get("name"):
        stored["metadata"] = {**metadata, "name": metadata["generateName"].rstrip("-")}
    return stored


def _converted(document: dict[str, Any], kind: Kind) -> dict[str, Any]:
    if kind.group != GROUP:
        return document
    return {**to_v1(document, kind.kind, str(document["apiVersion"])), "apiVersion": V1}


def _kind(document: Mapping[str, Any], where: str) -> Kind:
    api_version = str(document.get("apiVersion"))
    kind = _SERVED.by_kind(api_version, str(document["kind"]))
    if kind is None or api_version.rpartition("/")[2] not in kind.types:
        raise ConfigurationError(f"{where}: {document['kind']} of {api_version} is no API of Kubernetes 1.34 to 1.37")
    return kind
