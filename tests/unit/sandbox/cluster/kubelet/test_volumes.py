"""Projected volumes: they wait for what they need, and their tokens are renewed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dra_kit.client.resources import CONFIG_MAPS
from tests.unit.sandbox.cluster.kubelet.node import NAMESPACE, Node, node
from tests.unit.sandbox.cluster.kubelet.pods import SLEEPER, pod

NAME = {"fieldPath": "metadata.name"}


def with_volume(*sources: dict[str, Any]) -> dict[str, Any]:
    """A pod without the volume of admission that has another one."""
    volume = {"name": "menu", "projected": {"sources": list(sources)}}
    mounts = [{"name": "menu", "mountPath": "/run/menu"}]
    return pod({**SLEEPER, "volumeMounts": mounts}, automountServiceAccountToken=False, volumes=[volume])


async def test_pod_waits_for_the_config_map_of_a_volume(kitchen: Node) -> None:
    await kitchen.start(with_volume({"configMap": {"name": "menu"}}))

    events = await kitchen.events("FailedMount")
    assert ("FailedMount", 'MountVolume.SetUp failed for volume "menu" : configmap "menu" not found') in events
    assert (await kitchen.pod())["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "ContainerCreating"
    await kitchen.client.create(CONFIG_MAPS, {"metadata": {"name": "menu"}, "data": {"a": "b"}}, NAMESPACE)
    await kitchen.phase("Running")


async def test_key_that_a_volume_names_must_exist(kitchen: Node) -> None:
    await kitchen.client.create(CONFIG_MAPS, {"metadata": {"name": "menu"}, "data": {"a": "b"}}, NAMESPACE)
    await kitchen.start(with_volume({"configMap": {"name": "menu", "items": [{"key": "c", "path": "c"}]}}))

    events = await kitchen.events("FailedMount")
    note = 'MountVolume.SetUp failed for volume "menu" : references non-existent config key: c'
    assert ("FailedMount", note) in events


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/etc/motd", "must be relative path: /etc/motd"),
        ("a/../../b", "must not contain '..': a/../../b"),
        ("..data", "must not start with '..': ..data"),
    ],
)
async def test_file_outside_of_its_volume_is_refused(kitchen: Node, path: str, problem: str) -> None:
    item = {"path": path, "fieldRef": {"fieldPath": "metadata.name"}}
    await kitchen.start(with_volume({"downwardAPI": {"items": [item]}}))

    events = await kitchen.events("FailedMount")

    assert ("FailedMount", f'MountVolume.SetUp failed for volume "menu" : invalid path: {problem}') in events


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        ([{"path": "a", "fieldRef": NAME}, {"path": "a/b", "fieldRef": NAME}], "file exists"),
        ([{"path": ".", "fieldRef": NAME}], "is a directory"),
        ([{"path": "a" * 300, "fieldRef": NAME}], "file name too long"),
        ([{"path": "a\0b", "fieldRef": NAME}], "embedded null byte"),
        ([{"path": "a"}], "unsupported fieldPath: "),
        ([{"path": "a", "resourceFieldRef": {"containerName": "oven", "resource": "limits.cpu"}}],
         "container oven not found"),
    ],
)  # fmt: skip
async def test_volume_that_cannot_be_written_delays_only_its_pod(
    kitchen: Node, items: list[dict[str, Any]], problem: str
) -> None:
    await kitchen.start(with_volume({"downwardAPI": {"items": items}}))

    events = await kitchen.events("FailedMount")

    assert ("FailedMount", f'MountVolume.SetUp failed for volume "menu" : {problem}') in events


async def test_token_is_renewed_before_it_expires(kubelet_dir: Path) -> None:
    async with node(kubelet_dir, time_scale=2000) as made:
        await made.start(with_volume({"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}))
        await made.phase("Running")
        (token,) = kubelet_dir.glob("pods/*/volumes/kubernetes.io~projected/menu/token")
        first = token.read_text()

        await made.is_so(lambda: token.read_text() != first)
