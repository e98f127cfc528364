"""Who has what on a node, asked at its operation socket."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.diagnosis.who import is_node, on_node
from dra_kit.errors import Unavailable
from dra_kit.kubelet.sockets import operation_link, operation_socket
from dra_kit.node.operation_socket import WHO, ask, ask_text
from tests.support.api import eventually
from tests.support.pod_resources import held, kubelet
from tests.unit.node.drivers import Doing, driver
from tests.unit.node.role import DRIVER, NODE, Node


def serials(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
    return dra.Prepared(env={device.env_name: "1"}, hardware_ids=[f"SN-{device.name}"])


async def who(node: Node) -> Sequence[dict[str, Any]]:
    answer = await ask(operation_link(node.root, DRIVER), WHO)
    assert (answer["driver"], answer["node"]) == (DRIVER, NODE)
    return list(answer["devices"])


async def test_prepared_device_is_listed_with_hardware_and_pod_until_released(node: Node) -> None:
    second = {"device": "pizza-1", "request": "big/second"}
    lunch = node.claim(devices=["pizza-0", second], reserved_for=["guest"])
    async with node.running(driver(Doing(serials))):
        assert await who(node) == []
        await node.prepare(lunch)
        assert [
            (item["pool"], item["device"], item["request"], item["hardwareIDs"], item["claim"], item["pod"])
            for item in await who(node)
        ] == [
            (NODE, "pizza-0", "pizza", ["SN-pizza-0"], "lunch", "guest"),
            (NODE, "pizza-1", "big", ["SN-pizza-1"], "lunch", "guest"),
        ]
        await node.unprepare(lunch)
        assert await who(node) == []


async def test_hardware_ids_are_stored_for_the_next_process(node: Node) -> None:
    await node.prepared_by(driver(Doing(serials)), node.claim())
    async with node.running(driver(Doing(serials))):
        [use] = await who(node)
        assert use["hardwareIDs"] == ["SN-pizza-0"]


async def test_containers_of_a_device_are_read_from_the_kubelet(node: Node) -> None:
    lunch = node.claim()
    users = [held("pizza-0", "guest", "eater"), held("pizza-0", "guest", "watcher")]
    of_others = held("pizza-9", "stranger", "main", claim="dinner")
    async with kubelet(node.root, *users, of_others), node.running(driver(Doing(serials))):
        await node.prepare(lunch)
        assert [(item["pod"], item["container"], item["hardwareIDs"]) for item in await who(node)] == [
            ("guest", "eater", ["SN-pizza-0"]),
            ("guest", "watcher", ["SN-pizza-0"]),
        ]


async def test_who_on_the_node_lists_devices_of_all_drivers(node: Node) -> None:
    lunch = node.claim()
    foreign = "5d4ba5a2-7b5c-4a54-9c0e-3b4f1f0d9a11"
    users = [held("pizza-0", "guest", "eater"), held("pizza-9", "stranger", "main", claim="dinner", cdi=["a/b=c"])]
    assert not is_node(node.root)
    async with kubelet(node.root, *users), node.running(driver(Doing(serials))):
        await node.prepare(lunch)
        spec = {"cdiVersion": "0.6.0", "kind": "gpu.example/gpu", "devices": [{"name": f"{foreign}-0"}]}
        (node.cdi / "foreign.json").write_text(json.dumps(spec))
        assert is_node(node.root)
        found = await on_node(node.root, [node.cdi])
        assert not found.gaps
        assert [(use.driver, use.device, use.pod, use.container, use.hardware_ids) for use in found.uses] == [
            (DRIVER, "pizza-0", "guest", "eater", ("SN-pizza-0",)),
            (DRIVER, "pizza-9", "stranger", "main", ()),
            ("gpu.example", f"{foreign}-0", "", "", ()),
        ]


async def test_who_reads_the_files_of_a_stopped_driver(node: Node) -> None:
    lunch = node.claim()
    await node.prepared_by(driver(Doing(serials)), lunch)
    assert not is_node(node.root)
    found = await on_node(node.root, [node.cdi])
    assert [(use.driver, use.device, use.claim_uid) for use in found.uses] == [(DRIVER, "pizza-0", lunch.uid)]
    assert [gap for gap in found.gaps if "containers are not known" in gap]


async def test_socket_is_for_root_and_serves_no_other_paths(node: Node) -> None:
    async with node.running(driver()):
        link = operation_link(node.root, DRIVER)
        assert link.is_symlink()
        assert link.stat().st_mode & 0o777 == 0o600
        assert link.parent.stat().st_mode & 0o007 == 0
        with pytest.raises(Unavailable, match="status 404"):
            await ask_text(link, "/v1/secrets")


async def test_link_points_to_an_answering_instance_during_an_update(node: Node) -> None:
    link = operation_link(node.root, DRIVER)
    async with node.running(driver(), pod_uid="first"):
        second = await node.agent(driver(), pod_uid="second")
        running = asyncio.create_task(second.run())
        await eventually(lambda: link.readlink().name == "ops-second.sock")
        assert await who(node) == []
        second.stop()
        assert await running == 0
        assert link.readlink().name == "ops-first.sock"
        assert await who(node) == []
    assert not link.is_symlink()
    assert list(link.parent.glob("*ops*")) == []


async def test_socket_of_a_killed_instance_is_removed(node: Node) -> None:
    dead = operation_socket(node.root, DRIVER, "dead")
    dead.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(dead))
    operation_link(node.root, DRIVER).symlink_to(dead.name)
    async with node.running(driver(), pod_uid="new"):
        assert await who(node) == []
        await eventually(lambda: not dead.exists())


async def test_dangling_link_is_repaired(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_kit.node.operation_socket.LOOK_EVERY", 0.05)
    link = operation_link(node.root, DRIVER)
    async with node.running(driver()):
        link.unlink()
        await eventually(link.is_symlink)
        assert await who(node) == []


async def test_missing_operation_socket_does_not_stop_prepares(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    operation_socket(node.root, DRIVER, None).mkdir(parents=True)
    lunch = node.claim()
    async with node.running(driver()):
        await node.prepare(lunch)
        await eventually(lambda: "operation socket cannot be created" in caplog.messages)


async def test_missing_driver_is_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"^no driver answers at .*check that the driver runs on this node$"):
        await ask(tmp_path / "ops.sock", WHO)
