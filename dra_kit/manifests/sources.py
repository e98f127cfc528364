"""The files that a path stands for, as commands are given paths: a file, a folder, or standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dra_kit.manifests.documents import SourceFile
from dra_kit.manifests.files import STDIN, files_in, read_file, read_folder, read_stream
from dra_kit.manifests.limits import MANIFESTS, Limits

_DASH: Final = "-"


def source_file(path: Path, limits: Limits = MANIFESTS) -> SourceFile:
    """Return one file.

    Raises:
        ConfigurationError: it cannot be read, is too large, or no text in UTF-8.
    """
    return SourceFile.of(read_file(path, limits), str(path))


def source_files(path: Path, *, tree: bool = False) -> Iterator[SourceFile]:
    """Yield the manifests of a path; those of a folder, by their names, are not named explicitly.

    Args:
        path: of a file, or of a folder whose YAML and JSON files are taken; ``-`` is standard input.
        tree: of a folder also what is in folders below, but nothing hidden: the path is that of somebody's sources.

    Raises:
        ConfigurationError: something cannot be read, is too large, or no text in UTF-8.
    """
    if path.is_dir():
        for file, content in read_folder(files_in(path, recursive=tree, hidden=not tree), path, MANIFESTS):
            yield SourceFile.of(content, str(file), explicit=False)
    elif str(path) == _DASH:
        yield SourceFile.of(read_stream(sys.stdin.buffer, "standard input", MANIFESTS), STDIN)
    else:
        yield source_file(path)
