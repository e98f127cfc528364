"""Which pod sandboxes have had the driver's pod hook: remembered until they end, also by the driver's next process."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote, unquote

from dra_kit.errors import StoreError

logger: logging.Logger = logging.getLogger(__name__)


class StartedPods:
    """The sandboxes whose pod hook has succeeded in this boot: a file each, shared by the driver's processes."""

    def __init__(self, directory: Path, boot_id: str) -> None:
        self._directory = directory
        self._boot_id = boot_id

    def claims(self, sandbox: str) -> frozenset[str] | None:
        """Return the claims that the pod held when its hook succeeded; None if it has not succeeded.

        Raises:
            StoreError: that cannot be read.
        """
        try:
            content = json.loads(self._path(sandbox).read_text())
            return frozenset(content["claims"]) if content["boot"] == self._boot_id else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, LookupError, TypeError):  # the hook runs again
            return None
        except OSError as error:
            raise self._error(error) from error

    def add(self, sandbox: str, claims: Iterable[str]) -> None:
        """Record that the pod hook of a sandbox has succeeded.

        Raises:
            StoreError: that cannot be written.
        """
        path = self._path(sandbox)
        temporary = path.with_name(f".{path.name}")
        try:
            self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)
            temporary.write_text(json.dumps({"boot": self._boot_id, "claims": sorted(claims)}))
            temporary.replace(path)
        except OSError as error:
            raise self._error(error) from error

    def remove(self, sandbox: str) -> None:
        """Forget a sandbox that has ended; a file that cannot be removed is removed by :meth:`retain`."""
        try:
            self._path(sandbox).unlink(missing_ok=True)
        except OSError as error:
            logger.warning("ended pod sandbox not forgotten", extra={"error": str(self._error(error))})

    def retain(self, sandboxes: Iterable[str]) -> None:
        """Forget all sandboxes but these.

        Raises:
            StoreError: that cannot be read.
        """
        known = set(sandboxes)
        try:
            names = os.listdir(self._directory)  # noqa: PTH208 - names are needed, not paths
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise self._error(error) from error
        for name in map(unquote, names):
            if name not in known:
                self.remove(name)

    def _path(self, sandbox: str) -> Path:
        return self._directory / quote(sandbox, safe="")

    def _error(self, error: OSError) -> StoreError:
        return StoreError(
            f"list of started pods {self._directory} cannot be read or written: {error}; check that the disk is "
            "writable and not full (--state-dir)"
        )
