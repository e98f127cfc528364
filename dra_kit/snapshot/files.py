"""What ``dra-kit snapshot`` writes: files that nobody else can read, put in place once they are whole."""

from __future__ import annotations

import io
import json
import os
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from dra_kit.errors import ConfigurationError
from dra_kit.explain.cluster.cluster import Gap
from dra_kit.explain.cluster.objects import KINDS, Objects, reduced
from dra_kit.kubernetes.manifests.archive import ARCHIVES

INDEX_FILE: Final = "snapshot.json"
_FILES: Final = {kind: f"{kind.lower()}{'es' if kind.endswith('s') else 's'}.json" for kind in KINDS}
_OTHER_FILES: Final = frozenset(
    {".7z", ".bz2", ".gz", ".json", ".rar", ".tar", ".tbz", ".txz", ".xz", ".yaml", ".yml", ".zip", ".zst"}
)
_NEWEST: Final = "1.37"


class SnapshotIndex(BaseModel):
    """What a snapshot says of itself.

    Attributes:
        version: the Kubernetes release.
        alpha: the alpha features of resource.k8s.io are on.
        gaps: what could not be read.
    """

    version: str = _NEWEST
    alpha: bool = False
    gaps: tuple[Gap, ...] = ()


def save(objects: Objects, path: Path) -> int:
    """Write a snapshot.

    Args:
        objects: what to save.
        path: a new or empty directory, one that holds a snapshot, which is replaced, or an archive by the name of
            ``….tar.gz``.

    Returns:
        How many objects that are.

    Raises:
        ConfigurationError: it cannot be written there.
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
        raise ConfigurationError(f"snapshot {path}: {error.strerror or error}") from None
    return count


def check_destination(path: Path) -> None:
    """Check that a snapshot can be written under a name, before anything is read for it.

    Args:
        path: as for :func:`save`.

    Raises:
        ConfigurationError: it has the name of a file of another kind, or is a link, or a directory that holds
            something else.
    """
    if path.is_symlink():
        raise ConfigurationError(f"snapshot {path}: it is a link to {path.readlink()}; name the place itself")
    if path.is_dir():
        present = {entry.name for entry in path.iterdir()}
        others = sorted(present - {INDEX_FILE, *_FILES.values()}) if INDEX_FILE in present else sorted(present)
        if others:
            raise ConfigurationError(
                f"snapshot {path}: the folder holds other files, which would be taken for the cluster's: {others[0]}"
                f"{', …' if len(others) > 1 else ''}; name a new folder"
            )
    if not path.is_dir() and path.suffix in _OTHER_FILES and not path.name.endswith(ARCHIVES):
        raise ConfigurationError(
            f"snapshot {path}: {path.suffix} is no kind of snapshot; name a folder, or an archive that ends in "
            f"{' or '.join(ARCHIVES)}"
        )


def _write(path: Path, files: Mapping[str, str]) -> None:
    if path.name.endswith(ARCHIVES):
        _put(path, _archive(files))
        return
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    stale = {INDEX_FILE, *_FILES.values()} - files.keys()
    for name in (INDEX_FILE, *stale):  # without an index what is there is no snapshot
        (path / name).unlink(missing_ok=True)
    for name, text in sorted(files.items(), key=lambda item: item[0] == INDEX_FILE):
        _put(path / name, text.encode())


def _archive(files: Mapping[str, str]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, text in files.items():
            content = text.encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o600
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def _put(path: Path, content: bytes) -> None:
    """Put a file into its place at once; a link that is there is replaced, not followed."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
