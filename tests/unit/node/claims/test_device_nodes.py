"""Device files that a claim names and its node may lack: told by the driver, before the container runtime finds out."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

import dra_kit as dra
from tests.unit.node.drivers import Doing, driver
from tests.unit.node.role import Node


def giving(*nodes: dra.DeviceNode, **more: Any) -> Doing:
    return Doing(lambda claim, device: dra.Prepared(device_nodes=nodes, **more))


@pytest.mark.parametrize("of_claim", [False, True])
async def test_a_device_file_that_is_not_there_is_named_and_nothing_is_told_prepared(
    node: Node, *, of_claim: bool, tmp_path: Path
) -> None:
    missing = dra.DeviceNode(path="/dev/oven0", host_path=str(tmp_path / "oven0"))
    cook = giving(claim_edits=dra.ContainerEdits(device_nodes=[missing])) if of_claim else giving(missing)
    lunch = node.claim()
    async with node.running(driver(cook)):
        assert (await node.error(lunch)).startswith(
            f"device node {tmp_path}/oven0, for /dev/oven0 in the container, is not on the node: No such file"
        )
        assert node.is_clean()


async def test_one_that_comes_up_late_is_found_when_the_kubelet_asks_again(node: Node, tmp_path: Path) -> None:
    late = tmp_path / "oven0"
    lunch = node.claim()
    async with node.running(driver(giving(dra.DeviceNode(path="/dev/oven0", host_path=str(late))))):
        await node.error(lunch)
        os.mkfifo(late)
        await node.prepare(lunch)
        late.unlink()
        assert f"device node {late}" in await node.error(lunch), "also what was prepared before may lack it now"
        assert node.records() == ["lunch"]


@pytest.mark.parametrize(
    ("make", "kind", "why"),
    [
        (Path.touch, None, "is not a device file; "),
        (lambda path: path.symlink_to("/dev/null"), None, "is a link, which container runtimes do not follow"),
        (os.mkfifo, "c", "is not a character device; "),
    ],
    ids=["file", "link", "other type"],
)
async def test_what_a_runtime_would_not_take_is_told(
    node: Node, make: Callable[[Path], object], kind: Literal["c"] | None, why: str, tmp_path: Path
) -> None:
    make(path := tmp_path / "oven0")
    lunch = node.claim()
    async with node.running(driver(giving(dra.DeviceNode(path=str(path), type=kind)))):
        assert (await node.error(lunch)).startswith(f"device node {path} {why}")


async def test_a_node_whose_type_and_numbers_are_given_needs_no_file(node: Node) -> None:
    lunch = node.claim()
    async with node.running(driver(giving(dra.DeviceNode(path="/dev/nowhere", type="c", major=1, minor=3)))):
        await node.prepare(lunch)


async def test_a_driver_that_does_not_see_the_nodes_files_looks_for_none(node: Node) -> None:
    lunch = node.claim()
    async with node.running(driver(giving(dra.DeviceNode(path="/dev/nowhere"))), check_device_nodes=False):
        await node.prepare(lunch)
