"""What a container of a claim with MPS, in which it is root, can do to the node, to the driver and to other claims."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import dra_kit as dra
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_driver.doubles.nvidia_cuda_mps_control import PID_FILE
from gpu_driver.effects.mps.control import MpsControl, MpsError
from gpu_driver.effects.mps.leftovers import remove_leftovers
from gpu_driver.effects.mps.limits import Limits
from gpu_driver.effects.mps.paths import MakeMpsFolder, MpsFolder
from gpu_driver.host import folders
from gpu_driver.host.sockets import is_served
from gpu_driver.prepare import sharing
from gpu_driver.settings import Settings
from tests.conftest import IS_ROOT, Node
from tests.mps import (
    HOUR,
    SOON,
    age,
    ask,
    left_by_a_daemon,
    mps_root,
    nothing_left,
    pid,
    pipe,
    prepare,
    root_of,
    runs,
)

MIB = 2**20
as_root = pytest.mark.skipif(not IS_ROOT, reason="file systems of a claim's own are NOT tested: that takes root")
UNPRIVILEGED = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"] if IS_ROOT else []
"""Prefix of a command that must not be able to mount file systems, even as root."""


@pytest.fixture
def settings() -> Iterator[Settings]:
    with mps_root() as root:
        yield Settings(mps_root=root, mps_shm_size="64Mi")


def mount_at(prepared: dra.Prepared, path: str) -> dra.Mount:
    [found] = [mount for mount in prepared.mounts if mount.container_path == path]
    return found


def fill(folder: Path) -> int:
    """Write until nothing more fits; the MiB that did."""
    written = 0
    with suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while written < 1024:
            file.write(bytes(MIB))
            written += 1
    return written


def written_outside_mounts(folder: Path) -> int:
    """Bytes of the files in a folder, without file systems that are mounted in it; others write to the same disk."""
    found = [path.lstat() for path in folder.rglob("*")]
    return sum(status.st_blocks * 512 for status in found if status.st_dev == folder.lstat().st_dev)


class TestFoldersWithSize:
    pytestmark = as_root

    def test_containers_and_daemon_share_the_memory_of_the_claim(self, node: Node) -> None:
        prepared = prepare(node)
        memory = Path(mount_at(prepared, "/dev/shm").host_path)
        of_daemon = Path(f"/proc/{pid(prepared)}/root/dev/shm")
        assert memory.stat().st_dev != Path("/dev/shm").stat().st_dev
        assert (of_daemon.stat().st_dev, of_daemon.stat().st_ino) == (memory.stat().st_dev, memory.stat().st_ino)

    def test_claims_share_no_memory(self, node: Node) -> None:
        one, two = (mount_at(prepare(node, name, gpu), "/dev/shm") for name, gpu in (("a", "gpu-0"), ("b", "gpu-1")))
        assert Path(one.host_path).stat().st_dev != Path(two.host_path).stat().st_dev

    def test_a_claim_can_fill_only_its_own_memory(self, node: Node) -> None:
        prepared = prepare(node)
        memory = Path(mount_at(prepared, "/dev/shm").host_path)
        assert fill(memory) <= 64
        assert shutil.disk_usage(memory).free == 0
        assert written_outside_mounts(root_of(node)) < MIB
        assert ask(node, prepared, "get_default_active_thread_percentage") == "100.0"
        (pipe(prepared) / "still").write_text("there is room for sockets")
        node.bench.unprepare("serve")
        assert nothing_left(node)

    def test_a_claim_can_fill_only_its_own_socket_folder(self, node: Node) -> None:
        prepared = prepare(node)
        assert fill(pipe(prepared)) <= 16
        node.bench.unprepare("serve")
        assert nothing_left(node)

    def test_the_number_of_files_is_limited(self, node: Node) -> None:
        memory = Path(mount_at(prepare(node), "/dev/shm").host_path)
        assert os.statvfs(memory).f_files == 64 * 64

    def test_the_shared_memory_is_mounted_noexec_and_nodev(self, node: Node) -> None:
        memory = Path(mount_at(prepare(node), "/dev/shm").host_path)
        flags = os.statvfs(memory).f_flag
        assert flags & os.ST_NOSUID
        assert flags & os.ST_NODEV
        assert flags & os.ST_NOEXEC

    def test_a_folder_with_a_missing_mount_is_created_again(self, node: Node) -> None:
        prepared = prepare(node)
        folders.unmount(pipe(prepared).parent)
        again = prepare(node)
        assert Path(mount_at(again, "/dev/shm").host_path).is_mount()

    def test_a_partially_created_folder_is_completed(self, node: Node) -> None:
        folder = MpsFolder(path=root_of(node) / "0123456789ab")
        folder.path.mkdir()
        folders.mount_memory(folder.path, MIB)
        folder.shm.mkdir()  # killed before the second file system
        effect = MakeMpsFolder(folder=folder).with_hardware(node.hardware)
        effect.apply(None)
        effect.apply(None)
        assert folder.shm.is_mount()
        assert effect.holds(None)
        effect.revert(None)
        assert not folder.path.exists()

    def test_a_plain_folder_of_an_older_release_stays_until_its_claim_is_released(self, node: Node) -> None:
        folder = MpsFolder(path=root_of(node) / "0123456789ab")
        folder.make()
        (folder.pipe / "control").touch()
        effect = MakeMpsFolder(folder=folder).with_hardware(node.hardware)
        effect.apply(None)
        assert (folder.pipe / "control").exists()
        assert not folder.path.is_mount()

    def test_a_changed_size_applies_to_new_claims_only(self, node: Node) -> None:
        before = pid(prepare(node))
        node.settings.mps_shm_size = "128Mi"
        again = prepare(node)
        assert pid(again) == before
        assert shutil.disk_usage(mount_at(again, "/dev/shm").host_path).total == 64 * MIB
        other = prepare(node, "other", "gpu-1")
        assert shutil.disk_usage(mount_at(other, "/dev/shm").host_path).total == 128 * MIB


def test_containers_can_write_only_to_the_shared_memory(node: Node) -> None:
    prepared = prepare(node)
    memory, sockets = mount_at(prepared, "/dev/shm"), mount_at(prepared, str(pipe(prepared)))
    assert "ro" in sockets.options
    assert memory.host_path != "/dev/shm"
    assert {"nosuid", "nodev", "noexec"} <= {*memory.options} & {*sockets.options}


def without_rights(root: Path, state: Path, *, fake: bool, unlimited: bool) -> subprocess.CompletedProcess[str]:
    """Make a folder in a process that may not mount file systems."""
    code = (
        "import sys, json; from dataclasses import replace; from pathlib import Path; import dra_kit as dra\n"
        "from gpu_driver.effects.mps.paths import *; from gpu_driver.nvml.fake.hardware import fake_hardware\n"
        "root, state, fake, unlimited = json.loads(sys.argv[1])\n"
        "hardware = replace(fake_hardware('h100', Path(state)), fake=fake)\n"
        "folder = MpsFolder(path=Path(root) / '0123456789ab')\n"
        "try:\n    MakeMpsFolder(folder=folder, unlimited=unlimited).with_hardware(hardware).apply(None)\n"
        "except dra.PrepareError as error:\n    sys.exit(f'{type(error).__name__}: {error}')\n"
    )
    words = json.dumps([str(root), str(state), fake, unlimited])
    return subprocess.run(
        [*UNPRIVILEGED, sys.executable, "-c", code, words],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("fake", "unlimited"), [(True, False), (False, True)], ids=["fake-gpus", "by-a-setting"])
def test_without_the_right_to_mount_a_plain_folder_is_used_if_permitted(
    tmp_path: Path, fake: bool, unlimited: bool
) -> None:
    done = without_rights(tmp_path / "mps", tmp_path / "state", fake=fake, unlimited=unlimited)
    assert done.returncode == 0, done.stderr
    assert "Nothing limits what its claim writes there" in done.stderr
    assert MpsFolder(path=tmp_path / "mps/0123456789ab").is_complete()


def test_without_the_right_to_mount_mps_on_real_gpus_is_rejected(tmp_path: Path) -> None:
    done = without_rights(tmp_path / "mps", tmp_path / "state", fake=False, unlimited=False)
    assert "PermanentError" in done.stderr
    assert "run the driver as root (in a container: privileged), or set --mps-unlimited" in done.stderr


@as_root
@pytest.mark.parametrize("propagation", ["shared", "private"])
def test_mount_propagation_to_the_host_is_detected(propagation: str) -> None:
    code = "from pathlib import Path; from gpu_driver.host.folders import *; print(is_propagated(Path('/run/mps')))"
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", propagation, sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"{propagation == 'shared'}\n"


class TestInAContainer:
    """The driver, whose settings say so by the place of the host's root."""

    @pytest.fixture(autouse=True)
    def unseen(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sharing, "is_propagated", lambda folder: False)
        node.settings.host_root = Path("/host")

    def test_a_mount_invisible_to_the_host_is_an_error(self, node: Node) -> None:
        with pytest.raises(dra.PermanentError, match="mountPropagation: Bidirectional"):
            prepare(node)

    def test_a_plain_folder_is_used_if_a_setting_permits_it(self, node: Node) -> None:
        node.settings.mps_unlimited = True
        assert not Path(mount_at(prepare(node), "/dev/shm").host_path).is_mount()


@pytest.mark.parametrize("text", ["63Mi", "0", "-1Gi", "1025Gi", "much", "9" * 5000, "1e99999"])
def test_an_invalid_shared_memory_size_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="mps_shm_size"):
        Settings(mps_shm_size=text)


def deep(folder: Path) -> None:
    """Folders in folders, as deep as the file system permits, and deeper than a stack."""
    top = os.open(folder, os.O_DIRECTORY)
    with suppress(OSError):
        for _ in range(3000):
            os.mkdir("d", dir_fd=top)
            inner = os.open("d", os.O_DIRECTORY, dir_fd=top)
            os.close(top)
            top = inner
    os.close(top)


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(path))


def in_place_of(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def attack(pipe: Path) -> None:
        path = pipe / name
        path.unlink(missing_ok=True)
        make(path)

    return attack


def locked(path: Path) -> None:
    (path / "inner").mkdir(parents=True)
    (path / "inner/file").touch()
    (path / "inner").chmod(0)
    path.chmod(0)


def many(pipe: Path) -> None:
    for number in range(900):
        (pipe / f"file-{number}").touch()


def linked_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


HOSTILE = {
    "a-folder": in_place_of("a-folder", lambda path: (path / "inner").mkdir(parents=True)),
    "a-folder-for-a-socket": in_place_of("control", lambda path: (path / "inner").mkdir(parents=True)),
    "a-folder-for-the-pid": in_place_of(PID_FILE, Path.mkdir),
    "a-fifo-for-the-pid": in_place_of(PID_FILE, os.mkfifo),
    "a-link-that-leads-to-itself": in_place_of(PID_FILE, linked_to_itself),
    "a-link-to-a-device": in_place_of("log", lambda path: path.symlink_to("/dev/zero")),
    "a-locked-folder": in_place_of("locked", locked),
    "a-name-that-is-no-text": lambda pipe: os.mkdir(os.fsencode(pipe) + b"/\xff\n"),
    "the-longest-name": in_place_of("n" * 255, Path.mkdir),
    "deep-folders": deep,
    "many-files": many,
}
hostile = pytest.mark.parametrize("attack", [pytest.param(attack, id=name) for name, attack in HOSTILE.items()])


@hostile
def test_a_claim_is_released_at_once_with_any_leftovers(node: Node, attack: Callable[[Path], None]) -> None:
    prepared = prepare(node)
    daemon = pid(prepared)
    attack(pipe(prepared))
    node.bench.unprepare("serve")
    assert not runs(daemon)
    assert nothing_left(node)


@hostile
def test_a_plain_folder_is_removed_with_any_content(tmp_path: Path, attack: Callable[[Path], None]) -> None:
    with mps_root() as root:
        folder = MpsFolder(path=root / "0123456789ab")
        folder.make()
        attack(folder.pipe)
        folder.remove()
        assert not folder.path.exists()


@hostile
def test_a_killed_daemon_is_restarted_next_to_any_files(node: Node, attack: Callable[[Path], None]) -> None:
    killed = pid(prepare(node))
    os.kill(killed, 9)
    attack(pipe(prepare_folder_of(node)))
    again = prepare(node)
    assert pid(again) != killed
    assert runs(pid(again))


def prepare_folder_of(node: Node) -> dra.Prepared:
    """The variables of the claim's container, without a look at its daemon."""
    [folder] = root_of(node).iterdir()
    return dra.Prepared(env={"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe")})


def test_links_are_not_followed_on_removal(node: Node, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "folder/file").write_text("precious")
    folder = pipe(prepare(node))
    (folder / "nested").mkdir()
    for place in (folder, folder / "nested"):
        (place / "to-folder").symlink_to(outside / "folder")
        (place / "to-file").symlink_to(outside / "folder/file")
        (place / "up").symlink_to("../../..")
    assert folders.empty(folder) == []
    node.bench.unprepare("serve")
    assert (outside / "folder/file").read_text() == "precious"
    assert nothing_left(node)


@as_root
def test_mounts_in_a_folder_are_unmounted_and_their_content_stays(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("precious")
    with mps_root() as root:
        folder = MpsFolder(path=root / "0123456789ab")
        folder.make()
        for place in (folder.pipe / "mounted", folder.pipe / "in/a/folder"):
            place.mkdir(parents=True)
            subprocess.run(["mount", "--bind", str(outside), str(place)], check=True)
        folder.remove()
        assert not folder.path.exists()
    assert (outside / "file").read_text() == "precious"


_NAMES = st.sampled_from(["a", "b", "c", "control", "..."])
_TREES = st.recursive(
    st.sampled_from(["file", "link", "fifo", "socket", "broken"]),
    lambda inner: st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=12,
)


def plant(path: Path, tree: object, outside: Path) -> None:
    match tree:
        case "file":
            path.touch()
        case "link":
            path.symlink_to(outside)
        case "broken":
            path.symlink_to("nowhere")
        case "fifo":
            os.mkfifo(path)
        case "socket":
            socket_at(path)
        case dict():
            path.mkdir()
            for name, inner in tree.items():
                plant(path / name, inner, outside)


@given(st.dictionaries(_NAMES, _TREES, max_size=5))
def test_removing_any_tree_touches_nothing_outside(tree: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory(prefix="t-") as made:
        outside, folder = Path(made, "outside"), Path(made, "folder")
        outside.mkdir()
        (outside / "file").touch()
        plant(folder, tree, outside)
        assert folders.empty(folder) == []
        assert list(folder.iterdir()) == []
        assert [path.name for path in outside.iterdir()] == ["file"]


def link_sockets(attacker: dra.Prepared, victim: dra.Prepared) -> None:
    for name in ("control", "control_privileged"):
        (pipe(attacker) / name).unlink()
        (pipe(attacker) / name).symlink_to(pipe(victim) / name)


class TestSocketsOfOthers:
    """A container puts links to the sockets of another claim's daemon in the place of its own."""

    def test_releasing_a_claim_does_not_stop_the_daemon_of_another(self, node: Node) -> None:
        victim, attacker = prepare(node, "victim", "gpu-0"), prepare(node, "attacker", "gpu-1")
        link_sockets(attacker, victim)
        node.bench.unprepare("attacker")
        assert runs(pid(victim))
        assert ask(node, victim, "get_default_active_thread_percentage") == "100.0"

    def test_limits_of_one_claim_are_not_set_in_the_daemon_of_another(self, node: Node) -> None:
        victim = prepare(node, "victim", "gpu-0", defaultActiveThreadPercentage=25)
        attacker = prepare(node, "attacker", "gpu-1", defaultActiveThreadPercentage=100)
        link_sockets(attacker, victim)
        prepare(node, "attacker", "gpu-1", defaultActiveThreadPercentage=100)
        assert ask(node, victim, "get_default_active_thread_percentage") == "25.0"

    def test_a_pid_file_does_not_make_the_driver_kill_a_process(self, node: Node) -> None:
        with subprocess.Popen(["sleep", "600"]) as innocent:
            prepared = prepare(node)
            daemon = pid(prepared)
            (pipe(prepared) / PID_FILE).write_text(f"{innocent.pid}\n")
            node.bench.unprepare("serve")
            assert innocent.poll() is None
            assert not runs(daemon)
            innocent.kill()

    def test_a_link_to_a_served_socket_is_not_a_daemon(self, tmp_path: Path) -> None:
        with mps_root() as root, socket.socket(socket.AF_UNIX) as served:
            served.bind(str(root / "real"))
            served.listen()
            (root / "link").symlink_to(root / "real")
            assert is_served(root / "real")
            assert not is_served(root / "link")
            (root / "real").unlink()
            (root / "link").unlink()


@pytest.mark.parametrize("program", [["yes"], ["cat", "/dev/zero"]])
def test_an_endless_answer_is_truncated(program: list[str]) -> None:
    with pytest.raises(MpsError, match="longer than 65536 bytes"):
        MpsControl(program, dict(os.environ)).ask("get_server_list", patience=SOON)


def test_a_number_of_any_length_in_an_answer_is_not_the_limit(node: Node, tmp_path: Path) -> None:
    talker = tmp_path / "talker"
    talker.write_text(f"#!/bin/sh\ncat > {os.devnull}\necho {'9' * 5000}M\n")
    talker.chmod(0o755)
    control = MpsControl([str(talker)], dict(os.environ))
    for limits in (Limits(percentage=25), Limits(memory={0: "1M"})):
        with pytest.raises(dra.PermanentError, match="MPS did not take") as caught:
            limits.set_in(control)
        assert len(str(caught.value)) < 800


def test_a_leftover_folder_with_a_future_time_is_removed() -> None:
    with mps_root() as root:
        left = age(left_by_a_daemon(root), HOUR)
        os.utime(left.pipe, (2**33, 2**33))
        remove_leftovers(root, lambda: ())
        assert not left.path.exists()


def test_a_leftover_folder_with_a_link_to_a_daemon_is_removed() -> None:
    with mps_root() as root, socket.socket(socket.AF_UNIX) as served:
        served.bind(str(root / "daemon"))
        served.listen()
        left = left_by_a_daemon(root)
        (left.pipe / "control").unlink()
        (left.pipe / "control").symlink_to(root / "daemon")
        age(left, HOUR)
        remove_leftovers(root, lambda: ())
        assert not left.path.exists()
        (root / "daemon").unlink()


@as_root
def test_a_leftover_folder_is_unmounted_and_removed() -> None:
    with mps_root() as root:
        folder = MpsFolder(path=root / "0123456789ab")
        folder.make_with_size(64 * MIB)
        age(folder, HOUR)
        remove_leftovers(root, lambda: ())
        assert not folder.path.exists()
