"""Which CDI devices a container gets of its pod's claims."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.errors import KubeletError
from dra_kit.kubelet.plugin_client import DeviceAnswer
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.kubernetes.resource.v1 import DeviceRequestAllocationResult
from dra_kit.sandbox.kubelet.claim_manager import Checkpoint, ClaimInfo, ClaimManager, skipped_operations
from dra_kit.sandbox.kubelet.plugin_manager import PluginManager
from tests.unit.client.wire import answer, served
from tests.unit.sandbox.cluster.kubelet.pods import Object, container, pod


def device(name: str, *requests: str, ids: Sequence[str] | None = None) -> DeviceAnswer:
    return DeviceAnswer(requests, "pool", name, tuple(ids if ids is not None else [f"dra.pizza/pizza={name}"]), None)


async def devices_of(directory: Path, of: Object, **claims: dict[str, list[DeviceAnswer]]) -> tuple[str, ...]:
    """The devices of the first container, when the drivers had answered so for the claims, by claim and driver."""
    Checkpoint(directory).store(
        [
            ClaimInfo(
                ClaimReference("kitchen", name, f"uid-{name}"),
                {"uid-guest"},
                {driver: tuple(devices) for driver, devices in drivers.items()},
            )
            for name, drivers in claims.items()
        ]
    )
    async with served(answer({})) as wire:
        manager = ClaimManager(
            wire.client(), "node-a", PluginManager(directory, release=UNMODIFIED), directory, lambda _: None
        )
        return manager.cdi_devices(of, of["spec"]["containers"][0])


def using(*uses: dict[str, Any], claims: Sequence[str] = ("lunch",)) -> Object:
    entries = [{"name": f"my-{name}", "resourceClaimName": name} for name in claims]
    return pod(container("eater", resources={"claims": list(uses)}), resourceClaims=entries)


# a device without request names serves every request
@pytest.mark.parametrize(("request_name", "names"), [({}, "abcd"), ({"request": "pizza"}, "abc")], ids=["all", "pizza"])
async def test_devices_of_a_claim(tmp_path: Path, request_name: dict[str, str], names: str) -> None:
    devices = [device("a", "pizza"), device("b", "drink", "pizza"), device("c"), device("d", "drink")]
    found = await devices_of(tmp_path, using({"name": "my-lunch", **request_name}), lunch={"dra.pizza": devices})
    assert found == tuple(f"dra.pizza/pizza={name}" for name in names)


async def test_devices_of_several_drivers_and_claims_each_once(tmp_path: Path) -> None:
    of = using(
        {"name": "my-lunch", "request": "pizza"}, {"name": "my-lunch"}, {"name": "my-bill"}, claims=["lunch", "bill"]
    )
    found = await devices_of(
        tmp_path,
        of,
        lunch={"dra.pizza": [device("a", "pizza", ids=["x/y=1", "x/y=2"])], "dra.drink": [device("b", ids=[])]},
        bill={"dra.pizza": [device("c")]},
    )
    assert found == ("x/y=1", "x/y=2", "dra.pizza/pizza=c")


async def test_a_claim_made_for_the_pod(tmp_path: Path) -> None:
    of = using({"name": "mine"}, claims=[])
    of["spec"]["resourceClaims"] = [{"name": "mine", "resourceClaimTemplateName": "lunch"}]
    of["status"]["resourceClaimStatuses"] = [{"name": "mine", "resourceClaimName": "guest-mine-x"}]
    found = await devices_of(tmp_path, of, **{"guest-mine-x": {"dra.pizza": [device("a")]}})
    assert found == ("dra.pizza/pizza=a",)


async def test_optional_claim_is_skipped(tmp_path: Path) -> None:
    of = using({"name": "mine"}, claims=[])
    of["spec"]["resourceClaims"] = [{"name": "mine", "resourceClaimTemplateName": "lunch"}]
    of["status"]["resourceClaimStatuses"] = [{"name": "mine"}]
    assert await devices_of(tmp_path, of) == ()


async def test_a_claim_that_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(KubeletError) as caught:
        await devices_of(tmp_path, using({"name": "my-lunch"}))
    assert str(caught.value) == (
        "internal error: unable to get claim info for ResourceClaim lunch in namespace kitchen"
    )


OPERATIONS = ("NodePrepareResources", "NodeUnprepareResources")


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sets(st.sampled_from([*OPERATIONS, "*"])))))
def test_an_operation_is_skipped_when_every_result_of_the_driver_says_so(results: list[tuple[str, set[str]]]) -> None:
    found = skipped_operations(
        [DeviceRequestAllocationResult(driver=driver, skip_node_operations=tuple(names)) for driver, names in results]
    )
    for driver in "ab":
        declared = [names for name, names in results if name == driver]
        for operation in OPERATIONS:
            skipped = bool(declared) and all(names & {operation, "*"} for names in declared)
            assert (operation in found.get(driver, ())) == skipped
    assert all(found.values())


def skipping(*operations: str) -> Object:
    """A claim of an unregistered driver that need not be called."""
    result = {"driver": "dra.pizza", "pool": "p", "device": "d", "skipNodeOperations": list(operations)}
    consumer = {"resource": "pods", "name": "guest", "uid": "uid-guest"}
    return {
        "metadata": {"namespace": "kitchen", "name": "lunch", "uid": "uid-lunch"},
        "status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": [consumer]},
    }


async def test_driver_with_skipped_operations_is_not_called(tmp_path: Path) -> None:
    async with served(answer(skipping("*"))) as wire:
        plugins = PluginManager(tmp_path, release=UNMODIFIED)
        manager = ClaimManager(wire.client(), "node-a", plugins, tmp_path, lambda _: None, optional_operations=True)
        await manager.prepare(using())
        assert manager.pods == {"uid-guest"}
        # decided when it was prepared, and remembered
        again = ClaimManager(wire.client(), "node-a", plugins, tmp_path, lambda _: None, optional_operations=True)
        await again.release("uid-guest")
        assert again.pods == frozenset()


async def test_a_kubelet_without_the_feature_refuses(tmp_path: Path) -> None:
    async with served(answer(skipping("*"))) as wire:
        manager = ClaimManager(
            wire.client(), "node-a", PluginManager(tmp_path, release=UNMODIFIED), tmp_path, lambda _: None
        )
        with pytest.raises(KubeletError) as caught:
            await manager.prepare(using())
    assert str(caught.value) == ("ResourceClaim lunch: DRAOptionalNodeOperations feature gate is disabled on kubelet")
