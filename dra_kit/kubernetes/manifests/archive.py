"""Reads archives saved by ``dra-kit snapshot``, within limits."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, Self

from typing_extensions import override

from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.manifests.files import SNAPSHOTS, open_file, size_text

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
_FILES: Final = frozenset({tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE})
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
        elif header.type in _FILES:
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
