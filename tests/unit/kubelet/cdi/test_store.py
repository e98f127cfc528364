from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given

from dra_kit.errors import ConfigurationError, StoreError
from dra_kit.kubelet.cdi.resolution import load_specs
from dra_kit.kubelet.cdi.spec import CDIDevice, Spec, SpecEdits, build_spec, validate_spec
from dra_kit.kubelet.cdi.store import SpecStore, claim_kind
from tests.unit.kubelet.cdi import strategies

DRIVER = "gpu.example.com"
UID = "c9f6f2f5-5c0e-4d60-8a86-8d1a6a4e0a59"


def spec_of(value: str) -> Spec:
    device = CDIDevice(name="x", container_edits=SpecEdits(env=(f"VALUE={value}",)))
    return build_spec(claim_kind(DRIVER), (device,))


@pytest.fixture
def store(tmp_path: Path) -> SpecStore:
    return SpecStore(tmp_path / "cdi", DRIVER)


def names(store: SpecStore) -> list[str]:
    return sorted(path.name for path in store.directory.iterdir())


def test_a_written_spec_is_the_only_file(store: SpecStore) -> None:
    store.write(UID, spec_of("1"))
    store.write(UID, spec_of("2"))
    assert names(store) == [f"k8s.{DRIVER}-claim_{UID}.json"]
    assert store.read(UID) == spec_of("2")


def test_a_runtime_resolves_a_written_device(store: SpecStore) -> None:
    store.write(UID, spec_of("1"))
    assert load_specs([store.directory]).resolve([f"k8s.{DRIVER}/claim=x"]).env == ("VALUE=1",)


@given(strategies.valid_specs)
def test_every_written_file_parses_and_validates(spec: Spec) -> None:
    with TemporaryDirectory() as directory:
        SpecStore(Path(directory), DRIVER).write(UID, spec)
        [file] = load_specs([Path(directory)]).files
    assert file.spec == spec
    assert validate_spec(file.spec) == []


def test_others_cannot_read_the_file(store: SpecStore) -> None:
    store.write(UID, spec_of("secret"))
    assert store.path(UID).stat().st_mode & 0o777 == 0o600


def test_unchanged_content_is_not_written_again(store: SpecStore) -> None:
    store.write(UID, spec_of("1"))
    before = store.path(UID).stat()
    store.write(UID, spec_of("1"))
    assert store.path(UID).stat().st_ino == before.st_ino
    assert store.path(UID).stat().st_mtime_ns == before.st_mtime_ns


def test_a_directory_that_vanished_is_made_again(store: SpecStore) -> None:
    store.write(UID, spec_of("1"))
    store.remove(UID)
    store.directory.rmdir()
    store.write(UID, spec_of("1"))
    assert store.read(UID) == spec_of("1")


def test_a_uid_cannot_leave_the_directory(store: SpecStore) -> None:
    store.write("../../etc/passwd", spec_of("1"))
    assert store.uids() == {"../../etc/passwd"}
    assert names(store) == [f"k8s.{DRIVER}-claim_..%2F..%2Fetc%2Fpasswd.json"]


def test_a_driver_name_that_gives_no_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'a/b'"):
        SpecStore(tmp_path, "a/b")


def test_removing_twice_is_fine(store: SpecStore) -> None:
    store.write(UID, spec_of("1"))
    store.remove(UID)
    store.remove(UID)
    assert names(store) == []


def test_store_is_empty_before_the_first_write(store: SpecStore) -> None:
    store.remove(UID)
    assert (store.read(UID), store.uids(), store.sweep(set())) == (None, set(), [])


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 100, b'{"cdiVersion":"0.3.0"', b'{"cdiVersion":"9.0.0","kind":"v/c","devices":[]}']
)
def test_corrupt_file_counts_as_missing_and_the_next_write_replaces_it(store: SpecStore, content: bytes) -> None:
    store.write(UID, spec_of("1"))
    store.path(UID).write_bytes(content)
    assert store.read(UID) is None
    store.write(UID, spec_of("1"))
    assert store.read(UID) == spec_of("1")


def test_uids_are_those_of_this_drivers_files(store: SpecStore) -> None:
    store.write("one", spec_of("1"))
    store.write("two", spec_of("2"))
    SpecStore(store.directory, "nic.example.com").write("three", spec_of("3"))
    (store.directory / "vendor.json").write_text("{}")
    assert store.uids() == {"one", "two"}


def test_sweep_removes_only_own_orphans_and_temporary_files(store: SpecStore) -> None:
    other = SpecStore(store.directory, f"{DRIVER}-claim")
    for each in (store, other):
        each.write("one", spec_of("1"))
        each.write("two", spec_of("2"))
    left_over = store.directory / f".k8s.{DRIVER}-claim_one.json.0123abcd.tmp"
    foreign = [store.directory / name for name in ("vendor.json", "spec.123.tmp", f"k8s.{DRIVER}-claim_one.yaml")]
    for path in (left_over, *foreign):
        path.write_text("{")
    removed = store.sweep({"one"})
    assert sorted(removed) == sorted([left_over, store.path("two")])
    assert set(store.directory.iterdir()) == {store.path("one"), other.path("one"), other.path("two"), *foreign}


def test_sweep_removes_corrupt_orphans(store: SpecStore) -> None:
    store.write(UID, spec_of("1"))
    store.path(UID).write_bytes(b"")
    assert store.sweep(set()) == [store.path(UID)]


def test_sweep_leaves_directories_alone(store: SpecStore) -> None:
    store.path(UID).mkdir(parents=True)
    assert store.sweep(set()) == []


def test_a_path_that_is_a_directory_is_a_store_error_and_leaves_no_file(store: SpecStore) -> None:
    store.path(UID).mkdir(parents=True)
    with pytest.raises(StoreError, match=UID):
        store.write(UID, spec_of("1"))
    with pytest.raises(StoreError, match="cannot be read"):
        store.read(UID)
    with pytest.raises(StoreError, match="cannot be removed"):
        store.remove(UID)
    assert names(store) == [store.path(UID).name]


def test_a_directory_that_is_a_file_is_a_store_error(store: SpecStore) -> None:
    store.directory.write_text("")
    with pytest.raises(StoreError, match="Not a directory; let the setting name a directory"):
        store.write(UID, spec_of("1"))
    with pytest.raises(StoreError, match="cannot be read"):
        store.uids()
    store.remove(UID)


LIMITED_WRITER = """
import resource, signal, sys
from pathlib import Path
from dra_kit.kubelet.cdi.spec import Spec
from dra_kit.kubelet.cdi.store import SpecStore
from dra_kit.errors import StoreError
directory, driver, spec = sys.argv[1:]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    SpecStore(Path(directory), driver).write("one", Spec.from_json(spec))
except StoreError as error:
    print(error)
"""


def test_a_write_that_stops_half_way_is_a_store_error_and_keeps_the_old_file(store: SpecStore) -> None:
    store.write("one", spec_of("small"))
    arguments = [str(store.directory), DRIVER, spec_of("x" * 100_000).to_json()]
    result = subprocess.run(
        [sys.executable, "-c", LIMITED_WRITER, *arguments], capture_output=True, text=True, check=True
    )
    assert f"{store.path('one')} of claim one cannot be written: File too large" in result.stdout
    assert store.read("one") == spec_of("small")
    assert names(store) == [store.path("one").name]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_a_failing_rename_keeps_the_old_file(store: SpecStore, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    store.write(UID, spec_of("1"))

    def fail(source: object, target: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(StoreError, match=os.strerror(code)) as caught:
        store.write(UID, spec_of("2"))
    assert str(store.path(UID)) in caught.value.message
    assert store.read(UID) == spec_of("1")
    assert names(store) == [store.path(UID).name]


def test_a_temporary_file_that_another_process_swept_is_written_again(
    store: SpecStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = SpecStore(store.directory, DRIVER)
    replace = os.replace
    swept: list[Path] = []

    def sweep_first(source: Path, target: Path) -> None:
        if not swept:
            swept.extend(other.sweep({UID}))
        replace(source, target)

    monkeypatch.setattr(os, "replace", sweep_first)
    store.write(UID, spec_of("1"))
    assert len(swept) == 1
    assert store.read(UID) == spec_of("1")


ENDLESS_WRITER = """
import sys
from itertools import cycle
from pathlib import Path
from dra_kit.kubelet.cdi.spec import Spec
from dra_kit.kubelet.cdi.store import SpecStore
directory, driver, *specs = sys.argv[1:]
store = SpecStore(Path(directory), driver)
for spec in cycle([Spec.from_json(spec) for spec in specs]):
    store.write("one", spec)
"""


def test_a_kill_in_the_middle_never_shows_a_half_written_file(store: SpecStore) -> None:
    whole = [spec_of(letter * 100_000).to_json() for letter in "ab"]
    store.write("one", Spec.from_json(whole[0]))
    for _ in range(5):
        inode = store.path("one").stat().st_ino
        command = [sys.executable, "-c", ENDLESS_WRITER, str(store.directory), DRIVER, *whole]
        with subprocess.Popen(command) as process:
            while store.path("one").stat().st_ino == inode:
                assert process.poll() is None
            for _ in range(50):
                assert store.path("one").read_text() in whole
            process.kill()
        cache = load_specs([store.directory])
        assert [file.path for file in cache.files] == [store.path("one")]
        assert cache.errors == {}
        assert store.path("one").read_text() in whole
    store.sweep({"one"})
    assert names(store) == [store.path("one").name]


async def test_threads_can_write_read_and_sweep_at_once(store: SpecStore) -> None:
    uids = [f"claim-{index}" for index in range(40)]

    async def one(uid: str) -> None:
        for value in ("1", "2"):
            await asyncio.to_thread(store.write, uid, spec_of(value))
            await asyncio.to_thread(store.sweep, uids)

    await asyncio.gather(*(one(uid) for uid in uids))
    assert store.uids() == set(uids)
    assert all(store.read(uid) == spec_of("2") for uid in uids)
    assert len(names(store)) == len(uids)


async def test_threads_that_write_one_claim_leave_one_whole_file(store: SpecStore) -> None:
    specs = [spec_of(str(index) * 1000) for index in range(20)]
    await asyncio.gather(*(asyncio.to_thread(store.write, UID, spec) for spec in specs))
    assert store.read(UID) in specs
    assert json.loads(store.path(UID).read_text())
    assert names(store) == [store.path(UID).name]


def test_missing_directory_is_created_empty(tmp_path: Path) -> None:
    SpecStore(tmp_path / "run" / "cdi", "gpu.example.com").require_writable()
    assert list((tmp_path / "run" / "cdi").iterdir()) == []


def test_a_directory_that_is_a_file_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("")
    for directory in (tmp_path / "cdi", tmp_path / "cdi" / "below"):
        with pytest.raises(ConfigurationError) as told:
            SpecStore(directory, "gpu.example.com").require_writable()
        assert str(told.value) == (
            f"CDI directory {directory} cannot be written: Not a directory; let the setting name a directory, or give "
            "another one (--cdi-dir)"
        )


def test_directory_of_another_user_is_rejected_at_startup(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may write everywhere
    try:
        with pytest.raises(ConfigurationError, match="Permission denied; let the driver's user write there"):
            SpecStore(tmp_path, "gpu.example.com").require_writable()
    finally:
        os.seteuid(user)
        tmp_path.chmod(0o700)
