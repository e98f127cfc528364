"""Claims reallocated after they were prepared: containers that may still run keep their devices."""

from __future__ import annotations

import pytest

import dra_kit as dra
from dra_kit.sandbox.kubelet.claim_manager import Checkpoint, ClaimInfo
from tests.unit.node.hardware import Baker, Heat, kitchen
from tests.unit.node.role import DRIVER, Clock, Node

PATIENCE = 600.0


@pytest.fixture
def clock(node: Node) -> Clock:
    """What agents take for the time."""
    node.clock = made = Clock()
    return made


@pytest.fixture
def baker() -> Baker:
    """Has an oven for each of two devices."""
    return Baker(ovens={"lunch pizza-0": "left", "lunch pizza-1": "right"})


def allocate(node: Node, device: str, pod: str = "") -> dra.ClaimReference:
    """The claim with this device, reserved for this pod."""
    return node.claim("lunch", [device], reserved_for=[pod] if pod else [])


def kubelet_lists(node: Node, claim: dra.ClaimReference, *pods: str) -> None:
    Checkpoint(node.root).store([ClaimInfo(claim, set(pods), {DRIVER: ()})])


async def is_unchanged(node: Node, claim: dra.ClaimReference) -> bool:
    """Whether the claim is refused, and nothing of it has changed."""
    error = await node.error(claim)
    assert "claim default/lunch was reallocated after it was prepared with node-1/pizza-0" in error
    assert node.env(claim) == ["PIZZA_0_FLAME=1"]
    return Heat.hardware.on == {"left": 200}


async def test_a_reallocated_claim_is_rejected_until_the_kubelet_releases_it(node: Node, baker: Baker) -> None:
    """A kubelet that was started again asks for it; the pod that was deleted by force meanwhile may still run."""
    lunch = allocate(node, "pizza-0")
    async with node.running(kitchen(baker)):
        await node.prepare(lunch)
        allocate(node, "pizza-1")
        assert await node.error(lunch) == (
            "claim default/lunch was reallocated after it was prepared with node-1/pizza-0, which a container "
            "may still use; it is prepared with its new allocation when the kubelet has released it (delete the pods "
            "that use it), after a reboot, or after --orphan-after"
        )
        assert await is_unchanged(node, lunch)
        await node.unprepare(lunch)
        assert Heat.hardware.on == {}
        [device] = await node.prepare(lunch)
        assert device.device_name == "pizza-1"
        assert Heat.hardware.on == {"right": 200}


async def test_the_former_device_of_a_reallocated_claim_stays_reserved(node: Node, baker: Baker) -> None:
    lunch, dinner = allocate(node, "pizza-0"), node.claim("dinner", ["pizza-0"])
    async with node.running(kitchen(baker)):
        await node.prepare(lunch)
        allocate(node, "pizza-1")
        assert await is_unchanged(node, lunch)
        assert "still prepared for claim default/lunch, which was deleted or reallocated" in await node.error(dinner)
        assert node.records() == ["lunch"]


async def test_a_reallocated_claim_is_prepared_after_a_reboot(node: Node, baker: Baker) -> None:
    lunch = allocate(node, "pizza-0")
    driver = kitchen(baker)
    await node.prepared_by(driver, lunch)
    node.boot_id.write_text("boot-2")
    Heat.hardware.on.clear()
    allocate(node, "pizza-1")
    async with node.running(driver):
        [device] = await node.prepare(lunch)
        assert device.device_name == "pizza-1"
        assert Heat.hardware.on == {"right": 200}


async def test_a_claim_with_its_former_allocation_again_gets_the_former_answer(
    node: Node, baker: Baker, clock: Clock
) -> None:
    """And a container that began then is not disturbed because of what was before."""
    lunch = allocate(node, "pizza-0")
    async with node.running(kitchen(baker), orphan_after=PATIENCE):
        await node.prepare(lunch)
        allocate(node, "pizza-1")
        assert await is_unchanged(node, lunch)
        allocate(node, "pizza-0")
        await node.prepare(lunch)
        clock.now += PATIENCE
        allocate(node, "pizza-1")
        assert await is_unchanged(node, lunch)


@pytest.mark.parametrize("listed", [False, True])
async def test_a_reallocated_claim_is_prepared_after_orphan_after_without_former_pods(
    node: Node, baker: Baker, clock: Clock, listed: bool
) -> None:
    """The kubelet counts both pods as its users, and so it releases nothing when the first one has ended."""
    lunch = allocate(node, "pizza-0", "uid-first")
    async with node.running(kitchen(baker), orphan_after=PATIENCE):
        await node.prepare(lunch)
        allocate(node, "pizza-1", "uid-second")
        if listed:
            kubelet_lists(node, lunch, "uid-second")
        assert await is_unchanged(node, lunch)
        clock.now += PATIENCE - 1
        assert await is_unchanged(node, lunch)
        clock.now += 1
        [device] = await node.prepare(lunch)
        assert device.device_name == "pizza-1"
        assert Heat.hardware.on == {"right": 200}


@pytest.mark.parametrize("pods", [("uid-first", "uid-second"), ("uid-first",), ()], ids=str)
async def test_a_reallocated_claim_is_not_prepared_while_the_kubelet_lists_a_former_pod(
    node: Node, baker: Baker, clock: Clock, pods: tuple[str, ...]
) -> None:
    lunch = allocate(node, "pizza-0", "uid-first")
    async with node.running(kitchen(baker), orphan_after=PATIENCE):
        await node.prepare(lunch)
        allocate(node, "pizza-1", "uid-second")
        kubelet_lists(node, lunch, *pods)
        for _ in range(3):
            assert await is_unchanged(node, lunch)
            clock.now += PATIENCE
        kubelet_lists(node, lunch, "uid-second")
        await node.prepare(lunch)
        assert Heat.hardware.on == {"right": 200}
