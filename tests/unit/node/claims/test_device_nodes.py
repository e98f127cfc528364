"""Missing device files of a claim: the driver reports them before the container runtime does."""

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
async def test_a_missing_device_file_fails_the_prepare(node: Node, *, of_claim: bool, tmp_path: Path) -> None:
    missing = dra.DeviceNode(path="/dev/oven0", host_path=str(tmp_path / "oven0"))
    cook = giving(claim_edits=dra.ContainerEdits(device_nodes=[missing])) if of_claim else giving(missing)
    lunch = node.claim()
    async with node.running(driver(cook)):
        owner = "" if of_claim else " of device pizza:node-1:pizza-0"
        assert (await node.error(lunch)).startswith(
            f"device node {tmp_path}/oven0{owner}, for /dev/oven0 in the container, is not on the node: No such file"
        )
        assert node.is_clean()


async def test_a_device_file_that_appears_later_is_found_on_retry(node: Node, tmp_path: Path) -> None:
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
async def test_files_that_a_container_runtime_rejects_are_reported(
    node: Node, make: Callable[[Path], object], kind: Literal["c"] | None, why: str, tmp_path: Path
) -> None:
    make(path := tmp_path / "oven0")
    lunch = node.claim()
    async with node.running(driver(giving(dra.DeviceNode(path=str(path), type=kind)))):
        assert (await node.error(lunch)).startswith(f"device node {path} of device pizza:node-1:pizza-0 {why}")


async def test_a_device_node_with_type_and_numbers_needs_no_file(node: Node) -> None:
    lunch = node.claim()
    await node.prepared_by(driver(giving(dra.DeviceNode(path="/dev/nowhere", type="c", major=1, minor=3))), lunch)


async def test_device_file_checks_can_be_switched_off(node: Node) -> None:
    await node.prepared_by(driver(giving(dra.DeviceNode(path="/dev/nowhere"))), node.claim(), check_device_nodes=False)
