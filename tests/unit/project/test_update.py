"""``dra-kit update``: the author's edits and a newer template, side by side."""

from __future__ import annotations

import json
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest

from dra_kit.errors import ConfigurationError
from dra_kit.project.rendering import BASE, FILE, create, read_answers
from dra_kit.project.update import FileChange, update_project
from tests.unit.project.test_new import run

LINES = "".join(f"line {number}\n" for number in range(10))
OLD = {
    "same": "same\n",
    "changed": "old\n",
    "edited": "old\n",
    "both": LINES,
    "clash": "old\n",
    "removed": "old\n",
    "removed-edited": "old\n",
    "deleted": "old\n",
}
NEW = {
    "same": "same\n",
    "changed": "new\n",
    "edited": "old\n",
    "both": LINES.replace("line 8", "new 8"),
    "clash": "new\n",
    "deleted": "new\n",
    "added": "new\n",
    "added-clash": "new\n",
}


def files(texts: dict[str, str]) -> dict[PurePosixPath, str]:
    return {PurePosixPath(path): text for path, text in texts.items()}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """One whose author has edited it."""
    folder = tmp_path / "led"
    create(folder, files(OLD))
    for name, text in {
        "edited": "mine\n",
        "both": LINES.replace("line 1", "mine 1"),
        "clash": "mine\n",
        "removed-edited": "mine\n",
        "added-clash": "mine\n",
    }.items():
        (folder / name).write_text(text)
    (folder / "deleted").unlink()
    return folder


def test_edits_stay_and_what_is_new_comes(project: Path) -> None:
    changes = update_project(project, files(NEW), project="dra-kit 0.0.1")
    assert changes == [
        FileChange(PurePosixPath("added"), "added"),
        FileChange(PurePosixPath("added-clash"), "conflict"),
        FileChange(PurePosixPath("both"), "merged"),
        FileChange(PurePosixPath("changed"), "changed"),
        FileChange(PurePosixPath("clash"), "conflict"),
        FileChange(PurePosixPath("deleted"), "kept"),
        FileChange(PurePosixPath("removed"), "removed"),
        FileChange(PurePosixPath("removed-edited"), "kept"),
    ]
    there = {path.name: path.read_text() for path in project.iterdir() if path.name != BASE}
    clash = "<<<<<<< yours\nmine\n=======\nnew\n>>>>>>> template\n"
    assert there == {
        "same": "same\n",
        "changed": "new\n",
        "edited": "mine\n",
        "both": LINES.replace("line 1", "mine 1").replace("line 8", "new 8"),
        "clash": clash,
        "removed-edited": "mine\n",
        "added": "new\n",
        "added-clash": clash,
    }


def test_a_second_update_has_nothing_to_do(project: Path) -> None:
    update_project(project, files(NEW), project="dra-kit 0.0.1")
    assert update_project(project, files(NEW), project="dra-kit 0.0.1") == []


def test_a_project_without_its_base_is_refused(project: Path) -> None:
    (project / BASE).unlink()
    with pytest.raises(ConfigurationError, match="cannot determine your changes"):
        update_project(project, files(NEW), project="dra-kit 0.0.1")


def tree(project: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in project.iterdir() if path.is_file()}


def test_update_writes_nothing_if_a_file_cannot_be_merged(project: Path) -> None:
    (project / "clash").write_bytes(b"caf\xe9\n")
    before = tree(project)
    with pytest.raises(ConfigurationError, match=r"clash cannot be merged with the template: it is not UTF-8"):
        update_project(project, files(NEW), project="dra-kit 0.0.1")
    assert tree(project) == before


def test_a_file_that_the_template_leaves_alone_may_hold_anything(project: Path) -> None:
    (project / "edited").write_bytes(b"caf\xe9\n")
    update_project(project, files(NEW), project="dra-kit 0.0.1")
    assert (project / "edited").read_bytes() == b"caf\xe9\n"


def test_a_folder_where_the_template_has_a_file_is_named(project: Path) -> None:
    (project / "added").mkdir()
    with pytest.raises(ConfigurationError, match="added cannot be written: Is a directory"):
        update_project(project, files(NEW), project="dra-kit 0.0.1")


@pytest.mark.parametrize("text", ["", "{", "[]", "kind: big", "project: led\ndriver: 5\npackage: led", "a: *b"])
def test_update_reports_invalid_answers(text: str, project: Path) -> None:
    (project / FILE).write_text(text)
    with pytest.raises(ConfigurationError, match=f"{FILE} has no valid answers of `dra-kit new`: .*restore it"):
        read_answers(project)


def git(project: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    command = ["git", *identity, "-C", str(project), *arguments]
    subprocess.run(command, check=True, capture_output=True)


def commit(project: Path, *options: str) -> None:
    """Make a repository of a folder, with all files committed."""
    git(project, "init", "-q", *options)
    commit_all(project, "made")


def commit_all(project: Path, message: str) -> None:
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", message)


def older(project: Path, path: str, text: str) -> None:
    """As if the template had made another text the last time."""
    base = json.loads((project / BASE).read_text())
    base[path] = text
    (project / BASE).write_text(json.dumps(base))
    (project / path).write_text(text)


def test_update_command_lists_changes(tmp_path: Path) -> None:
    run("new", "led", cwd=tmp_path)
    project = tmp_path / "led"
    older(project, "Makefile", "old:\n")
    older(project, ".gitignore", "old\n")
    (project / ".gitignore").write_text("mine\n")
    told = run("update", "led", cwd=tmp_path, code=1)
    assert told == (
        "conflict  .gitignore\nchanged   Makefile\n1 file has conflicts; search for <<<<<<< and resolve them\n"
    )
    (project / ".gitignore").write_text("mine\n")
    assert run("update", "led", cwd=tmp_path) == "nothing to do\n"


def test_uncommitted_changes_are_refused_unless_forced(tmp_path: Path) -> None:
    run("new", "led", cwd=tmp_path)
    project = tmp_path / "led"
    commit(project)
    assert run("update", cwd=project) == "nothing to do\n"
    (project / "README.md").write_text("mine\n")
    told = run("update", cwd=project, code=2)
    assert "has uncommitted changes (M README.md)" in told
    assert run("update", "--force", cwd=project) == "nothing to do\n"


def test_update_rejects_folder_that_new_did_not_create(tmp_path: Path) -> None:
    assert "`dra-kit new` did not create" in run("update", cwd=tmp_path, code=2)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A disk on which larger ones cannot be written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("large", ["changed", BASE])
def test_unwritable_file_is_unchanged_and_the_next_update_continues(project: Path, large: str) -> None:
    new = {**NEW, "changed": "new\n" * (400 if large == "changed" else 1)}
    before = (project / large).read_text()
    with files_of_at_most(150), pytest.raises(ConfigurationError, match=f"{large} cannot be written: File too large"):
        update_project(project, files(new), project="dra-kit 0.0.1")
    assert (project / large).read_text() == before
    assert not [path for path in project.iterdir() if path.name.startswith(".dra-kit-")]
    update_project(project, files(new), project="dra-kit 0.0.1")
    assert (project / "changed").read_text() == new["changed"]
    assert (project / "both").read_text() == LINES.replace("line 1", "mine 1").replace("line 8", "new 8")


def test_a_new_script_can_be_run(project: Path) -> None:
    update_project(project, files({**OLD, "added": "#!/bin/sh\n", "added-text": "text\n"}), project="dra-kit 0.0.1")
    modes = [(project / name).stat().st_mode & 0o111 for name in ("added", "added-text")]
    assert modes == [0o111, 0]


def test_a_script_can_be_run_after_an_update(project: Path) -> None:
    (project / "changed").chmod(0o755)
    update_project(project, files(NEW), project="dra-kit 0.0.1")
    assert (project / "changed").stat().st_mode & 0o777 == 0o755
