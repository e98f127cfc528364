"""Projects that begin as a copy of a reference driver, with the names of their author."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Final

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from dra_kit.errors import ConfigurationError
from dra_kit.project.rendering import (
    BASE,
    FILE,
    README,
    SEEDS,
    SHARED,
    Answers,
    Kind,
    Seed,
    create,
    installed_version,
    read_answers,
    read_seedling,
    version_range,
)
from dra_kit.project.update import FileChange, files_without_seed, update_project
from tests.unit.project.projects import SEEDED, rendered
from tests.unit.project.test_copier import refused
from tests.unit.project.test_new import run, run_on_terminal

REPOSITORY: Final = Path(__file__).parents[3]
LONGEST: Final = Answers("p" * 40, f"{'d' * 44}.example.com", "p" * 40)
KINDS = pytest.mark.parametrize("kind", SEEDS)


def reference(kind: Kind) -> Path:
    """The folder of the reference driver."""
    return REPOSITORY / SEEDS[kind].folder


def own(kind: Kind) -> Answers:
    """The answers of the reference driver, as if it were created as one of this kind."""
    answers, _ = read_answers(reference(kind))
    return replace(answers, kind=kind)


def test_each_kind_has_a_project_in_the_tests() -> None:
    assert {answers.kind for answers in SEEDED} == set(SEEDS)


@KINDS
def test_project_with_the_names_of_the_reference_driver_has_its_files(kind: Kind) -> None:
    files, folder = rendered(own(kind)), reference(kind)
    of_template = {README, PurePosixPath("Makefile"), PurePosixPath(FILE)}
    differing = {path for path, text in files.items() if text != (folder / path).read_text(encoding="utf-8")}
    assert differing <= of_template

    made = ("_cache", "__pycache__", ".hypothesis", "build", "dist", "wheelhouse", ".venv", ".egg-info")
    there = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    left = {PurePosixPath(path) for path in there if not any(part.endswith(made) for part in path.parts)} - files.keys()
    left = {path for path in left if not any(path.is_relative_to(without) for without in SEEDS[kind].without)}
    assert {str(path) for path in left} <= {BASE, "values.yaml"}


@KINDS
def test_what_a_project_takes_of_the_reference_driver_is_in_the_wheel(kind: Kind) -> None:
    """One compared with the other: tests/scaffold."""
    build = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    shipped = build["targets"]["wheel"]["force-include"]
    taken = {path for path in rendered(own(kind)) if path.parts[0] not in SHARED}
    needed = {*(path.parts[0] for path in taken), FILE, "Makefile", "README.md"}
    prefix = f"{SEEDS[kind].folder}/"
    of_seed = {name: place for name, place in shipped.items() if name.startswith(prefix)}
    assert of_seed == {f"{prefix}{name}": f"dra_kit/share/{prefix}{name}" for name in needed}


@st.composite
def names(draw: st.DrawFn) -> Answers:
    """Return names of a project of which none follows from another."""

    def free(question: str, pattern: str) -> str:
        return draw(st.from_regex(pattern, fullmatch=True).filter(lambda name: not refused(question, name)))

    driver = free("driver", r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?(\.[a-z]{1,8}){1,3}")
    return Answers(
        free("project", r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?"), driver, free("package", r"[a-z][a-z0-9_]{0,39}")
    )


def foreign(kind: Kind, answers: Answers) -> re.Pattern[str]:
    """What may not be in a project: names of the reference driver, and places in this repository."""
    original = own(kind)
    words = [original.package, original.project, original.driver, *SEEDS[kind].drivers, *SEEDS[kind].classes]
    mine = (answers.project, answers.driver, answers.package)
    words = [re.escape(word) for word in words if not any(word in name for name in mine)]
    return re.compile("|".join([*words, r"\bgpu-driver\b", r"\bexamples/", r"\bcharts/dra-driver", r"\.\./\.\./docs"]))


@pytest.mark.processes
@KINDS
@settings(max_examples=4, deadline=None)
@given(drawn=st.lists(names(), min_size=3, max_size=3))
@example(drawn=[LONGEST, Answers("a", "a.b", "a"), Answers("z", "z.z", "z" * 40)])
@example(drawn=[Answers("tests-x", "x.tests", "tests_x"), Answers("dra", "dra.cpu.example.com", "cpu")])
def test_any_names_leave_nothing_of_the_original_and_nothing_to_format(
    kind: Kind, drawn: list[Answers], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("projects")
    for number, given_names in enumerate(drawn):
        answers = replace(given_names, kind=kind)
        files = rendered(answers)
        word = foreign(kind, answers).search
        found = {str(path): (word(str(path)) or word(text)) for path, text in files.items()}
        assert {path: match[0] for path, match in found.items() if match} == {}
        create(folder / str(number), files)
    for command in (["check"], ["format", "--check", "--diff"]):
        made = subprocess.run(
            [Path(sys.executable).with_name("ruff"), *command, "--no-cache", "."],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stdout + made.stderr


@pytest.fixture(params=SEEDED, ids=lambda answers: answers.kind)
def answers(request: pytest.FixtureRequest) -> Answers:
    found: Answers = request.param
    return found


def test_links_of_a_project_lead_to_its_files(answers: Answers) -> None:
    files = rendered(answers)
    there = {str(place) for path in files for place in (path, *path.parents)}
    links = {
        (path, normpath(path.parent / target.partition("#")[0]))
        for path, text in files.items()
        if path.suffix == ".md"
        for target in re.findall(r"\]\(([^):\s]+)\)", text)
    }
    assert len(links) > 5
    assert {link for link in links if link[1] not in there} == set()


def test_readme_says_what_to_change_first_and_how_to_install(answers: Answers) -> None:
    sections = re.findall(r"^## (.*)$", rendered(answers)[README], re.MULTILINE)
    assert sections[0] == "What to change first"
    assert {"Files", "Run it", "Develop it"} <= set(sections)
    assert sections.count("Install it") == 1


def test_requirements_have_versions_and_are_those_of_this_release(answers: Answers) -> None:
    project = tomllib.loads(rendered(answers)[PurePosixPath("pyproject.toml")])["project"]
    found = {one.name: one.specifier for one in map(Requirement, project["dependencies"])}
    assert found["dra-kit"] == SpecifierSet(version_range(installed_version()))
    assert [name for name, versions in found.items() if not versions] == []
    assert found.keys() >= {"network": {"pyroute2"}, "cpu": {"pyyaml"}}[answers.kind]


def test_makefile_has_the_stories_of_the_project_and_the_installation_of_all_projects(answers: Answers) -> None:
    files = rendered(answers)
    makefile = files[PurePosixPath("Makefile")]
    stories = re.findall(r"stories/([\w-]+)", makefile)
    assert stories
    assert [story for story in stories if not any(path.is_relative_to(f"stories/{story}") for path in files)] == []
    assert "pip install --quiet --editable '.[dev]'" in makefile
    assert f"helm upgrade --install {answers.project} " in makefile
    assert "this checkout" not in makefile


@pytest.mark.parametrize("webhook", [True, False])
def test_webhook_is_as_answered(answers: Answers, webhook: bool) -> None:
    values = yaml.safe_load(rendered(replace(answers, webhook=webhook))[PurePosixPath("deploy/values.yaml")])
    assert values["webhook"].get("certificate", {}).get("selfMade", False) == webhook


@pytest.fixture
def seed(tmp_path: Path) -> Path:
    """The folder of a small reference driver, as its author works on it."""
    files = {
        FILE: "project: old-driver\ndriver: old.example.com\npackage: old_driver\n",
        "README.md": (
            "# old-driver\n\nAn example.\n\n| file |\n|---|\n| [`x`](src/old_driver/x.py) |\n\n## Devices\n\nSee "
            "[hooks](../../docs/hooks.md), [x](src/old_driver/x.py), [left](left/x.md), [web](https://x.example/#a).\n"
            "\n## Install it\n\nFrom this checkout.\n\n## Limits\n\nNone.\n"
        ),
        "Makefile": "",
        "src/old_driver/x.py": (
            'NAMES = "old-driver old.example.com a.old.example.com two.example.com old_driver.x"\n'
            'OTHERS = "very-old-driver old_drivers gold.example.com old.example.community"\n'
        ),
        "left/x.md": "",
        "values.yaml": "",
        "deploy/values.yaml": "",
        "build/x": "",
        "src/old_driver/__pycache__/x.pyc": "\0",
        "src/old_driver.egg-info/x": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


GITIGNORE: Final = "__pycache__/\n*.egg-info/\nbuild/\n/values.yaml\n"
SMALL: Final = Seed("", without=("left",), drivers={"two.example.com": "two"})


def test_names_are_replaced_as_whole_words_and_all_at_once(seed: Path) -> None:
    names = Answers("new", "old-driver.example", "new_old")
    text = read_seedling(seed, SMALL, names, GITIGNORE).files[PurePosixPath("src/new_old/x.py")]
    assert '"new old-driver.example a.old-driver.example two.old-driver.example new_old.x"' in text
    assert '"very-old-driver old_drivers gold.example.com old.example.community"' in text


def test_long_imports_are_wrapped_and_sorted_as_ruff_does(seed: Path) -> None:
    (seed / "src/old_driver/x.py").write_text(
        "from old_driver.a import first, second  # a comment about two names that this module imports\n"
        "from old_driver.b import (\n    third,\n)\n"
        "from tests.x import y\n\n\n"
        "def f() -> None:\n"
        "    from old_driver.c import fourth  # a comment about one name that is imported in a function\n"
    )
    package = "z" * 40
    text = read_seedling(seed, SMALL, Answers("new", "new.example.com", package), GITIGNORE).files[
        PurePosixPath(f"src/{package}/x.py")
    ]
    assert text == (
        "from tests.x import y\n"
        f"from {package}.a import (  # a comment about two names that this module imports\n"
        "    first,\n    second,\n)\n"
        f"from {package}.b import (\n    third,\n)\n\n\n"
        "def f() -> None:\n"
        f"    from {package}.c import (\n"
        "        fourth,  # a comment about one name that is imported in a function\n    )\n"
    )


def test_what_git_ignores_and_what_needs_other_projects_is_not_taken(seed: Path) -> None:
    files = read_seedling(seed, SMALL, Answers("new", "new.example.com", "new"), GITIGNORE).files
    assert {str(path) for path in files} == {"deploy/values.yaml", "src/new/x.py"}


def test_description_is_taken_of_the_readme_without_dead_links(seed: Path) -> None:
    seedling = read_seedling(seed, SMALL, Answers("new", "new.example.com", "new"), GITIGNORE)
    assert seedling.reference == (
        "| file |\n|---|\n| [`x`](src/new/x.py) |\n\n## Devices\n\nSee hooks, [x](src/new/x.py), left, "
        "[web](https://x.example/#a).\n\n## Limits\n\nNone.\n"
    )


def test_further_driver_keeps_its_name_where_the_driver_does(seed: Path) -> None:
    names = Answers("new", "old.example.com", "new")
    text = read_seedling(seed, SMALL, names, GITIGNORE).files[PurePosixPath("src/new/x.py")]
    assert '"new old.example.com a.old.example.com two.example.com new.x"' in text


def test_driver_name_that_is_too_long_for_a_further_driver_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="it is too long for kind cpu, whose projects have a second driver"):
        rendered(Answers("led", f"{'d' * 51}.example.com", "led", kind="cpu", webhook=False))


@pytest.mark.processes
def test_new_says_where_to_begin_and_asks_for_no_webhook_without_config(tmp_path: Path) -> None:
    told = run_on_terminal("new", "led", cwd=tmp_path, answers="led.acme.example\n\ncpu\n")
    assert "Reject invalid config" not in told
    assert "It is a complete driver." in told
    assert "led/README.md   what to change first" in told
    assert "kind: cpu\nwebhook: false\n" in (tmp_path / "led" / FILE).read_text()


@KINDS
def test_update_merges_changes_of_the_reference_driver(kind: Kind, tmp_path: Path) -> None:
    project, answers = tmp_path / "led", Answers("led", "led.example.com", "led", kind=kind)
    files, path = rendered(answers), PurePosixPath("src/led/settings.py")
    create(project, {**files, path: files[path].replace("Each field is", "All fields are")})
    (project / path).write_text(f"{(project / path).read_text()}# mine\n")
    assert not files_without_seed(project, files, rendered(replace(answers, kind="simple")))
    assert update_project(project, files, project="dra-kit") == [FileChange(path, "merged")]
    assert (project / path).read_text() == f"{files[path]}# mine\n"


@pytest.mark.processes
def test_project_that_is_older_than_the_reference_driver_keeps_its_code(tmp_path: Path) -> None:
    """Kind network was a small variation of kind simple once."""
    project, answers = tmp_path / "led", Answers("led", "led.example.com", "led")
    files = rendered(answers)
    driver, makefile = PurePosixPath("src/led/driver.py"), PurePosixPath("Makefile")
    network = files[driver].replace("fake devices", "fake interfaces")
    older_files = {
        **files,
        driver: network,
        makefile: "old:\n",
        PurePosixPath(FILE): files[PurePosixPath(FILE)].replace("simple", "network"),
    }
    create(project, older_files)
    (project / "README.md").write_text("mine\n")
    assert run("update", "led", cwd=tmp_path) == (
        "led was created when kind network was not a complete driver yet: its code stays as it is, and its kind "
        "becomes simple. For the complete driver, use: dra-kit new NAME --kind network\n"
        "changed   .dra-kit.yml\nchanged   Makefile\n"
        f"led was updated to dra-kit {installed_version()}, with your changes\n"
    )
    assert (project / driver).read_text() == network
    assert (project / "README.md").read_text() == "mine\n"
    assert run("update", "led", cwd=tmp_path) == "nothing to do\n"
    newer = {**files, driver: files[driver].replace("class Provider", "# new\nclass Provider")}
    update_project(project, newer, project="dra-kit")
    assert (project / driver).read_text() == network.replace("class Provider", "# new\nclass Provider")
