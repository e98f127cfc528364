"""Readable files: regular files of limited size inside of the named folder."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.manifests.files import Limits, files_in, read_file, read_folder, read_stream

SMALL = Limits(file_bytes=10, total_bytes=15, files=2)


def test_file_at_limit_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    assert read_file(tmp_path / "a", SMALL) == b"0123456789"


def test_larger_file_is_rejected_with_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789a")
    with pytest.raises(ConfigurationError, match=r"/a is larger than 10 bytes, the limit for one file"):
        read_file(tmp_path / "a", SMALL)
    with pytest.raises(ConfigurationError, match="standard input is larger than 10 bytes"):
        read_stream(io.BytesIO(bytes(11)), "standard input", SMALL)


def test_irregular_file_is_rejected_by_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, kind in ((tmp_path / "fifo", "a FIFO"), (Path("/dev/null"), "a device"), (tmp_path, "a folder")):
        with pytest.raises(ConfigurationError, match=f"{path} is {kind}, not a regular file; save its content"):
            read_file(path, SMALL)
    with pytest.raises(ConfigurationError, match="nowhere cannot be read: No such file"):
        read_file(tmp_path / "nowhere", SMALL)


def test_named_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").symlink_to("a")
    assert read_file(tmp_path / "b", SMALL) == b"a"


def test_folder_rejects_links_to_outside(tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    (folder / "..data").mkdir(parents=True)
    outside.mkdir()
    for path in (folder / "..data" / "a.yaml", folder / "b.txt", folder / ".hidden.yaml", outside / "c.yaml"):
        path.write_bytes(b"")
    (folder / "a.yaml").symlink_to("..data/a.yaml")  # as the kubelet mounts a ConfigMap
    (folder / "out").symlink_to(outside)
    names = [path.name for path in files_in(folder, recursive=True, hidden=False)]
    assert names == ["a.yaml"]
    assert len(list(files_in(folder, recursive=True, hidden=True))) == 3
    (folder / "c.yaml").symlink_to(outside / "c.yaml")
    with pytest.raises(ConfigurationError, match=r"c\.yaml is a link to .*outside/c\.yaml, which is not in the folder"):
        list(files_in(folder, recursive=False, hidden=False))


@pytest.mark.parametrize(("sizes", "problem"), [((1, 1, 1), "more than 2 files"), ((8, 8), "larger than 15 bytes")])
def test_limits_apply_to_whole_folder(tmp_path: Path, sizes: tuple[int, ...], problem: str) -> None:
    for number, size in enumerate(sizes):
        (tmp_path / f"{number}.json").write_bytes(bytes(size))
    with pytest.raises(ConfigurationError, match=problem):
        list(read_folder(files_in(tmp_path, recursive=False, hidden=False), tmp_path, SMALL))
