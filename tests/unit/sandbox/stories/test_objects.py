"""Applying the objects of files to an API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dra_kit.apiserver.api import ALPHA_VERSIONS, RuntimeConfig
from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.release import KubernetesVersion, Release
from dra_kit.sandbox.control_plane import ControlPlane
from dra_kit.sandbox.stories.manifests import apply_files

MENU = "{apiVersion: v1, kind: ConfigMap, metadata: {name: menu}, data: {dish: pizza}}"
POD = "containers: [{name: eater, image: x, resorces: {claims: []}}]"


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with ControlPlane() as control_plane:
        yield await control_plane.connect("test")


async def apply_text(client: Client, directory: Path, text: str) -> list[str]:
    (directory / "order.yaml").write_text(text)
    return [item.name for item in await apply_files(client, [directory / "order.yaml"])]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{kind: Pod, metadata: {name: a}}", "document 1 lacks apiVersion, which must be a string"),
        ("{apiVersion: '', kind: Pod, metadata: {name: a}}", "document 1 lacks apiVersion, which must be a string"),
        ("- 1", "is not an object"),
        ("{apiVersion: v1, kind: Pod}", "lacks metadata.name"),
        ("{apiVersion: a.example/v1, kind: A, metadata: {name: a}}", "the API server has no kind A of a.example/v1"),
        ("{apiVersion: apps/, kind: Pod, metadata: {name: a}}", "the API server has no kind Pod of apps/"),
        (
            "{apiVersion: resource.k8s.io/v1beta1, kind: ResourceClaim, metadata: {name: a}}",
            "write resource.k8s.io/v1 and its fields, or switch it on with --runtime-config resource.k8s.io/v1beta1=",
        ),
        (
            "{apiVersion: resource.k8s.io/v1alpha3, kind: ResourcePoolStatusRequest, metadata: {name: a}}",
            "this version is off by default; switch it on with --runtime-config resource.k8s.io/v1alpha3=true",
        ),
        (
            "{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: a}}",
            "the API server has no kind HorizontalPodAutoscaler of autoscaling/v2",
        ),
        (
            f"{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, spec: {{{POD}}}}}",
            'strict decoding error: unknown field "spec.containers[0].resorces"',
        ),
        (
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: elsewhere}}",
            'namespaces "elsewhere" not found (HTTP 404); add the Namespace to the file',
        ),
    ],
)
async def test_rejected_object_is_reported_in_one_line(client: Client, tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        await apply_text(client, tmp_path, text)

    assert str(caught.value).startswith(f"manifest {tmp_path / 'order.yaml'}, document 1")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", ["v1", "v1beta2"])
async def test_the_remedy_for_a_version_is_one_that_the_release_serves(tmp_path: Path, version: str) -> None:
    release, config = Release.alpha(KubernetesVersion(1, 36)), RuntimeConfig.parse(ALPHA_VERSIONS)
    text = f"{{apiVersion: resource.k8s.io/{version}, kind: DeviceTaintRule, metadata: {{name: a}}}}"
    async with (
        ApiServer(release=release, runtime_config=config) as server,
        Client(Credentials(server.connection()), user_agent="tests/1") as client,
    ):
        with pytest.raises(ConfigurationError, match=r"; write resource\.k8s\.io/v1alpha3 and its fields"):
            await apply_text(client, tmp_path, text)


async def test_unreadable_file_is_reported_by_name(client: Client, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=rf"{tmp_path}/order\.yaml.* cannot be read: line 1, column 2"):
        await apply_text(client, tmp_path, "{")


async def test_update_of_an_object_is_checked_like_its_creation(client: Client, tmp_path: Path) -> None:
    assert await apply_text(client, tmp_path, MENU) == ["menu"]
    assert await apply_text(client, tmp_path, MENU.replace("dish: pizza", "dish: pasta")) == ["menu"]

    with pytest.raises(ConfigurationError, match='unknown field "dta"'):
        await apply_text(client, tmp_path, MENU.replace(" data:", " dta:"))


async def test_a_folder_without_manifests(client: Client, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no YAML or JSON file"):
        await apply_files(client, [tmp_path])


@pytest.mark.parametrize(
    ("release", "version", "kind", "problem"),
    [
        (
            "1.38",
            "resource.k8s.io/v1beta1",
            "ResourceClaim",
            "of resource.k8s.io/v1beta1: Kubernetes 1.38 has removed this version; write resource.k8s.io/v1 and its",
        ),
        (
            "1.35",
            "resource.k8s.io/v1beta2",
            "DeviceTaintRule",
            "this version exists since Kubernetes 1.36, not in 1.35; correct apiVersion and kind",
        ),
        (
            "1.37",
            "scheduling.k8s.io/v1beta1",
            "PodGroup",
            "it needs the feature gate GenericWorkload; switch it on with --feature-gates GenericWorkload=true",
        ),
    ],
)
async def test_version_that_no_option_switches_on_has_another_remedy(
    release: str, version: str, kind: str, problem: str, tmp_path: Path
) -> None:
    async with ControlPlane(release=Release.parse(release)) as control_plane:
        client = await control_plane.connect("test")
        with pytest.raises(ConfigurationError) as caught:
            await apply_text(client, tmp_path, f"{{apiVersion: {version}, kind: {kind}, metadata: {{name: a}}}}")

    assert problem in str(caught.value)
    assert "--runtime-config" not in str(caught.value)
