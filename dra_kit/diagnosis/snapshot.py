"""Write and read snapshots of a cluster; read manifests and saved objects in place of one.

Archives are read within limits.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tarfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final, Self

from msgspec import Struct
from pydantic import BaseModel, ValidationError
from typing_extensions import override

from dra_kit.diagnosis.explain.cluster import COPY_KINDS, KINDS, ClusterDocuments, MissingRight, first_problem, reduced
from dra_kit.diagnosis.explain.subjects import DroppedFields, Manifests, Workload, qualified_names
from dra_kit.diagnosis.lint.objects import missing_fields, unserved
from dra_kit.errors import ConfigurationError, Invalid
from dra_kit.files import replace_private
from dra_kit.kubernetes.manifests.documents import SourceFile, is_recording, read_objects, source_files
from dra_kit.kubernetes.manifests.files import (
    SNAPSHOTS,
    SUFFIXES,
    files_in,
    open_file,
    read_file,
    read_folder,
    size_text,
)
from dra_kit.kubernetes.manifests.pod_templates import PodTemplate, pod_templates
from dra_kit.kubernetes.release import DEFAULT, NEWEST, OLDEST, KubernetesVersion, Release
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.conversion import V1, errors_in_version, to_v1
from dra_kit.kubernetes.resource.matching import LabelSelector, parse_label_selector
from dra_kit.kubernetes.resource.new_object import KINDS as KNOWN_KINDS
from dra_kit.kubernetes.resource.new_object import (
    NO_TIME,
    ManifestKind,
    check_new_object,
    complete_new_object,
    set_defaults,
)
from dra_kit.kubernetes.resource.objects import object_key
from dra_kit.kubernetes.resource.schema.types import (
    LIST,
    MAP,
    StrictDecoding,
    TypeMismatch,
    decode,
    item_type,
    struct,
    struct_of_all,
    zero,
)
from dra_kit.kubernetes.resource.slice_reader import LazySlice, SliceReader
from dra_kit.kubernetes.values.json import Object, ObjectView, value_at


def read_manifests(
    paths: Iterable[Path], namespace: str, *, release: Release, slices: Iterable[ObjectView] = ()
) -> Manifests:
    """Return manifests of the kinds that explanations read, as an API server would store them, and their pods.

    Pods are those of workloads, too: of any object that has a pod template.

    Args:
        paths: YAML or JSON files, or folders with such files; ``-`` is standard input.
        namespace: the namespace of objects without one.
        release: of the API server.
        slices: of the cluster; the errors name their attributes.

    Raises:
        ConfigurationError: a document cannot be read; names file, document and problem.
        Invalid: an API server would reject an object; lists the fields.
    """
    found: dict[str, list[ObjectView]] = {}
    workloads: list[Workload] = []
    dropped: list[DroppedFields] = []
    for path in paths:
        for file in source_files(path):
            for where, document in read_objects(file):
                kind = document["kind"]
                if kind not in KINDS:
                    workloads += _workloads(document, where, namespace, release=release)
                    continue
                stored, lost = _stored(document, where, namespace, release=release, slices=slices)
                if lost:
                    dropped.append(DroppedFields(where, f"{kind} {stored['metadata']['name']}", lost))
                found.setdefault(kind, []).append(stored)
                if kind == "Pod":
                    workloads.append(Workload(kind, *object_key(stored), stored))
    return Manifests(found, workloads, dropped)


def _workloads(document: dict[str, Any], where: str, namespace: str, *, release: Release) -> Iterator[Workload]:
    """Yield the pods that an object creates.

    Those of an object whose controller is not known are one for each template that asks for devices.
    """
    kind, known = document["kind"], KNOWN_KINDS.get(document["kind"])
    is_known = known is not None and bool(known.pod) and document["apiVersion"] in known.types
    is_whole = is_known and known is not None and not known.part  # its type is known, not only that of the template
    whole = _stored(document, where, namespace, release=release)[0] if is_whole else document
    spec: ObjectView = whole["spec"] if isinstance(whole.get("spec"), dict) else {}
    metadata = document["metadata"]
    name = str(metadata.get("name") or metadata.get("generateName") or "pod").rstrip("-")
    namespace = str(metadata.get("namespace") or namespace)
    for number, template in enumerate(pod_templates(document)):
        if not is_known and not _asks_for_devices(template.spec):
            continue
        claimed = _claimed_volumes(spec) if is_whole else []
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{name}-0" if is_known else f"{name}-{number}-0",
                "namespace": namespace,
                "labels": template.metadata.get("labels") or {},
            },
            "spec": {
                **template.spec,
                **({} if is_known else _completed(template)),
                **({"volumes": _with_volumes(template.spec.get("volumes"), claimed)} if claimed else {}),
            },
        }
        yield Workload(
            kind,
            namespace,
            name,
            _stored(pod, where, namespace, release=release, strict=is_known)[0],
            "" if is_known else template.path,
            _replicas(kind, spec) if is_known else 1,
            is_known and kind == "DaemonSet",
            not template.is_embedded,
            _selector(kind, name, spec) if is_known else None,
        )


def _selector(kind: str, name: str, spec: ObjectView) -> LabelSelector | None:
    """Return what selects the pods of a workload of Kubernetes; None if it does not say."""
    match kind:
        case "Job":  # the API server sets the selector, with the UID of the Job
            selector: Any = {"matchLabels": {"batch.kubernetes.io/job-name": name}}
        case "ReplicationController":  # older than label selectors
            labels = spec.get("selector")
            are_labels = isinstance(labels, dict) and all(isinstance(value, str) for value in labels.values())
            selector = {"matchLabels": labels} if are_labels else None
        case "CronJob" | "PodTemplate":
            selector = None
        case _:
            selector = spec.get("selector")
    return parse_label_selector(selector) or None  # an empty one would select all pods of the namespace


def _completed(template: PodTemplate) -> Object:
    """Return the containers of a pod of an unknown controller, with the names and images that it may add."""
    found = {field: template.spec.get(field) for field in ("containers", "initContainers")}
    lists = {field: containers for field, containers in found.items() if isinstance(containers, list)}
    completed = {
        field: [
            {"name": f"{field.lower()}-{number}", "image": template.path, **each} if isinstance(each, dict) else each
            for number, each in enumerate(containers)
        ]
        for field, containers in lists.items()
    }
    return completed if found["containers"] else {"containers": [{"name": "main", "image": template.path}], **completed}


def _asks_for_devices(spec: ObjectView) -> bool:
    """Return whether a pod has claims or extended resources."""
    if spec.get("resourceClaims"):
        return True
    resources = [container.get("resources") for container in spec.get("containers") or ()]
    amounts = [each.get(field) for each in resources if isinstance(each, dict) for field in ("requests", "limits")]
    return any("/" in name for each in amounts if isinstance(each, dict) for name in each)


def _claimed_volumes(spec: ObjectView) -> list[Object]:
    """Return the volumes that the controller of a StatefulSet adds to its pods."""
    templates = spec.get("volumeClaimTemplates") or ()
    names = [name for template in templates if (name := (template.get("metadata") or {}).get("name"))]
    return [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]


def _with_volumes(volumes: Any, claimed: Sequence[Object]) -> list[Any]:
    """Return the volumes of a pod; those that its StatefulSet adds replace others of the same name."""
    names = {each["name"] for each in claimed}
    others = volumes if isinstance(volumes, list) else []
    return [*(each for each in others if not isinstance(each, dict) or each.get("name") not in names), *claimed]


def _replicas(kind: str, spec: ObjectView) -> int:
    """Return how many pods a workload of Kubernetes creates at first, at least one."""
    if kind not in {"CronJob", "Job"}:
        return max(_number(spec, "replicas"), 1)
    job = value_at(spec, ("jobTemplate", "spec")) if kind == "CronJob" else spec
    parallelism = _number(job, "parallelism")
    return max(min(parallelism, _number(job, "completions", parallelism)), 1)


def _number(spec: Any, field: str, default: int = 1) -> int:
    value = spec.get(field) if isinstance(spec, dict) else None
    return value if isinstance(value, int) else default


def load(path: Path) -> ClusterDocuments:
    """Read a snapshot, or a file or directory with objects saved with kubectl.

    Args:
        path: a directory, an archive, or a single file.

    Raises:
        ConfigurationError: the path is not a snapshot, or contains no ResourceSlices or other objects.
    """
    return load_cluster(path).documents


class SavedCluster(Struct, frozen=True):
    """Everything in a snapshot, a support bundle, or a file or directory with objects saved with kubectl.

    Attributes:
        documents: the objects that explanations read.
        others: objects of other kinds, unchanged, each with its place.
        is_bundle: it is a support bundle: of the pods it has only those of a driver, and secrets are removed.
    """

    documents: ClusterDocuments
    others: Sequence[tuple[str, Object]] = ()
    is_bundle: bool = False


def load_cluster(path: Path) -> SavedCluster:
    """Read what :func:`load` reads, and objects of other kinds.

    Raises:
        ConfigurationError: as for :func:`load`.
    """
    saved: dict[str, list[tuple[str, Object]]] = {}
    others: list[tuple[str, Object]] = []
    index, complete, bundle = SnapshotIndex(), False, ""
    for name, content in _contents(path):
        base = PurePosixPath(name).name
        if base == INDEX_FILE:
            index, complete = _index(f"{path}: {name}", content), True
            continue
        if base == _BUNDLE_INDEX and _is_bundle_index(content):
            bundle = f"{PurePosixPath(name).parent / _BUNDLE_OBJECTS}"
            continue
        if bundle and str(PurePosixPath(name).parent) != bundle:
            continue
        named = str(path) if name == path.name else f"{path}: {name}"
        text = b'{"apiVersion": "v1", "kind": "List", "items": ' + content + b"}" if bundle else content
        for where, document in read_objects(SourceFile.of(text, named), SNAPSHOTS):
            if document["kind"] in KINDS:
                saved.setdefault(document["kind"], []).append((where, document))
            else:
                others.append((where, document))
    if not saved:
        wanted = f"it has none of {', '.join(KINDS)}; use the output of 'dra-kit snapshot' or kubectl get -o yaml"
        raise ConfigurationError(f"{path} is not a saved cluster: {wanted}")
    version = _version_of(index)  # it may come after the objects
    documents: dict[str, list[ObjectView]] = {}
    for kind, found_objects in saved.items():
        found_objects.reverse()  # each one is dropped once it is read: a large snapshot is not in memory twice
        documents[kind] = [_loaded(*found_objects.pop(), version) for _ in range(len(found_objects))]
    read = {kind: documents.get(kind, []) for kind in KINDS} if complete else documents
    found = ClusterDocuments(read, index.version, index.alpha, index.gaps, complete=complete)
    return SavedCluster(found, others, bool(bundle))


def _version_of(index: SnapshotIndex) -> KubernetesVersion:
    """Return the release of a snapshot; the oldest for one that is not supported, which ``release`` reports."""
    try:
        return KubernetesVersion.parse(index.version)
    except ValueError:
        return OLDEST


_BUNDLE_INDEX: Final = "index.json"
_BUNDLE_OBJECTS: Final = "objects"


def _is_bundle_index(content: bytes) -> bool:
    """Return whether a file is the index of a support bundle, which comes before its objects."""
    try:
        index = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(index, dict) and {"release", "files", "missing"} <= index.keys()


def load_devices(path: Path) -> tuple[list[LazySlice], dict[str, v1.DeviceClass]]:
    """Return the slices, and the classes by name, of a snapshot or of saved objects.

    Raises:
        ConfigurationError: as for :func:`load`, or an object does not have the shape of the API.
    """
    cluster = load(path)
    documents, version = cluster.documents, cluster.release.version
    try:
        slices = list(map(SliceReader(version).read, documents.get("ResourceSlice", ())))
        classes = [v1.DeviceClass.model_validate(one, context=version) for one in documents.get("DeviceClass", ())]
    except ValidationError as error:
        raise ConfigurationError(f"{path} was not saved from an API server: {first_problem(error)}") from None
    return slices, {one.metadata.name: one for one in classes}


def _index(name: str, content: bytes) -> SnapshotIndex:
    try:
        return SnapshotIndex.model_validate_json(content)
    except ValidationError as error:
        raise ConfigurationError(f"{name} is corrupt: {first_problem(error)}; run dra-kit snapshot again") from None


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        for file, content in read_folder(files_in(path, recursive=True, hidden=True), path, SNAPSHOTS):
            yield str(file.relative_to(path)), content
    elif path.name.endswith(ARCHIVES):
        for name, content in archive_members(path):
            if name.endswith(tuple(SUFFIXES)):
                yield name, content
    else:
        content = read_file(path, SNAPSHOTS)
        if is_recording(content[:100].decode(errors="replace")):
            raise ConfigurationError(f"{path} is a recording, not a saved cluster; show it with 'dra-kit replay'")
        yield path.name, content


def _stored(
    document: dict[str, Any],
    where: str,
    namespace: str,
    *,
    release: Release,
    strict: bool = True,
    slices: Iterable[ObjectView] = (),
) -> tuple[ObjectView, list[str]]:
    """Return a manifest as the API server would store it, with defaults, in v1; and the fields that it would drop."""
    kind = _kind(document, where)
    api_version = str(document["apiVersion"])
    if kind.model is not None and (wish := unserved(kind.name, api_version, release)) is not None:
        text = f"Kubernetes {release.version} does not serve {kind.name} in {api_version}"
        raise ConfigurationError(f"{where}: {'; '.join(filter(None, (text, wish)))}")
    strictness = StrictDecoding(release.version)
    try:
        decoded = decode(document, kind.types[api_version], strictness)
    except TypeMismatch as error:
        raise ConfigurationError(f"{where} ({kind.name}): {error}") from None
    if strictness.problems and strict:
        raise ConfigurationError(f"{where} ({kind.name}): {', '.join(strictness.problems)}")
    complete = complete_new_object(decoded, kind, release.version, namespace=namespace)
    advice = partial(qualified_names, complete, slices)
    stored = {**admitted(kind, complete, release, api_version, where, advice=advice)}
    dropped = list(missing_fields(complete, stored)) if kind.model is not None else []
    metadata = stored["metadata"]
    if not metadata.get("name"):
        stored["metadata"] = {**metadata, "name": metadata["generateName"].rstrip("-")}
    return {**stored, "apiVersion": V1} if kind.model is not None else stored, dropped


def _loaded(where: str, document: dict[str, Any], version: KubernetesVersion) -> ObjectView:
    """Return a saved object in v1 with the API's defaults, which may be missing if it was not saved from a cluster."""
    kind = _kind(document, where)
    stored = as_stored(kind, document, where, version)
    if kind.model is not None:
        stored = {**to_v1(stored, kind.name, str(stored["apiVersion"])), "apiVersion": V1}
        # invalid structure is reported when the model is created
        with contextlib.suppress(AttributeError, KeyError, TypeError):
            set_defaults(stored, kind.name, V1, NO_TIME)
    if kind.name == "Event" and stored["apiVersion"] == "v1":
        stored = {**stored, "regarding": stored["involvedObject"], "note": stored["message"]}
    return stored


def _kind(document: Mapping[str, Any], where: str) -> ManifestKind:
    api_version = str(document.get("apiVersion"))
    kind = KNOWN_KINDS.get(str(document["kind"]))
    if kind is None or api_version not in kind.types:
        raise ConfigurationError(
            f"{where}: {document['kind']} of {api_version} is not served by Kubernetes {OLDEST} to {NEWEST}"
        )
    return kind


INDEX_FILE: Final = "snapshot.json"
_FILES: Final = {kind: f"{kind.lower()}{'es' if kind.endswith('s') else 's'}.json" for kind in (*KINDS, *COPY_KINDS)}
_OTHER_FILES: Final = frozenset(
    {".7z", ".bz2", ".gz", ".json", ".rar", ".tar", ".tbz", ".txz", ".xz", ".yaml", ".yml", ".zip", ".zst"}
)


class SnapshotIndex(BaseModel):
    """The index of a snapshot, with the same fields as :class:`ClusterDocuments`."""

    version: str = str(DEFAULT)
    alpha: bool = False
    gaps: tuple[MissingRight, ...] = ()


def save(objects: ClusterDocuments, path: Path) -> int:
    """Write a snapshot.

    Args:
        objects: the objects to save.
        path: a new or empty directory, a directory with a snapshot, which is replaced, or a ``….tar.gz``.

    Returns:
        The number of objects.

    Raises:
        ConfigurationError: it cannot be written.
    """
    index = SnapshotIndex(version=objects.version, alpha=objects.alpha, gaps=objects.gaps)
    files = {INDEX_FILE: index.model_dump_json(indent=2)}
    count = 0
    for kind, documents in objects.documents.items():
        items = [reduced(kind, document) for document in documents]
        count += len(items)
        files[_FILES[kind]] = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1)
    try:
        _write(path, files)
    except OSError as error:
        raise ConfigurationError(
            f"snapshot {path} cannot be written: {error.strerror or error}; use another path"
        ) from None
    return count


def check_destination(path: Path) -> None:
    """Check that a snapshot can be written to a path, before anything is read.

    Raises:
        ConfigurationError: the path has another file's suffix, is a link, or a directory with other files.
    """
    if path.is_symlink():
        raise ConfigurationError(f"snapshot {path}: it is a link to {path.readlink()}; use the target's path")
    if path.is_dir():
        present = {entry.name for entry in path.iterdir()}
        others = sorted(present - {INDEX_FILE, *_FILES.values()}) if INDEX_FILE in present else sorted(present)
        if others:
            raise ConfigurationError(
                f"snapshot {path}: the folder has other files, which would be read as objects: {others[0]}"
                f"{', …' if len(others) > 1 else ''}; use a new folder"
            )
    if not path.is_dir() and not path.name.endswith(ARCHIVES) and (path.exists() or path.suffix in _OTHER_FILES):
        what = f"{path.suffix} is not a kind of snapshot" if path.suffix in _OTHER_FILES else "it is a file"
        remedy = f"use a folder, or an archive that ends in {' or '.join(ARCHIVES)}"
        raise ConfigurationError(f"snapshot {path}: {what}; {remedy}")


def _write(path: Path, files: Mapping[str, str]) -> None:
    if path.name.endswith(ARCHIVES):
        replace_private(path, archive_of(files))
        return
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    stale = {INDEX_FILE, *_FILES.values()} - files.keys()
    for name in (INDEX_FILE, *stale):  # without an index, the directory does not count as a snapshot
        (path / name).unlink(missing_ok=True)
    for name, text in sorted(files.items(), key=lambda item: item[0] == INDEX_FILE):
        replace_private(path / name, text.encode())


def archive_of(files: Mapping[str, str]) -> bytes:
    """Return texts by name as the content of a .tar.gz."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, text in files.items():
            content = text.encode("utf-8", "backslashreplace")
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


_MODELLED: Final = frozenset({"DeviceClass", "DeviceTaintRule", "ResourceClaim", "ResourceSlice"})
"""Kinds of resource.k8s.io whose models validate their fields."""
_READ: Final = {
    "Event": ("metadata", "regarding", "involvedObject", "reason", "note", "message"),
    "Node": ("metadata", "spec", "status"),
    "Pod": ("metadata", "spec", "status"),
    "ResourceClaimTemplate": ("metadata", "spec"),
}
"""Fields that are read as JSON of other kinds, and of older versions of resource.k8s.io."""
_UNREAD: Final = frozenset({"creationTimestamp", "deletionTimestamp", "managedFields"})
"""Metadata that is not validated; only the presence of deletionTimestamp matters."""


def admitted(
    kind: ManifestKind,
    obj: Object,
    release: Release,
    api_version: str,
    where: str,
    *,
    advice: Callable[[], str] = str,
) -> Object:
    """Return what an API server stores of a new object that is sent in ``api_version``.

    Args:
        kind: its kind.
        obj: the object with defaults.
        release: of the API server.
        api_version: its version as sent.
        where: its file and position.
        advice: returns what to add to the error, beginning with a semicolon.

    Raises:
        Invalid: the object is invalid; the error lists the fields.
    """
    name = obj["metadata"].get("name") or obj["metadata"].get("generateName") or "without a name"
    answered = check_new_object(obj, kind, release)
    errors = errors_in_version(answered.errors, api_version, release)
    if errors:
        texts = {str(error): (error.path, error.body) for error in errors}
        raise Invalid(
            f"{where}: the API server would reject {kind.name} {name}: {'; '.join(texts)}{advice()}; dra-kit "
            "lint shows where",
            status=422,
            reason="Invalid",
            causes=tuple(texts.values()),
        )
    return answered.stored


def as_stored(kind: ManifestKind, document: Object, where: str, version: KubernetesVersion) -> Object:
    """Return a saved object of a release after checking the structure of the fields that are read later.

    Raises:
        ConfigurationError: the object is not one that an API server stores.
    """
    name = document["metadata"].get("name")
    if not isinstance(name, str) or not name:
        raise _corrupt(kind, "", where, "it has no metadata.name")
    namespace = document["metadata"].get("namespace") or "default"
    if not isinstance(namespace, str):
        raise _corrupt(kind, name, where, "its metadata.namespace is not a string")
    if kind.namespaced:
        document = {**document, "metadata": {**document["metadata"], "namespace": namespace}}
    if kind.name in _MODELLED and document["apiVersion"] == V1:
        return document
    known = struct(kind.types[str(document["apiVersion"])], version)
    fields = known.fields if known is not None else {}
    read: Object = {}
    for field in _READ.get(kind.name, ("metadata", "spec")):
        if field not in fields:
            continue
        value = document.get(field)
        if field == "metadata":
            value = {key: item for key, item in document["metadata"].items() if key not in _UNREAD}
        try:
            type_name = fields[field].type
            read[field] = zero(type_name, version) if value is None else decode(value, type_name, version)
        except TypeMismatch as error:
            raise _corrupt(kind, name, where, f"{field}: {error}") from None
        if field == "spec":
            for path in _missing(read[field], fields[field].type, field):
                raise _corrupt(kind, name, where, f"it has no {path}")
    unread = {key: item for key, item in document["metadata"].items() if key in _UNREAD}
    return {**document, **read, "metadata": {**unread, **read["metadata"]}}


def _missing(value: Any, type_name: str, path: str) -> Iterator[str]:
    """Yield required fields that are empty."""
    if type_name.startswith(LIST):
        for index, item in enumerate(value):
            yield from _missing(item, item_type(type_name), f"{path}[{index}]")
    elif type_name.startswith(MAP):
        for key, item in value.items():
            yield from _missing(item, item_type(type_name), f"{path}.{key}")
    elif (known := struct_of_all(type_name)) is not None:
        for name, field in known.fields.items():
            item = value.get(name)
            if field.required and item in (None, "", []):
                yield f"{path}.{name}"
            elif item is not None:
                yield from _missing(item, field.type, f"{path}.{name}")


def _corrupt(kind: ManifestKind, name: str, where: str, cause: str) -> ConfigurationError:
    return ConfigurationError(
        f"{where}: {' '.join(filter(None, (kind.name, name)))} is corrupt: {cause}; save it again, "
        "with dra-kit snapshot or kubectl get -o yaml"
    )


ARCHIVES: Final = (".tar.gz", ".tgz")
"""Suffixes of archive names."""
_EXTENSION: Final = 8 << 10
"""Maximum bytes of a header that extends another one, usually with a long name."""
_EXTENSIONS: Final = frozenset(
    {
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    }
)
_REGULAR_FILES: Final = frozenset({tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE})
_KINDS: Final = {
    tarfile.LNKTYPE: "a link",
    tarfile.SYMTYPE: "a link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a FIFO",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}


class _Refused(Exception):
    """An archive is rejected; the text has the reason and the limit."""


def archive_members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a gzip-compressed tar archive with their content, in order; skip folders.

    Raises:
        ConfigurationError: it is not such an archive, contains anything except files and folders, or exceeds the limits
            of ``SNAPSHOTS`` when unpacked.
    """
    with open_file(path) as file:
        try:
            yield from _members(file)
        except _Refused as error:
            raise ConfigurationError(f"{path} {error}; it is not from dra-kit snapshot") from None
        except (OSError, tarfile.TarError, EOFError, zlib.error, ValueError) as error:
            raise ConfigurationError(
                f"{path} is not an archive of dra-kit snapshot: {' '.join(str(error).split())}; run it again"
            ) from None


def _members(file: BinaryIO) -> Iterator[tuple[str, bytes]]:
    # as a stream without seeking, so that nothing is unpacked twice
    with (
        _Unpacked(fileobj=file, mode="rb") as unpacked,
        tarfile.open(fileobj=unpacked, mode="r|", tarinfo=_Header) as archive,
    ):
        for number, entry in enumerate(archive, start=1):
            if number > SNAPSHOTS.files:
                raise _Refused(f"has more than {SNAPSHOTS.files} members")
            _check(entry)
            content = archive.extractfile(entry) if entry.isfile() else None
            if content is not None:
                yield entry.name, content.read()


def _check(entry: tarfile.TarInfo) -> None:
    """Check the values that extending headers may have changed."""
    name = PurePosixPath(entry.name)
    if name.is_absolute() or ".." in name.parts:
        raise _Refused(f"has a member with a path outside of it: {entry.name!r}")
    if entry.issparse():
        raise _Refused(f"has a member that is a sparse file: {entry.name!r}")
    _check_size(entry, SNAPSHOTS.file_bytes)


def _check_size(entry: tarfile.TarInfo, limit: int) -> None:
    if not 0 <= entry.size <= limit:
        raise _Refused(f"has a member of {entry.size} bytes, {entry.name!r}; the limit is {size_text(limit)}")


class _Header(tarfile.TarInfo):
    """Reject a member before any of it is read."""

    @classmethod
    @override
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _EXTENSIONS:
            _check_size(header, _EXTENSION)
        elif header.type in _REGULAR_FILES:
            _check_size(header, SNAPSHOTS.file_bytes)
        elif header.type != tarfile.DIRTYPE:
            kind = _KINDS.get(header.type, f"of an unknown type {header.type!r}")
            raise _Refused(f"has a member that is {kind}: {header.name!r}")
        return header


class _Unpacked(gzip.GzipFile):
    """The decompressed data, up to the limit of ``SNAPSHOTS``."""

    _left = SNAPSHOTS.total_bytes

    @override
    def read(self, size: int | None = -1) -> bytes:
        content = super().read(size)
        self._left -= len(content)
        if self._left < 0:
            raise _Refused(f"is larger than {size_text(SNAPSHOTS.total_bytes)} when unpacked")
        return content
