"""Which files in the registry directory are plugins, and what changes from one look to the next."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import aclosing
from pathlib import Path

from dra_kit.kubelet.plugin_client import find_sockets
from dra_kit.sandbox.kubelet.plugin_manager import SocketChanges, watch_sockets


def bind(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    return path


def unlink(path: Path) -> None:
    path.unlink()


def test_sockets_are_found_in_the_directory_and_below(kubelet_dir: Path) -> None:
    paths = [bind(kubelet_dir / "a-reg.sock"), bind(kubelet_dir / "sub" / "b-reg.sock")]

    assert list(find_sockets(kubelet_dir)) == paths


def test_hidden_sockets_and_directories_are_skipped(kubelet_dir: Path) -> None:
    bind(kubelet_dir / ".a-reg.sock")
    bind(kubelet_dir / ".sub" / "b-reg.sock")

    assert find_sockets(kubelet_dir) == {}


def test_other_files_are_skipped(kubelet_dir: Path) -> None:
    (kubelet_dir / "a-reg.sock").write_text("")
    (kubelet_dir / "b-reg.sock").symlink_to(bind(kubelet_dir / ".hidden" / "b.sock"))
    os.mkfifo(kubelet_dir / "c-reg.sock")

    assert find_sockets(kubelet_dir) == {}


def test_a_missing_directory_has_no_sockets(kubelet_dir: Path) -> None:
    assert find_sockets(kubelet_dir / "missing") == {}


async def test_first_change_contains_all_sockets(kubelet_dir: Path) -> None:
    path = bind(kubelet_dir / "a-reg.sock")

    async with aclosing(watch_sockets(kubelet_dir)) as changes:
        assert await anext(changes) == SocketChanges(removed=(), added=(path,))


async def test_added_and_removed_sockets_are_reported(kubelet_dir: Path) -> None:
    async with aclosing(watch_sockets(kubelet_dir)) as changes:
        first = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        path = bind(kubelet_dir / "sub" / "a-reg.sock")
        assert await first == SocketChanges(removed=(), added=(path,))

        unlink(path)
        assert await anext(changes) == SocketChanges(removed=(path,), added=())


async def test_recreated_socket_is_removed_and_added(kubelet_dir: Path) -> None:
    path = bind(kubelet_dir / "a-reg.sock")
    async with aclosing(watch_sockets(kubelet_dir)) as changes:
        await anext(changes)
        unlink(path)
        bind(path)
        # it may have the inode of the one before, and the same time where the clock of the file system is coarse
        os.utime(path, (1, 1))

        assert await anext(changes) == SocketChanges(removed=(path,), added=(path,))


async def test_sockets_of_a_directory_that_comes_later_are_found(kubelet_dir: Path) -> None:
    async with aclosing(watch_sockets(kubelet_dir / "plugins_registry")) as changes:
        first = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        path = bind(kubelet_dir / "plugins_registry" / "a-reg.sock")

        assert await first == SocketChanges(removed=(), added=(path,))
