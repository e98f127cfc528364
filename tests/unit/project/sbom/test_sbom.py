"""SBOMs: of the wheel, by what is pinned for images, and of an environment, by what is installed in it."""

from __future__ import annotations

import json
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dra_kit.cli.app import cli
from dra_kit.project.sbom import (
    FILE,
    Component,
    cyclonedx_document,
    cyclonedx_text,
    generated,
    installed_components,
    pinned_components,
)

PINS = Path(__file__).parents[4] / "requirements" / "runtime.txt"


def distribution(folder: Path, name: str, metadata: str) -> PathDistribution:
    made = folder / f"{name}-1.0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n{metadata}")
    return PathDistribution(made)


def test_that_of_the_wheel_is_of_the_pins() -> None:
    assert FILE.read_text(encoding="utf-8") == generated(), "make lock, or python -m dra_kit.project.sbom"


def test_every_pin_is_in_it_with_its_hashes() -> None:
    found = {item["name"]: item for item in json.loads(FILE.read_text())["components"]}
    hashes = PINS.read_text().count("--hash=sha256:")
    assert len(found) == PINS.read_text().count("==")
    assert sum(len(item["hashes"]) for item in found.values()) == hashes
    assert found["kopf"]["purl"] == f"pkg:pypi/kopf@{found['kopf']['version']}"


def test_no_address_is_in_it() -> None:
    assert "://" not in FILE.read_text()


def test_sbom_lists_dependencies_of_dra_kit() -> None:
    made = json.loads(FILE.read_text())
    [edges] = made["dependencies"]
    assert edges["ref"] == made["metadata"]["component"]["bom-ref"]
    assert set(edges["dependsOn"]) < {item["bom-ref"] for item in made["components"]}
    assert any("/kopf@" in item for item in edges["dependsOn"])


def test_a_pin_may_have_a_condition(tmp_path: Path) -> None:
    file = tmp_path / "pins.txt"
    file.write_text(
        f"Some_Thing==1.0 ; sys_platform == 'linux' \\\n    --hash=sha256:{'a' * 64} \\\n    --hash=sha256:{'b' * 64}\n"
        f"other==2.0 \\\n    --hash=sha256:{'c' * 64}\n"
    )
    assert list(pinned_components(file)) == [
        Component("some-thing", "1.0", ("a" * 64, "b" * 64)),
        Component("other", "2.0", ("c" * 64,)),
    ]


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ("License-Expression: MIT OR Apache-2.0\nLicense: old words\n", "MIT OR Apache-2.0"),
        ("License: BSD\n", "BSD"),
        (f"License: {'the whole text ' * 20}\nClassifier: License :: OSI Approved :: MIT License\n", "MIT License"),
        ("", ""),
    ],
    ids=["expression", "words", "text", "nothing"],
)
def test_the_licence_is_what_the_distribution_says(metadata: str, licence: str, tmp_path: Path) -> None:
    [component] = installed_components([distribution(tmp_path, "thing", metadata)])
    assert component.licence == licence


def test_sbom_omits_requirements_that_are_not_installed(tmp_path: Path) -> None:
    metadata = "Requires-Dist: other>=1\nRequires-Dist: absent\nRequires-Dist: extra; extra == 'all'\n"
    found = installed_components(
        [distribution(tmp_path, name, metadata if name == "thing" else "") for name in ("thing", "other", "extra")]
    )
    assert {item.name: item.requires for item in found} == {"extra": (), "other": (), "thing": ("other",)}


def test_one_component_is_one_line() -> None:
    parts = [Component("b", "1", licence="MIT", requires=("c",)), Component("c", "2")]
    whole = cyclonedx_text(cyclonedx_document(Component("a", "0", requires=("b",)), parts))
    made: Any = json.loads(whole)
    assert [item["purl"] for item in made["components"]] == ["pkg:pypi/b@1", "pkg:pypi/c@2"]
    assert made["dependencies"] == [
        {"ref": "pkg:pypi/a@0", "dependsOn": ["pkg:pypi/b@1"]},
        {"ref": "pkg:pypi/b@1", "dependsOn": ["pkg:pypi/c@2"]},
    ]
    assert sum('"pkg:pypi/b@1", "name"' in line for line in whole.splitlines()) == 1


def test_sbom_command_describes_this_environment() -> None:
    made = json.loads(CliRunner().invoke(cli, ["sbom"]).output)
    assert made["metadata"]["component"]["name"] == "dra-kit"
    assert "pydantic" in {item["name"] for item in made["components"]}
    refused = CliRunner().invoke(cli, ["sbom", "--name", "no-such-driver"])
    assert refused.exit_code == 2
    assert "distribution no-such-driver is not installed" in refused.output
