"""A bundle as a file that nobody else can read, put in place once it is whole."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from dra_kit.errors import ConfigurationError


def write_archive(path: Path, files: Mapping[str, str]) -> None:
    """Write a .tar.gz, below one folder of its own name.

    Args:
        path: of the archive.
        files: texts by their names.

    Raises:
        ConfigurationError: it cannot be written there.
    """
    folder = path.name.removesuffix(".tar.gz").removesuffix(".tgz")
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, text in sorted(files.items()):
            content = text.encode("utf-8", "backslashreplace")
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
            archive.addfile(entry, io.BytesIO(content))
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(made.getvalue())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigurationError(
            f"support bundle {path}: {error.strerror or error}; name a file in a folder that can be written"
        ) from None
