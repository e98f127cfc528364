"""Names of sockets fit the kernel, tell instances apart, and lead to what dead instances left."""

from __future__ import annotations

import base64
import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.errors import ConfigurationError
from dra_kit.kubelet.sockets import (
    hidden_link,
    hidden_path,
    operation_link,
    operation_socket,
    plugin_socket,
    registration_socket,
    remove_stale_sockets,
)

ROOT = Path("/var/lib/kubelet")
UID = "5d4ba5a2-7b5c-4a54-9c0e-3b4f1f0d9a11"
DRIVER = "dra.pizza"

labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
drivers = st.lists(labels, min_size=1, max_size=5).map(".".join).filter(lambda name: len(name) <= 63)
uids = st.uuids().map(str)
roots = st.lists(st.text("abcdefghijklmnop", min_size=1, max_size=12), min_size=1, max_size=6).map(
    lambda parts: Path("/", *parts)
)


def digest(text: str, size: int) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:size]).decode().rstrip("=")


@given(roots, drivers, uids, uids)
def test_paths_fit_and_differ_or_are_refused(root: Path, driver: str, one: str, other: str) -> None:
    for choose in (plugin_socket, registration_socket):
        try:
            paths = [choose(root, driver, uid) for uid in (one, other, None)]
        except ConfigurationError as error:
            refusal = str(error)
        else:
            assert all(len(bytes(path)) <= 107 for path in paths)
            assert len(set(paths)) == len({one, other, None})
            continue
        assert str(root) in refusal
        assert "107" in refusal
        assert "--kubelet-dir" in refusal


@given(drivers, uids)
def test_every_driver_name_fits_the_default_root(driver: str, uid: str) -> None:
    assert plugin_socket(ROOT, driver, uid).parent == ROOT / "plugins" / driver
    assert registration_socket(ROOT, driver, uid).parent == ROOT / "plugins_registry"


def test_names_of_service_sockets() -> None:
    assert plugin_socket(ROOT, DRIVER, UID) == ROOT / f"plugins/dra.pizza/dra-{UID}.sock"
    assert plugin_socket(ROOT, DRIVER, None) == ROOT / "plugins/dra.pizza/dra.sock"


@pytest.mark.parametrize(
    ("driver", "uid", "name"),
    [
        (DRIVER, UID, f"dra.pizza-{UID}-reg.sock"),
        (DRIVER, None, "dra.pizza-reg.sock"),
        ("d" * 40, UID, f"{'d' * 40}-{digest(UID, 8)}-reg.sock"),
        ("d" * 63, UID, "dra-" + digest(f"{'d' * 63}\0{UID}", 16) + "-reg.sock"),
    ],
    ids=["complete UID", "no UID", "hash of the UID", "hash of driver and UID"],
)
def test_names_of_registration_sockets(driver: str, uid: str | None, name: str) -> None:
    assert registration_socket(ROOT, driver, uid) == ROOT / "plugins_registry" / name


def test_a_path_of_exactly_107_bytes_is_taken_and_one_of_108_is_not() -> None:
    root = Path("/" + "r" * (107 - len(f"//plugins/{DRIVER}/dra.sock")))

    assert len(bytes(plugin_socket(root, DRIVER, None))) == 107
    with pytest.raises(ConfigurationError, match="has 108 bytes, and Linux allows 107"):
        plugin_socket(Path(f"{root}r"), DRIVER, None)


@pytest.fixture
def listeners() -> Iterator[list[socket.socket]]:
    sockets: list[socket.socket] = []
    yield sockets
    for listener in sockets:
        listener.close()


def listen(path: Path, listeners: list[socket.socket]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listeners.append(listener)
    listener.bind(str(path))
    listener.listen()
    return path


def leave(path: Path) -> Path:
    """The socket of a process that was killed."""
    listeners: list[socket.socket] = []
    listen(path, listeners)
    listeners[0].close()
    return path


@pytest.mark.parametrize("uid", [UID, None], ids=["names with a UID", "fixed names"])
def test_both_sockets_of_a_dead_instance_are_removed(kubelet_dir: Path, uid: str | None) -> None:
    service = leave(plugin_socket(kubelet_dir, DRIVER, uid))
    registrar = leave(registration_socket(kubelet_dir, DRIVER, uid))

    assert sorted(remove_stale_sockets(kubelet_dir, DRIVER, alone=True)) == sorted([registrar, service])
    assert not service.exists()
    assert not registrar.exists()


def test_both_sockets_with_a_hash_in_their_names_are_removed(kubelet_dir: Path) -> None:
    # long enough for hashes in both names, short enough for the registration socket to keep the driver's name
    room = 107 - len(bytes(kubelet_dir))
    driver = "d" * min(room - len("/plugins/") - len(f"/dra-{UID}.sock") + 1, 63)
    service = leave(plugin_socket(kubelet_dir, driver, UID))
    registrar = leave(registration_socket(kubelet_dir, driver, UID))
    assert UID not in service.name
    assert UID not in registrar.name
    assert driver in registrar.name

    assert sorted(remove_stale_sockets(kubelet_dir, driver, alone=True)) == sorted([registrar, service])

    unnamed = leave(hidden_path(registrar))
    leave(service)
    assert sorted(remove_stale_sockets(kubelet_dir, driver, alone=True)) == sorted([unnamed, service])


def test_hidden_sockets_are_removed_once_no_other_instance_exists(kubelet_dir: Path) -> None:
    service = leave(plugin_socket(kubelet_dir, DRIVER, "one"))
    registrar = leave(hidden_path(registration_socket(kubelet_dir, DRIVER, "one")))
    other = leave(hidden_path(plugin_socket(kubelet_dir, DRIVER, "another")))

    assert remove_stale_sockets(kubelet_dir, DRIVER, alone=False) == []
    assert sorted(remove_stale_sockets(kubelet_dir, DRIVER, alone=True)) == sorted([registrar, service, other])


def test_sockets_of_two_drivers_are_bound_under_different_names(kubelet_dir: Path) -> None:
    paths = [
        registration_socket(kubelet_dir, driver, uid)
        for driver in ("gpu.example.com", "npu.example.com", "gpu.example.co")
        for uid in (None, UID)
    ]
    assert len({hidden_path(path) for path in paths}) == len(paths)
    assert all(len(hidden_path(path).name) == len(path.name) for path in paths)


def test_a_live_instance_keeps_its_sockets(kubelet_dir: Path, listeners: list[socket.socket]) -> None:
    live = [
        listen(plugin_socket(kubelet_dir, DRIVER, UID), listeners),
        listen(registration_socket(kubelet_dir, DRIVER, UID), listeners),
    ]

    assert remove_stale_sockets(kubelet_dir, DRIVER, alone=True) == []
    assert all(path.is_socket() for path in live)


def test_a_live_instance_with_a_full_queue_keeps_its_socket(kubelet_dir: Path, listeners: list[socket.socket]) -> None:
    path = listen(plugin_socket(kubelet_dir, DRIVER, UID), listeners)
    listeners[0].listen(0)
    waiting = socket.socket(socket.AF_UNIX)
    listeners.append(waiting)
    waiting.connect(str(path))

    assert remove_stale_sockets(kubelet_dir, DRIVER, alone=True) == []


def test_stale_sockets_of_another_driver_stay(kubelet_dir: Path) -> None:
    leave(plugin_socket(kubelet_dir, DRIVER, UID))
    others = [
        leave(plugin_socket(kubelet_dir, "dra.pasta", UID)),
        leave(registration_socket(kubelet_dir, "dra.pasta", UID)),
        # drivers whose names begin like this one's
        leave(registration_socket(kubelet_dir, f"{DRIVER}-oven", None)),
        leave(registration_socket(kubelet_dir, f"{DRIVER}-abcdefghijk", None)),
    ]

    remove_stale_sockets(kubelet_dir, DRIVER, alone=True)

    assert all(path.is_socket() for path in others)


def test_other_files_are_not_removed(kubelet_dir: Path) -> None:
    path = plugin_socket(kubelet_dir, DRIVER, None)
    path.parent.mkdir(parents=True)
    path.write_text("not a socket")

    assert remove_stale_sockets(kubelet_dir, DRIVER, alone=True) == []
    assert path.read_text() == "not a socket"


def test_a_node_without_directories_has_nothing_stale(kubelet_dir: Path) -> None:
    assert remove_stale_sockets(kubelet_dir / "missing", DRIVER, alone=True) == []


@given(drivers, uids, uids)
def test_operation_socket_fits_the_default_root_and_differs_from_service_sockets(
    driver: str, uid: str, other: str
) -> None:
    paths = [operation_socket(ROOT, driver, one) for one in (uid, other, None)]
    assert all(len(bytes(path)) <= 107 and path.parent == ROOT / "plugins" / driver for path in paths)
    assert len(set(paths)) == len({uid, other, None})
    assert not any(path.match("dra*.sock") or path == operation_link(ROOT, driver) for path in paths)


def test_only_the_operation_socket_of_a_dead_instance_is_removed(
    kubelet_dir: Path, listeners: list[socket.socket]
) -> None:
    dead = leave(operation_socket(kubelet_dir, DRIVER, "dead"))
    half = leave(hidden_path(operation_socket(kubelet_dir, DRIVER, "half")))
    alive = listen(operation_socket(kubelet_dir, DRIVER, "alive"), listeners)
    assert remove_stale_sockets(kubelet_dir, DRIVER, alone=False) == [dead]
    assert half.exists()
    assert remove_stale_sockets(kubelet_dir, DRIVER, alone=True) == [half]
    assert alive.exists()


def test_unfinished_link_is_removed(kubelet_dir: Path) -> None:
    half = hidden_link(operation_socket(kubelet_dir, DRIVER, "half"))
    half.parent.mkdir(parents=True)
    half.symlink_to("ops-half.sock")
    assert remove_stale_sockets(kubelet_dir, DRIVER, alone=False) == []
    assert remove_stale_sockets(kubelet_dir, DRIVER, alone=True) == [half]
    assert not half.is_symlink()
