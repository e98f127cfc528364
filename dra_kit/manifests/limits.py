"""How much of a file is read before it is refused."""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class Limits(Struct, frozen=True, kw_only=True):
    """What a reader takes; whatever goes beyond is refused with a text that names the limit.

    Attributes:
        file_bytes: of one file, or of one member of an archive, unpacked; and characters of all texts in it,
            each alias counted with all that it stands for.
        total_bytes: of all files of a folder or archive together, unpacked.
        files: in a folder or archive.
        depth: levels of lists and mappings in a document.
        values: in a file, each alias counted with all that it stands for; of YAML keys, too.
    """

    file_bytes: int = 64 << 20
    total_bytes: int = 256 << 20
    files: int = 10_000
    depth: int = 200
    values: int = 2_000_000


MANIFESTS: Final = Limits(file_bytes=16 << 20, total_bytes=128 << 20, values=300_000)
"""Files that people write: manifests, stories, settings."""

SNAPSHOTS: Final = Limits()
"""What ``dra-kit snapshot`` and ``kubectl get -o yaml`` save of a whole cluster (5,000 nodes of 8 devices: 45 MiB)."""

REQUESTS: Final = Limits(file_bytes=3 << 20, total_bytes=3 << 20, files=1, values=200_000)
"""Bodies of requests: the API server's own limit of 3 MiB (kube-apiserver 1.37, MaxRequestBodyBytes)."""


def size_text(size: int) -> str:
    """Return a limit of bytes for people."""
    return f"{size >> 20} MiB" if size % (1 << 20) == 0 else f"{size} bytes"
