"""Which changes of files count."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from dra_kit.sandbox.dev.watch import FileWatcher


class Clock:
    """Time that passes in sleep alone; what happens meanwhile is written down by a test.

    Attributes:
        during: called in the next sleeps, one each.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.during: list[Callable[[], object]] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.during:
            self.during.pop(0)()
        elif self.now > 60:
            raise TimeoutError
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def watch(clock: Clock, *folders: Path, files: Sequence[Path] = ()) -> AsyncIterator[Sequence[Path]]:
    return FileWatcher(folders, files, sleep=clock.sleep, clock=clock).changes()


def names(paths: Sequence[Path]) -> list[str]:
    return [path.name for path in paths]


async def test_files_that_are_made_changed_replaced_and_removed(tmp_path: Path, clock: Clock) -> None:
    for name in ("changed.py", "removed.py", "replaced.py"):
        (tmp_path / name).write_text("1")
    stat = (tmp_path / "replaced.py").stat()
    found = watch(clock, tmp_path)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "made.yaml").write_text("1")
    (tmp_path / "changed.py").write_text("22")
    (tmp_path / "removed.py").unlink()
    new = tmp_path / ".replaced.py.swp"
    new.write_text("1")
    os.utime(new, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    new.replace(tmp_path / "replaced.py")

    assert names(await anext(found)) == ["made.yaml", "changed.py", "removed.py", "replaced.py"]


@pytest.mark.parametrize(
    "name",
    [
        ".git/index",
        ".driver.py.swp",
        "__pycache__/driver.cpython-311.pyc",
        "driver.py~",
        "4913",
        "#driver.py#",
        "README.md",
        "out.log",
        "tests/test_driver.py",
        "leds.egg-info/PKG-INFO",
        "env/lib/module.py",
    ],
)
async def test_what_tools_and_editors_keep_is_not_watched(tmp_path: Path, clock: Clock, name: str) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    found = watch(clock, tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("1")

    with pytest.raises(TimeoutError):
        await anext(found)


async def test_file_that_this_process_writes_is_not_watched(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = FileWatcher([tmp_path], [tmp_path], without=Path("run.jsonl"), sleep=clock.sleep, clock=clock).changes()
    (tmp_path / "run.jsonl").touch()
    (tmp_path / "a.py").touch()

    assert names(await anext(found)) == ["a.py"]


async def test_files_that_are_saved_together_are_one_change(tmp_path: Path, clock: Clock) -> None:
    found = watch(clock, tmp_path)
    (tmp_path / "a.py").touch()
    clock.during = [(tmp_path / "b.py").touch, (tmp_path / "c.py").touch]

    assert names(await anext(found)) == ["a.py", "b.py", "c.py"]


async def test_what_changes_meanwhile_is_one_further_change(tmp_path: Path, clock: Clock) -> None:
    found = watch(clock, tmp_path)
    (tmp_path / "a.py").touch()
    await anext(found)
    for text in ("1", "22", "333"):
        (tmp_path / "a.py").write_text(text)
    (tmp_path / "b.py").touch()

    assert names(await anext(found)) == ["a.py", "b.py"]
    with pytest.raises(TimeoutError):
        await anext(found)


async def test_constantly_changing_file_is_reported(tmp_path: Path, clock: Clock) -> None:
    found = watch(clock, tmp_path)
    path = tmp_path / "a.py"
    path.touch()
    clock.during = [lambda number=number: path.write_text("x" * number) for number in range(1, 1000)]  # type: ignore[misc]

    assert names(await anext(found)) == ["a.py"]


async def test_given_files_and_folders_are_watched_wherever_they_are(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "given" / "below").mkdir(parents=True)
    single = tmp_path / "pod.md"
    single.write_text("1")
    found = watch(clock, files=[single, tmp_path / "given"])
    single.unlink()  # an editor may remove a file before it writes it
    (tmp_path / "given" / "claim.yaml").touch()
    (tmp_path / "given" / "below" / "other.yaml").touch()
    clock.during = [lambda: single.write_text("2")]

    assert names(await anext(found)) == ["claim.yaml", "pod.md"]


@pytest.fixture(params=["folder", "repository"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "repository":
        subprocess.run(["/usr/bin/env", "git", "init", "--quiet", str(tmp_path)], check=True)
    return tmp_path


async def test_files_that_git_ignores_do_not_count(project: Path, clock: Clock) -> None:
    (project / ".gitignore").write_text("state/\n*.json\n!menu.json\n")
    (project / "state").mkdir()
    named = project / "named.json"
    found = watch(clock, project, files=[named])
    for name in ("state/a.txt", "cache.json", "menu.json", "oven.txt", "named.json"):
        (project / name).write_text("1")
    assert names(await anext(found)) == ["menu.json", "named.json", "oven.txt"]
