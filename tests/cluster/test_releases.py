"""lint, the sandbox and a real API server say the same of a manifest that works since Kubernetes 1.38 only."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from dra_kit.cli.app import cli
from dra_kit.client.resources import DEVICE_CLASSES
from dra_kit.errors import Invalid
from dra_kit.kubernetes.release import KubernetesVersion, Release
from dra_kit.sandbox.control_plane import ControlPlane
from tests.cluster.plane import Plane

SINCE = KubernetesVersion(1, 38)
EXPRESSION = 'device.driver == "oven.example" && device.attributes["oven.example"].size.includes("large")'
MANIFEST = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "large-ovens"},
    "spec": {"selectors": [{"cel": {"expression": EXPRESSION}}]},
}


@pytest.fixture(name="version")
def fixture_version(plane: Plane) -> KubernetesVersion:
    """The release of the real API server."""
    return KubernetesVersion.parse(json.loads(plane.kubectl("get", "--raw", "/version").stdout)["gitVersion"])


@pytest.fixture(name="manifest")
def fixture_manifest(tmp_path: Path) -> Path:
    path = tmp_path / "ovens.yaml"
    path.write_text(yaml.safe_dump(MANIFEST), encoding="utf-8")
    return path


def test_lint_foresees_the_answer_of_the_api_server(plane: Plane, version: KubernetesVersion, manifest: Path) -> None:
    real = plane.kubectl("create", "--dry-run=server", "-f", str(manifest), check=False)
    lint = CliRunner().invoke(cli, ["lint", "--kubernetes", str(version), str(manifest)])

    assert (real.returncode == 0) is (version >= SINCE), real.stderr
    assert (lint.exit_code == 0) is (version >= SINCE), lint.output


async def test_the_sandbox_answers_like_the_api_server(
    plane: Plane, version: KubernetesVersion, manifest: Path
) -> None:
    real = plane.kubectl("create", "--dry-run=server", "-f", str(manifest), check=False)
    async with ControlPlane(release=Release.of(version)) as sandbox:
        client = await sandbox.connect("test")
        with nullcontext() if version >= SINCE else pytest.raises(Invalid) as refused:
            await client.create(DEVICE_CLASSES, MANIFEST)

    if refused is not None:
        assert "undeclared reference to 'includes'" in real.stderr
        assert "undeclared reference to 'includes'" in str(refused.value)


def test_lint_prints_the_oldest_release_on_which_it_works(manifest: Path) -> None:
    lint = CliRunner().invoke(cli, ["lint", "--kubernetes", f"1.34..{SINCE}", str(manifest)])

    assert f"the oldest release on which all of it works is Kubernetes {SINCE}" in lint.output
