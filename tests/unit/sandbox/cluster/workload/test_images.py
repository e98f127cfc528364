"""Folders that stand for images: which one, what a container runs then, and drivers whose image is unknown."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dra_kit.client.resources import PODS
from dra_kit.errors import ConfigurationError
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.containers.images import ImageStore, LocalImage, parse_image, repository
from tests.unit.sandbox.cluster.kubelet.polling import until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an image with a program."""
    program = tmp_path / "usr" / "bin" / "oven"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "$@" from "$0" heat=$HEAT in $(pwd)\n')
    program.chmod(0o755)
    return tmp_path


def settings(folder: Path, **fields: Any) -> None:
    (folder / ".image.json").write_text(json.dumps(fields))


def pod(image: str = "kitchen/oven:1", *, volume: str = "", owner: str = "", **container: Any) -> dict[str, Any]:
    volumes = [{"name": "v", "hostPath": {"path": volume}}] if volume else []
    owners = [{"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "u"}] if owner else []
    return {
        "metadata": {"name": "p", "namespace": "kitchen", "ownerReferences": owners},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "c", "image": image, **container}],
            "volumes": volumes,
        },
    }


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("oven", "oven"),
        ("oven:1", "oven"),
        ("docker.io/library/oven:1", "oven"),
        ("docker.io/kitchen/oven", "kitchen/oven"),
        ("registry.example:5000/kitchen/oven", "registry.example:5000/kitchen/oven"),
        ("registry.example:5000/kitchen/oven:v1@sha256:abc", "registry.example:5000/kitchen/oven"),
    ],
)
def test_a_repository_has_no_tag(reference: str, expected: str) -> None:
    assert repository(reference) == expected


def test_a_whole_name_comes_before_a_repository(folder: Path) -> None:
    any_tag, second = LocalImage("kitchen/oven", folder), LocalImage("kitchen/oven:2", folder)
    store = ImageStore([any_tag, second])

    assert store.find("kitchen/oven:2") is second
    assert store.find("kitchen/oven:1@sha256:abc") is any_tag
    assert store.find("kitchen/oven") is any_tag
    assert store.find("kitchen/grill:2") is None


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ({}, ("/usr/bin/oven", "--pizza", "hot")),
        ({"args": ["cold"]}, ("/usr/bin/oven", "--pizza", "cold")),
        ({"command": ["grill"]}, ("grill",)),
        ({"command": ["grill"], "args": ["cold"]}, ("grill", "cold")),
    ],
)
def test_entry_point_and_arguments_are_combined_as_in_kubernetes(
    folder: Path, container: dict[str, Any], expected: tuple[str, ...]
) -> None:
    settings(folder, Entrypoint=["/usr/bin/oven", "--pizza"], Cmd=["hot"], User="1000")
    store = ImageStore([parse_image(f"kitchen/oven={folder}")])

    assert store.command({"image": "kitchen/oven:1", **container}) == expected


@pytest.mark.parametrize(
    "fields", [{}, {"Entrypoint": []}, {"Cmd": ["/usr/bin/oven"]}, {"Entrypoint": None, "Cmd": None, "Env": None}]
)
def test_the_arguments_of_an_image_without_an_entry_point_are_the_command(folder: Path, fields: dict[str, Any]) -> None:
    settings(folder, **fields)
    store = ImageStore([parse_image(f"kitchen/oven={folder}")])

    assert store.command({"image": "kitchen/oven:1", "args": ["/usr/bin/oven", "cold"]}) == ("/usr/bin/oven", "cold")


def test_the_arguments_of_an_image_without_settings_are_not_a_command(folder: Path) -> None:
    store = ImageStore([parse_image(f"kitchen/oven={folder}")])
    driver = pod(owner="DaemonSet", args=["--hot"])

    assert not store.command({"image": "kitchen/oven:1", "args": ["--hot"]})
    assert f"{folder / '.image.json'} does not exist" in ImageStore(
        [parse_image(f"kitchen/oven={folder}")], charts=["kitchen"]
    ).lacking(driver, driver["spec"]["containers"][0])


@pytest.mark.parametrize("text", ["kitchen/oven", "=x", "kitchen/oven="])
def test_an_image_needs_name_and_folder(text: str) -> None:
    with pytest.raises(ConfigurationError, match="use --image NAME=DIR"):
        parse_image(text)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a folder; create it"):
        parse_image(f"kitchen/oven={tmp_path / 'x'}")


def test_invalid_settings_are_refused(folder: Path) -> None:
    settings(folder, Entrypoint="/usr/bin/oven")

    with pytest.raises(ConfigurationError, match=r"\.image\.json is invalid: Expected `array"):
        parse_image(f"kitchen/oven={folder}")


def test_only_containers_of_drivers_need_an_image() -> None:
    def lacking(one: dict[str, Any], charts: Sequence[str] = ("kitchen",)) -> str:
        store = ImageStore(charts=charts)
        return store.lacking(one, one["spec"]["containers"][0])

    assert "--image kitchen/oven=DIR" in lacking(pod(owner="DaemonSet"))
    assert "--image kitchen/oven=DIR" in lacking(pod(volume="/var/lib/kubelet/plugins/oven.example.com"))
    assert "--image kitchen/oven=DIR" in lacking(pod(volume="/var/lib/kubelet/plugins_registry/", args=["x"]))
    assert not lacking(pod(owner="DaemonSet", command=["oven"]))
    assert not lacking(pod())
    assert not lacking(pod(volume="/var/lib/oven"))
    assert not lacking(pod(owner="DaemonSet"), charts=())


@asynccontextmanager
async def cluster(*images: LocalImage) -> AsyncIterator[Sandbox]:
    async with Sandbox([], SandboxSettings(images=images, time_scale=10)) as sandbox:
        yield sandbox


@pytest.mark.processes
async def test_a_container_runs_the_entry_point_of_its_image(folder: Path) -> None:
    (folder / "srv").mkdir()
    settings(folder, Entrypoint=["oven"], Cmd=["hot"], Env=["HEAT=high", "PATH=/usr/bin:/bin"], WorkingDir="/srv")
    entry = parse_image(f"kitchen/oven={folder}")
    settings(folder, Cmd=["oven", "hot"], WorkingDir="/srv")
    async with cluster(entry, parse_image(f"kitchen/grill={folder}")) as sandbox:
        for name, body in (
            ("entry", pod()),
            ("named", pod(command=["/usr/bin/oven", "x"])),
            ("arguments", pod("kitchen/grill", args=["/usr/bin/oven", "cold"])),
        ):
            await sandbox.client.create(PODS, {**body, "metadata": {"name": name}}, "default")
        program = folder / "usr" / "bin" / "oven"

        def output(name: str) -> str:
            found = sandbox.nodes[0].runtime.report("default", name, "c")
            return found.log.text if found else ""

        await until(lambda: output("entry") and output("named") and output("arguments"))
        assert output("entry") == f"hot from {program} heat=high in {folder / 'srv'}\n"
        assert output("named") == f"x from {program} heat=high in {folder / 'srv'}\n"
        assert output("arguments") == f"cold from {program} heat= in {folder / 'srv'}\n"


@pytest.mark.processes
async def test_a_driver_without_its_image_is_not_ready() -> None:
    async with cluster() as sandbox:
        body = pod(volume="/var/lib/kubelet/plugins")
        await sandbox.client.create(PODS, {**body, "metadata": {"name": "driver"}}, "default")

        def state() -> Any:
            found = sandbox.informers.objects(PODS).get(("default", "driver"), {})
            [status] = (found.get("status") or {}).get("containerStatuses") or [{}]
            return status

        await until(lambda: state().get("state", {}).get("waiting", {}).get("reason") == "ErrImageNeverPull")
        assert state()["ready"] is False
        assert "start the sandbox with --image kitchen/oven=DIR" in state()["state"]["waiting"]["message"]
