"""The kubeconfig of a sandbox: for its owner alone, there for as long as it runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dra_kit.apiserver.server import CONTEXT
from dra_kit.errors import ConfigurationError
from dra_kit.sandbox.cluster import private


@contextmanager
def written(path: Path, document: Mapping[str, Any]) -> Iterator[None]:
    """Write a kubeconfig, and remove it in the end unless it is another one by then.

    Args:
        path: where nothing is, or what an earlier sandbox wrote.
        document: the kubeconfig.

    Raises:
        ConfigurationError: something else is there, or it cannot be written.
    """
    data = json.dumps(document, indent=2).encode()  # JSON is YAML
    try:
        if not _is_free(path):
            raise ConfigurationError(
                f"kubeconfig {path} was not written by a sandbox, or was changed since; remove it, or name another"
            )
        ours = private.replace(path, data)
    except OSError as error:
        raise ConfigurationError(f"kubeconfig {path} cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        if _is_still(path, ours) and _read(path) == data:
            path.unlink(missing_ok=True)


def _is_free(path: Path) -> bool:
    """Return whether nothing is there, or an empty file, or what an earlier sandbox could not remove."""
    if not os.path.lexists(path):
        return True
    text = _read(path)
    if not text:
        return text is not None
    try:
        document = json.loads(text)
        clusters = [item["name"] for item in document["clusters"]]
        return bool(document["current-context"] == CONTEXT and clusters == [CONTEXT])
    except (ValueError, LookupError, TypeError, RecursionError):
        return False


def _read(path: Path) -> bytes | None:
    """Return a file of ours; some file systems (those of Windows below WSL) have no permissions to forbid."""
    return private.read(path, forbidden=0)


def _is_still(path: Path, ours: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.lstat(), ours)
    except OSError:
        return False
