"""Objects from files: manifests as users write them, and what ``dra-kit snapshot`` or kubectl saved."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dra_kit.errors import ConfigurationError
from dra_kit.explain.cluster.objects import KINDS, Objects
from dra_kit.kubernetes.manifests.archive import ARCHIVES, archive_members
from dra_kit.kubernetes.manifests.documents import SourceFile, read_objects, source_files
from dra_kit.kubernetes.manifests.files import SNAPSHOTS, SUFFIXES, files_in, read_file, read_folder
from dra_kit.kubernetes.release import FeatureGates
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.conversion import V1, to_v1
from dra_kit.kubernetes.resource.defaulting import set_defaults
from dra_kit.kubernetes.resource.new_object import KINDS as KNOWN_KINDS
from dra_kit.kubernetes.resource.new_object import NO_TIME, ManifestKind, complete_new_object
from dra_kit.kubernetes.resource.schema.decode import StrictDecoding, TypeMismatch, decode
from dra_kit.kubernetes.resource.slice_reader import LazySlice, SliceReader
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.snapshot.acceptance import as_stored, refuse_invalid
from dra_kit.snapshot.files import INDEX_FILE, SnapshotIndex


def read_manifests(paths: Iterable[Path], namespace: str, *, alpha: bool) -> dict[str, list[ObjectView]]:
    """Return manifests of any of the kinds that explanations look at, as an API server would store them.

    Args:
        paths: YAML or JSON files, or folders whose files of these kinds are taken; ``-`` is standard input.
        namespace: of objects that name none.
        alpha: the alpha features of resource.k8s.io are on.

    Raises:
        ConfigurationError: naming the file, the document and what is wrong with it.
        Invalid: an API server would refuse an object; with the fields.
    """
    found: dict[str, list[ObjectView]] = {}
    for path in paths:
        for file in source_files(path):
            for where, document in read_objects(file):
                kind = document["kind"]
                if kind not in KINDS:
                    continue  # other objects of an application
                found.setdefault(kind, []).append(_stored(document, where, namespace, alpha=alpha))
    return found


def load(path: Path) -> Objects:
    """Read a snapshot, or a file or directory with objects that somebody saved with kubectl.

    Args:
        path: directory, archive, or a single file.

    Raises:
        ConfigurationError: it is none, or holds no ResourceSlices or other objects.
    """
    documents: dict[str, list[ObjectView]] = {}
    index = SnapshotIndex()
    for name, content in _contents(path):
        if Path(name).name == INDEX_FILE:
            index = _index(f"{path}: {name}", content)
            continue
        named = str(path) if name == path.name else f"{path}: {name}"
        for where, document in read_objects(SourceFile.of(content, named), SNAPSHOTS):
            kind = document["kind"]
            if kind in KINDS:
                served = _kind(document, where)
                stored = _converted(as_stored(served, document, where), served)
                documents.setdefault(kind, []).append(_defaulted(stored, served))
    if not documents:
        raise ConfigurationError(f"{path} holds no objects that a claim could be explained with: {', '.join(KINDS)}")
    return Objects(documents, index.version, index.alpha, index.gaps)


def load_devices(path: Path) -> tuple[list[LazySlice], dict[str, v1.DeviceClass]]:
    """Return the slices and classes of a snapshot or of saved objects; the classes by name.

    Args:
        path: as for :func:`load`.

    Raises:
        ConfigurationError: as for :func:`load`, or an object does not have the shape of the API.
    """
    documents = load(path).documents
    try:
        slices = list(map(SliceReader().read, documents.get("ResourceSlice", ())))
        classes = [v1.DeviceClass.model_validate(one) for one in documents.get("DeviceClass", ())]
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise ConfigurationError(f"{path} is none that an API server gave: {where}: {problem['msg']}") from None
    return slices, {one.metadata.name: one for one in classes}


def _index(name: str, content: bytes) -> SnapshotIndex:
    try:
        return SnapshotIndex.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        cause = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
        raise ConfigurationError(f"{name} is damaged: {cause}; run dra-kit snapshot again") from None


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        for file, content in read_folder(files_in(path, recursive=True, hidden=True), path, SNAPSHOTS):
            yield str(file.relative_to(path)), content
    elif path.name.endswith(ARCHIVES):
        for name, content in archive_members(path):
            if name.endswith(tuple(SUFFIXES)):
                yield name, content
    else:
        yield path.name, read_file(path, SNAPSHOTS)


def _stored(document: dict[str, Any], where: str, namespace: str, *, alpha: bool) -> ObjectView:
    """Return a manifest as the API server would store it: known fields only, with defaults, in v1."""
    kind = _kind(document, where)
    api_version = str(document["apiVersion"])
    strictness = StrictDecoding()
    try:
        decoded = decode(document, kind.types[api_version], strictness)
    except TypeMismatch as error:
        raise ConfigurationError(f"{where} ({kind.name}): {error}") from None
    if strictness.problems:
        raise ConfigurationError(f"{where} ({kind.name}): {', '.join(strictness.problems)}")
    stored = complete_new_object(decoded, kind, namespace=namespace)
    refuse_invalid(kind, stored, FeatureGates.alpha() if alpha else FeatureGates.default(), api_version, where)
    metadata = stored["metadata"]
    if not metadata.get("name"):
        stored["metadata"] = {**metadata, "name": metadata["generateName"].rstrip("-")}
    return {**stored, "apiVersion": V1} if kind.model is not None else stored


def _converted(document: dict[str, Any], kind: ManifestKind) -> dict[str, Any]:
    if kind.model is None:
        return document
    return {**to_v1(document, kind.name, str(document["apiVersion"])), "apiVersion": V1}


def _defaulted(document: dict[str, Any], kind: ManifestKind) -> dict[str, Any]:
    """Return a saved object with the defaults of the API, which one that was not saved from a cluster may lack."""
    if kind.model is not None:
        # what does not have the shape of the API is reported when it becomes a model
        with contextlib.suppress(AttributeError, KeyError, TypeError):
            set_defaults(document, kind.name, V1, NO_TIME)
    return document


def _kind(document: Mapping[str, Any], where: str) -> ManifestKind:
    api_version = str(document.get("apiVersion"))
    kind = KNOWN_KINDS.get(str(document["kind"]))
    if kind is None or api_version not in kind.types:
        raise ConfigurationError(f"{where}: {document['kind']} of {api_version} is no API of Kubernetes 1.34 to 1.37")
    return kind
