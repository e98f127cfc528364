"""Files and directories for one user alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dra_kit.files import create_private, is_own_directory, read_private, replace_private


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_written_file_is_private(tmp_path: Path, umask: int) -> None:
    former = os.umask(umask)
    try:
        replace_private(tmp_path / "a", b"secret")
    finally:
        os.umask(former)

    assert mode(tmp_path / "a") == 0o600
    assert read_private(tmp_path / "a") == b"secret"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_file_that_others_can_read_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "a").chmod(0o644)
    with (tmp_path / "a").open() as held:
        replace_private(tmp_path / "a", b"secret")
        assert held.read() == "old"

    assert mode(tmp_path / "a") == 0o600


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "a").symlink_to("victim")

    replace_private(tmp_path / "a", b"secret")

    assert (tmp_path / "victim").read_text() == "mine"
    assert not (tmp_path / "a").is_symlink()


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()

    with pytest.raises(OSError, match="a"):
        replace_private(tmp_path / "a", b"secret")

    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_new_file_does_not_follow_a_dangling_link(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("nowhere")

    with pytest.raises(FileExistsError):
        create_private(tmp_path / "a")


def test_only_a_small_file_of_the_same_user_is_read(tmp_path: Path) -> None:
    own = tmp_path / "own"
    replace_private(own, b"mine")
    (tmp_path / "link").symlink_to("own")
    os.mkfifo(tmp_path / "fifo", 0o600)
    replace_private(tmp_path / "large", b"x" * (1 << 20))
    replace_private(tmp_path / "open", b"mine")
    (tmp_path / "open").chmod(0o640)
    (tmp_path / "directory").mkdir(0o700)
    replace_private(tmp_path / "twice", b"mine")
    (tmp_path / "second-name").hardlink_to(tmp_path / "twice")

    assert read_private(own) == b"mine"
    for name in ("link", "fifo", "large", "open", "directory", "twice", "nowhere"):
        assert read_private(tmp_path / name) is None, name


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_file_of_another_user_is_not_owned(tmp_path: Path) -> None:
    replace_private(tmp_path / "file", b"planted")
    (tmp_path / "directory").mkdir(0o700)
    for name in ("file", "directory"):
        os.chown(tmp_path / name, 65534, 65534)

    assert read_private(tmp_path / "file") is None
    assert not is_own_directory(tmp_path / "directory")


def test_private_directory_is_not_a_link_and_not_accessible_to_others(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir(0o700)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    (tmp_path / "link").symlink_to("own")
    (tmp_path / "file").touch(0o600)

    assert is_own_directory(tmp_path / "own")
    for name in ("open", "link", "file", "nowhere"):
        assert not is_own_directory(tmp_path / name), name
