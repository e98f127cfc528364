"""docs/reference/lint-rules.md lists the rules; the examples of lint.md match the output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from dra_kit.cli.app import cli
from dra_kit.cli.lint import lint
from dra_kit.diagnosis.lint.check import fix_files
from dra_kit.diagnosis.lint.devices import LintContext
from dra_kit.diagnosis.lint.findings import GROUPS, RULES, fixed_as_text, format_text
from dra_kit.diagnosis.lint.objects import REMOVED_KINDS
from dra_kit.kubernetes.manifests.documents import SourceFile
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.kubernetes.resource.new_object import RESOURCE_KINDS
from tests.unit.diagnosis.lint.texts import claim, device_class, found, pod

REFERENCE = Path(__file__).parents[4] / "docs" / "reference"
PAGE, LISTED = ((REFERENCE / name).read_text(encoding="utf-8") for name in ("lint.md", "lint-rules.md"))


def cell(text: str) -> str:
    return text.replace("|", "&#124;")


def test_the_page_lists_each_rule_in_its_group() -> None:
    listed = {
        group: re.findall(r"^\| `(.+?)` \| (\w+) \| (.+) \| (.*) \|$", text, re.MULTILINE)
        for group, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", LISTED, re.MULTILINE | re.DOTALL)
    }
    expected = {
        group: [(rule.id, rule.level, cell(rule.about), cell(rule.fix)) for rule in rules]
        for group, rules in GROUPS.items()
    }
    assert listed == expected


def test_rule_names_are_unique() -> None:
    assert len(RULES) == sum(len(rules) for rules in GROUPS.values())
    assert [name for name in RULES if not re.fullmatch(r"[a-z]+(-[a-z]+)*", name)] == []


EXPRESSION = 'device.driver == "gpu.example.com" &&\n  device.capacity["gpu.example.com"].memory >= 80'
FLAT = claim().replace("      exactly:\n        deviceClassName", "      deviceClassName")
ASKING = f"{claim()}---\n{pod('[{name: gpu, resourceClaimName: lunch}]', '[{name: gpu, request: gpus}]')}"


def test_the_examples_of_the_page_match_the_output() -> None:
    texts = {"gpu.yaml": device_class(EXPRESSION), "claim.yaml": FLAT, "pod.yaml": ASKING}
    findings = [finding for name, text in texts.items() for finding in found(text, name=name)]
    shown = format_text(findings, files=3, objects=4)
    assert f"```\n{shown}\n```" in PAGE


def test_the_example_of_a_fix_matches_the_output() -> None:
    section = PAGE.partition("## Fix findings")[2]
    before, after = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)[:2]
    (shown,) = re.findall(r"```\n\$ dra-kit lint --fix train.yaml\n(.*?)\n```", section, re.DOTALL)
    made = fix_files([SourceFile("train.yaml", before)], LintContext(UNMODIFIED))
    assert made.files[0].text == after
    assert "\n".join([*fixed_as_text(made.fixed), "", format_text(made.outcome.findings, files=1, objects=1)]) == shown


OLD = PAGE.partition("## Outdated manifests")[2].partition("\n## ")[0]


def test_the_page_documents_each_removed_kind() -> None:
    assert [kind for kind, text in REMOVED_KINDS.items() if f"`{kind}`" not in OLD or text.split()[-1] not in OLD] == []


def test_the_page_documents_each_removed_version() -> None:
    versions = {version.rpartition("/")[2] for kind in RESOURCE_KINDS.values() for version in kind.types} | {
        "v1alpha2",
        "v1alpha3",
    }
    assert [version for version in versions if version not in OLD] == []


@pytest.mark.parametrize("option", [option for param in lint.params for option in param.opts if option[:2] == "--"])
def test_the_page_names_each_option(option: str) -> None:
    assert f"`{option}" in PAGE


def test_the_page_about_releases_shows_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (REFERENCE.parent / "how-to" / "kubernetes-releases.md").read_text(encoding="utf-8")
    [manifest] = re.findall(r"```yaml\n(apiVersion.*?)```", page, re.DOTALL)
    shown = re.findall(r"^```console\n\$ dra-kit (.*?)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "deploy").mkdir()
    for name in ("claim.yaml", "deploy/claim.yaml"):
        (tmp_path / name).write_text(manifest)
    monkeypatch.chdir(tmp_path)

    for command, output in shown:
        assert CliRunner().invoke(cli, command.split()).output == output
    assert len(shown) == 2
