"""What the template makes: no change of it goes unseen."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any, Final, get_args

import pytest
import yaml

from dra_kit.cli.app import COMMANDS
from dra_kit.project.rendering import SEEDS, Answers, Kind, installed_version, project_template, version_range, write
from tests.unit.project.projects import ANSWERS, PROJECTS, committed, rendered

WITHOUT_SEED: Final[list[Kind]] = [kind for kind in get_args(Kind) if kind not in SEEDS]
FROM_1_34_TO_1_37 = {
    "DRAConsumableCapacity",
    "DRADeviceTaints",
    "DRAPartitionableDevices",
    "DRAResourceClaimDeviceStatus",
}
"""Feature gates that every kube-apiserver of these releases knows (pkg/features/kube_features.go)."""


@pytest.fixture(params=ANSWERS, ids=lambda answers: answers.project)
def answers(request: pytest.FixtureRequest) -> Answers:
    found: Answers = request.param
    return found


def test_the_template_makes_what_is_committed(answers: Answers) -> None:
    assert rendered(answers) == committed(PROJECTS / answers.project), "`make golden-projects`, and look at `git diff`"


def test_each_kind_is_committed_and_nothing_else() -> None:
    assert {answers.kind for answers in ANSWERS} == set(WITHOUT_SEED)
    assert {path.name for path in PROJECTS.iterdir()} == {answers.project for answers in ANSWERS}


def test_copier_offers_the_kinds_that_it_can_render() -> None:
    questions = yaml.safe_load((project_template() / "copier.yml").read_text())
    assert questions["kind"]["choices"] == WITHOUT_SEED


def test_copier_gets_the_template_version() -> None:
    questions = yaml.safe_load((project_template() / "copier.yml").read_text())
    assert questions["dra_kit_range"]["default"] == version_range(installed_version())


def test_pod_of_the_demo_is_that_of_the_story(answers: Answers) -> None:
    files = {str(path): text for path, text in rendered(answers).items()}
    demo, story = (list(yaml.safe_load_all(files[path])) for path in ("demo/pod.yaml", "stories/first-device/pod.yaml"))
    assert demo == story


def test_text_files_end_with_one_line_break_and_have_no_spaces_at_the_end(answers: Answers) -> None:
    for path, text in rendered(answers).items():
        assert not text or re.search(r"\S\n\Z", text), path
        assert not re.search(r"[ \t]$", text, flags=re.MULTILINE), path


@pytest.mark.parametrize("kind", WITHOUT_SEED)
@pytest.mark.parametrize("webhook", [True, False], ids=["webhook", "no-webhook"])
def test_names_as_long_as_can_be_need_no_other_format(kind: Kind, webhook: bool, tmp_path: Path) -> None:
    longest = Answers("p" * 40, f"{'d' * 51}.example.com", "p" * 40, kind=kind, webhook=webhook)
    sources = {path: text for path, text in rendered(longest).items() if path.suffix in {".py", ".toml"}}
    for path, text in sources.items():
        write(tmp_path, path, text)
    for command in (["check"], ["format", "--check", "--diff"]):
        made = subprocess.run(
            [Path(sys.executable).with_name("ruff"), *command, "--no-cache", "."],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stdout + made.stderr


def test_files_that_programs_read_can_be_read(answers: Answers) -> None:
    for path, text in rendered(answers).items():
        if path.suffix in {".yaml", ".yml"}:
            list(yaml.safe_load_all(text))
        elif path.suffix == ".toml":
            tomllib.loads(text)


def test_cluster_of_kind_has_what_devices_need(answers: Answers) -> None:
    config: dict[str, Any] = yaml.safe_load((PROJECTS / answers.project / "kind" / "cluster.yaml").read_text())
    assert config.keys() == {"kind", "apiVersion", "featureGates", "nodes"}
    assert (config["kind"], config["apiVersion"]) == ("Cluster", "kind.x-k8s.io/v1alpha4")
    assert config["featureGates"].keys() == FROM_1_34_TO_1_37
    assert set(config["featureGates"].values()) == {True}
    assert [node["role"] for node in config["nodes"]] == ["control-plane", "worker"]


@pytest.mark.skipif(not shutil.which("make"), reason="recipes are NOT checked: make is missing")
@pytest.mark.parametrize("checker", ["bash -n", "shellcheck --shell=sh --severity=warning"])
def test_recipes_of_the_makefile_are_shell(answers: Answers, checker: str, tmp_path: Path) -> None:
    if not shutil.which(checker.split(maxsplit=1)[0]):
        pytest.skip(f"recipes are NOT checked by {checker}: install it, for instance by apt-get install shellcheck")
    project = PROJECTS / answers.project
    targets = re.findall(r"^([a-z-]+):.*##", (project / "Makefile").read_text(), flags=re.MULTILINE)
    development = {"help", "test", "lint", "sandbox", "dev"}
    assert {*development, "image", "kind-up", "kind-load", "kind-demo", "deploy"} <= set(targets)
    # --dry-run prints what would be run
    command = ["make", "--dry-run", "--always-make", *targets]
    made = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True)
    script = tmp_path / "recipes"
    script.write_text(made.stdout)
    checked = subprocess.run([*checker.split(), str(script)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_makefile_calls_commands_that_there_are(answers: Answers) -> None:
    called = re.findall(r"\$\(BIN\)/dra-kit ([a-z]+)", (PROJECTS / answers.project / "Makefile").read_text())
    assert set(called) == {"chart", "conformance", "dev", "lint", "sandbox"}
    assert set(called) <= COMMANDS.keys()


def test_actions_are_pinned_by_commit_with_their_version(answers: Answers) -> None:
    text = rendered(answers)[PurePosixPath(".github/workflows/ci.yml")]
    used = re.findall(r"uses: (.*)", text)
    assert used
    for each in used:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each), each


def test_the_base_image_is_an_argument_pinned_by_digest(answers: Answers) -> None:
    text = rendered(answers)[PurePosixPath("Dockerfile")]
    [default] = re.findall(r"^ARG BASE_IMAGE=(.*)$", text, re.MULTILINE)
    assert re.fullmatch(r"python:3\.\d+-slim@sha256:[0-9a-f]{64}", default)
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE_IMAGE}"}


def test_renovate_renews_both(answers: Answers) -> None:
    """Dependabot does not read ARG BASE_IMAGE (dependabot-core, issue 2057)."""
    config = json.loads(rendered(answers)[PurePosixPath("renovate.json")])
    assert {"config:recommended", "docker:pinDigests", "helpers:pinGitHubActionDigests"} <= set(config["extends"])
    off = [rule for rule in config["packageRules"] if rule.get("enabled") is False]
    assert [rule["matchUpdateTypes"] for rule in off] == [["major", "minor"]]  # digests are renewed


def test_workflow_runs_targets_of_the_makefile(answers: Answers) -> None:
    files = {str(path): text for path, text in rendered(answers).items()}
    jobs = yaml.safe_load(files[".github/workflows/ci.yml"])["jobs"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert runs
    for run in runs:
        make, *targets = run.split()
        assert make == "make"
        for target in targets:
            assert f"\n.PHONY: {target}\n" in files["Makefile"]
