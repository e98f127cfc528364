"""``dra-kit update`` of an untrusted project: it changes only the project, and runs no code of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_kit.errors import ConfigurationError
from dra_kit.project.rendering import BASE, FILE, create
from dra_kit.project.update import update_project
from tests.unit.project.test_new import run
from tests.unit.project.test_update import commit, commit_all, files, git, older

pytestmark = pytest.mark.processes  # git, for each of them
KNOWN = "a text that anyone can guess\n"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "notes").write_text(KNOWN)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "led"
    create(folder, files({"kept": "old\n", "sub/file": "old\n"}))
    return folder


def based(project: Path, base: object) -> None:
    (project / BASE).write_text(json.dumps(base))


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("../outside/notes", "is not in the project"),
        ("sub/../../outside/notes", "is not in the project"),
        ("..", "is not in the project"),
        ("{outside}/notes", "is not in the project"),
        ("//notes", "is not in the project"),
        ("./kept", "dra-kit does not write"),
        ("sub//file", "dra-kit does not write"),
        ("", "dra-kit does not write"),
        ("a\0b", "dra-kit does not write"),
        ("\x1b[2Jkept", "dra-kit does not write"),
        ("..\\outside\\notes", "dra-kit does not write"),
        (".git/hooks/pre-commit", "belongs to git"),
        ("sub/.GIT/config", "belongs to git"),
        (".g\u200cit/config", "dra-kit does not write"),
        ("GIT~1/config", "belongs to git"),
        (".git. /config", "belongs to git"),
        (".git::$INDEX_ALLOCATION/config", "belongs to git"),
    ],
)
def test_update_refuses_a_base_that_names_what_is_not_the_projects(
    name: str, problem: str, project: Path, outside: Path, tmp_path: Path
) -> None:
    based(project, {"kept": "old\n", name.format(outside=outside): KNOWN})
    before = everything(tmp_path)
    with pytest.raises(ConfigurationError, match=problem):
        update_project(project, files({"kept": "new\n"}), project="dra-kit 0.0.1")
    assert everything(tmp_path) == before


@pytest.mark.parametrize(
    "base",
    [*map(json.dumps, ([], "text", {"kept": 5}, {"kept": None}, {"kept": ["old\n"]})), "[" * 100_000],
    ids=["list", "text", "number", "null", "texts", "nested too deeply"],
)
def test_update_refuses_a_base_that_is_not_paths_with_texts(base: str, project: Path) -> None:
    (project / BASE).write_text(base)
    with pytest.raises(ConfigurationError, match="cannot determine your changes"):
        update_project(project, files({"kept": "new\n"}), project="dra-kit 0.0.1")


@pytest.mark.parametrize("name", [BASE, FILE])
def test_update_refuses_records_that_are_links(name: str, tmp_path: Path) -> None:
    run("new", "led", cwd=tmp_path)
    record = tmp_path / "led" / name
    record.rename(tmp_path / "record")
    record.symlink_to(tmp_path / "record")
    before = (tmp_path / "record").read_bytes()
    assert "is a link" in run("update", "led", cwd=tmp_path, code=2)
    assert (tmp_path / "record").read_bytes() == before


@pytest.mark.parametrize("new", [{"sub/file": "new\n"}, {}], ids=["changed by the template", "removed by it"])
@pytest.mark.parametrize("dangling", [False, True])
@pytest.mark.parametrize("link", ["sub/file", "sub"])
def test_update_keeps_links(link: str, dangling: bool, new: dict[str, str], project: Path, outside: Path) -> None:
    (outside / "file").write_text("old\n")
    (project / "sub" / "file").unlink()
    if link == "sub":
        (project / "sub").rmdir()
    target = outside if link == "sub" else outside / "file"
    (project / link).symlink_to(outside / "missing" if dangling else target)
    before = everything(outside)
    changes = update_project(project, files({"kept": "old\n", **new}), project="dra-kit 0.0.1")
    assert [(str(change.path), change.outcome) for change in changes] == [("sub/file", "kept")]
    assert changes[0].why == ("a link" if link == "sub/file" else "sub is a link")
    assert (project / link).is_symlink()
    assert everything(outside) == before


def test_update_creates_no_file_below_a_link(project: Path, outside: Path) -> None:
    (project / "more").symlink_to(outside)
    changes = update_project(project, files({"kept": "old\n", "sub/file": "old\n", "more/a/b": "new\n"}), project="0")
    assert [(str(change.path), change.outcome, change.why) for change in changes] == [
        ("more/a/b", "kept", "more is a link")
    ]
    assert [path.name for path in outside.iterdir()] == ["notes"]


def test_update_does_not_write_through_a_hard_link(project: Path, outside: Path) -> None:
    (project / "kept").unlink()
    (outside / "notes").write_text("old\n")
    os.link(outside / "notes", project / "kept")
    update_project(project, files({"kept": "new\n", "sub/file": "old\n"}), project="dra-kit 0.0.1")
    assert (project / "kept").read_text() == "new\n"
    assert (outside / "notes").read_text() == "old\n"


@pytest.mark.parametrize("base", ["old\n", None])
def test_update_keeps_what_is_not_a_regular_file_and_does_not_wait_for_it(base: str | None, project: Path) -> None:
    (project / "kept").unlink()
    os.mkfifo(project / "kept")
    based(project, {"sub/file": "old\n"} | ({"kept": base} if base else {}))
    changes = update_project(project, files({"kept": "new\n", "sub/file": "old\n"}), project="dra-kit 0.0.1")
    assert [(change.outcome, change.why) for change in changes] == [("kept", "not a regular file")]
    assert (project / "kept").is_fifo()


def test_the_command_reports_links_as_kept(tmp_path: Path, outside: Path) -> None:
    run("new", "led", cwd=tmp_path)
    older(tmp_path / "led", "AGENTS.md", KNOWN)
    (tmp_path / "led" / "AGENTS.md").unlink()
    (tmp_path / "led" / "AGENTS.md").symlink_to(outside / "notes")
    assert "kept      AGENTS.md (a link)\n" in run("update", "led", cwd=tmp_path)
    assert (outside / "notes").read_text() == KNOWN


# -- what the project's git repository names


def config(name: str, value: str) -> Callable[[Path, str], None]:
    def write(project: Path, program: str) -> None:
        git(project, "config", name, value.format(program=program))

    return write


def included(project: Path, program: str) -> None:
    (project / ".git" / "more").write_text(f"[core]\n\tfsmonitor = {program}\n")
    git(project, "config", "include.path", "more")


def filtered(kind: str) -> Callable[[Path, str], None]:
    def write(project: Path, program: str) -> None:
        (project / ".git" / "info").mkdir(exist_ok=True)
        (project / ".git" / "info" / "attributes").write_text("* filter=any diff=any merge=any\n")
        for name, value in ((f"filter.any.{kind}", program), ("filter.any.required", "true")):
            git(project, "config", name, value)
        (project / "README.md").touch()  # git compares the content again

    return write


def hooked(project: Path, program: str) -> None:
    for name in ("post-index-change", "fsmonitor-watchman", "reference-transaction", "pre-auto-gc"):
        (project / ".git" / "hooks" / name).parent.mkdir(exist_ok=True)
        (project / ".git" / "hooks" / name).symlink_to(program)
    (project / "README.md").touch()  # git writes its index again


def hooked_elsewhere(project: Path, program: str) -> None:
    hooked(project, program)
    (project / ".git" / "hooks").rename(project.parent / "hooks")
    git(project, "config", "core.hooksPath", str(project.parent / "hooks"))


def with_submodule(project: Path, program: str) -> None:
    sub = project / "sub"
    sub.mkdir()
    (sub / "file").write_text("text\n")
    commit(sub)
    git(project, "add", "sub")
    git(project, "commit", "-q", "-m", "sub")
    git(sub, "config", "core.fsmonitor", program)


def elsewhere(project: Path, program: str) -> None:
    git(project, "config", "core.fsmonitor", program)
    (project / ".git").rename(project.parent / "repository")
    (project / ".git").write_text("gitdir: ../repository\n")


WAYS: dict[str, Callable[[Path, str], None]] = {
    "fsmonitor": config("core.fsmonitor", "{program}"),
    "included": included,
    "clean": filtered("clean"),
    "process": filtered("process"),
    "hooks": hooked,
    "hooks path": hooked_elsewhere,
    "submodule": with_submodule,
    "elsewhere": elsewhere,
    "pager": config("core.pager", "{program}"),
    "alias": config("alias.status", "!{program}"),
    "external diff": config("diff.external", "{program}"),
    "ssh": config("core.sshCommand", "{program}"),
}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    found = tmp_path / "program"
    found.write_text(f"#!/bin/sh\ntouch {tmp_path}/RAN\ncat\n")
    found.chmod(0o755)
    return found


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    run("new", "led", cwd=tmp_path)
    project = tmp_path / "led"
    commit(project, "-b", "main")
    return project


@pytest.mark.parametrize("way", WAYS)
def test_update_runs_no_program_that_the_repository_names(
    way: str, repository: Path, program: Path, tmp_path: Path
) -> None:
    WAYS[way](repository, str(program))
    (tmp_path / "RAN").unlink(missing_ok=True)  # the test's own git has obeyed
    assert "nothing to do" in run("update", cwd=repository)
    assert not (tmp_path / "RAN").exists()


def test_update_runs_no_program_that_a_bare_repository_in_the_project_names(program: Path, tmp_path: Path) -> None:
    """Which comes with every clone, since its folder is not called .git."""
    run("new", "led", cwd=tmp_path)
    git(tmp_path / "led", "init", "-q", "--bare", ".")
    git(tmp_path / "led", "config", "core.worktree", str(tmp_path / "led"))
    git(tmp_path / "led", "config", "core.fsmonitor", str(program))
    git(tmp_path / "led", "config", "core.bare", "false")
    (tmp_path / "RAN").unlink(missing_ok=True)
    assert "nothing to do" in run("update", cwd=tmp_path / "led")
    assert not (tmp_path / "RAN").exists()


def test_update_takes_git_from_no_folder_of_the_project(
    repository: Path, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "git").symlink_to(program)
    commit_all(repository, "a program")
    monkeypatch.setenv("PATH", f".::{os.environ['PATH']}")
    assert "nothing to do" in run("update", cwd=repository)
    assert not (tmp_path / "RAN").exists()


def test_update_merges_by_no_program_that_the_repository_names(repository: Path, program: Path, tmp_path: Path) -> None:
    older(repository, ".gitignore", "old\n")
    (repository / ".gitignore").write_text("mine\n")
    commit_all(repository, "mine")
    for name in ("merge.any.driver", "core.fsmonitor", "diff.external", "core.attributesFile"):
        git(repository, "config", name, str(program))
    (tmp_path / "RAN").unlink(missing_ok=True)
    assert "conflict  .gitignore" in run("update", cwd=repository, code=1)
    assert not (tmp_path / "RAN").exists()


# -- and still the project's state is known


def test_update_of_a_project_in_a_folder_of_a_repository_looks_at_the_project_alone(tmp_path: Path) -> None:
    run("new", "led", cwd=tmp_path)
    commit(tmp_path)
    (tmp_path / "other").write_text("text\n")
    assert "nothing to do" in run("update", "led", cwd=tmp_path)
    (tmp_path / "led" / "README.md").write_text("mine\n")
    assert "led/README.md" in run("update", "led", cwd=tmp_path, code=2)


@pytest.mark.parametrize("command", [["add", "README.md"], ["rm", "-q", "-f", "README.md"]])
def test_update_sees_what_is_staged_and_not_committed(command: list[str], repository: Path) -> None:
    (repository / "README.md").write_text("mine\n")
    git(repository, *command)
    assert "README.md" in run("update", cwd=repository, code=2)


def test_update_sees_files_that_git_does_not_know(repository: Path) -> None:
    (repository / "mine").write_text("mine\n")
    assert "?? mine" in run("update", cwd=repository, code=2)


def test_update_leaves_out_what_the_repository_ignores(repository: Path) -> None:
    (repository / ".git" / "info" / "exclude").write_text("mine\n")
    (repository / "mine").write_text("mine\n")
    assert "nothing to do" in run("update", cwd=repository)


def test_update_understands_work_trees_packed_refs_and_line_ends(repository: Path, tmp_path: Path) -> None:
    git(repository, "pack-refs", "--all")
    git(repository, "config", "core.autocrlf", "true")
    git(repository, "worktree", "add", "-q", str(tmp_path / "second"), "-b", "second")
    readme = tmp_path / "second" / "README.md"
    assert b"\r\n" in readme.read_bytes()
    readme.touch()
    assert "nothing to do" in run("update", cwd=tmp_path / "second")
    readme.write_text("mine\n")
    assert "README.md" in run("update", cwd=tmp_path / "second", code=2)


def test_update_understands_repositories_with_longer_hashes(tmp_path: Path) -> None:
    run("new", "led", cwd=tmp_path)
    project = tmp_path / "led"
    commit(project, "--object-format=sha256")
    assert "nothing to do" in run("update", cwd=project)


def test_update_of_a_repository_that_cannot_be_read_needs_force(repository: Path) -> None:
    (repository / ".git" / "index").write_bytes(b"not an index")
    printed = run("update", cwd=repository, code=2)
    assert "git status of" in printed
    assert "--force" in printed
    assert "nothing to do" in run("update", "--force", cwd=repository)


def test_update_writes_nothing_in_the_repository(repository: Path) -> None:
    (repository / "README.md").touch()
    before = everything(repository / ".git")
    run("update", cwd=repository)
    assert everything(repository / ".git") == before
    git(repository, "fsck")
