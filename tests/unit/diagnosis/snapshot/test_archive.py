"""Archives of saved objects."""

from __future__ import annotations

import tarfile
from pathlib import Path

from dra_kit.diagnosis.snapshot import archive_members


def test_archive_of_regular_files_is_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / ("long" * 50)).write_bytes(b"content")
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        with tarfile.open(tmp_path / "a.tgz", "w:gz", format=form) as made:
            made.add(
                tmp_path / "in", "in" if form != tarfile.USTAR_FORMAT else "x", recursive=form != tarfile.USTAR_FORMAT
            )
        found = list(archive_members(tmp_path / "a.tgz"))
        assert [content for _, content in found] == ([b"content"] if form != tarfile.USTAR_FORMAT else [])
