"""What the kubelet makes of a driver's answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from dra_kit.errors import KubeletError
from dra_kit.kubelet.plugin_client import (
    ClaimAnswer,
    DeviceAnswer,
    PluginClient,
    check_prepared,
    check_unprepared,
)
from dra_kit.kubernetes.resource.objects import ClaimReference
from tests.unit.sandbox.cluster.kubelet.driver import Driver

OVEN = ClaimReference("default", "oven", "uid-1")
STOVE = ClaimReference("default", "stove", "uid-2")
BURNT = ClaimReference("default", "burnt", "uid-3")
DEVICE = DeviceAnswer(("pizza",), "node-a", "pizza-0", ("dra.pizza/claim=uid-1",), None)

uids = st.sampled_from(["uid-1", "uid-2", "uid-3"])


@given(st.sets(uids), st.dictionaries(uids, st.sampled_from(["", "burnt"])))
def test_answer_must_contain_every_claim_without_errors(asked: set[str], answers: dict[str, str]) -> None:
    claims = [ClaimReference("default", f"claim-{uid}", uid) for uid in sorted(asked)]
    clean = asked == answers.keys() and not any(answers.values())

    try:
        check_unprepared(claims, answers)
    except KubeletError:
        passed = False
    else:
        passed = True

    assert passed == clean


@pytest.mark.parametrize("devices", [(DEVICE,), ()], ids=["a device", "no device"])
def test_prepared_devices_by_uid(devices: tuple[DeviceAnswer, ...]) -> None:
    assert check_prepared([OVEN], {"uid-1": ClaimAnswer(devices)}) == {"uid-1": devices}


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        (
            {"uid-1": ClaimAnswer((), "no basil")},
            "NodePrepareResources failed for ResourceClaim oven: no basil",
        ),
        (
            {"uid-9": ClaimAnswer((DEVICE,))},
            "NodePrepareResources returned result for unknown claim UID uid-9",
        ),
        ({"uid-1": ClaimAnswer((DEVICE,))}, "NodePrepareResources skipped 1 ResourceClaims"),
        ({}, "NodePrepareResources skipped 2 ResourceClaims"),
    ],
)
def test_texts_of_a_failed_prepare(answers: dict[str, ClaimAnswer], text: str) -> None:
    with pytest.raises(KubeletError) as error:
        check_prepared([OVEN, STOVE], answers)

    assert str(error.value) == text


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ({"uid-1": "stuck"}, "NodeUnprepareResources failed for ResourceClaim oven: stuck"),
        ({"uid-9": ""}, "NodeUnprepareResources returned result for unknown claim UID uid-9"),
        ({}, "NodeUnprepareResources skipped 1 ResourceClaims"),
    ],
)
def test_texts_of_a_failed_unprepare(answers: dict[str, str], text: str) -> None:
    with pytest.raises(KubeletError) as error:
        check_unprepared([OVEN], answers)

    assert str(error.value) == text


@pytest.mark.parametrize(("service", "share"), [("v1.DRAPlugin", "share-1"), ("v1beta1.DRAPlugin", None)])
async def test_answers_are_returned_unchanged(kubelet_dir: Path, service: str, share: str | None) -> None:
    async with Driver(kubelet_dir):
        client = PluginClient(str(kubelet_dir / "plugins/dra.pizza/dra.sock"), service)
        prepared = await client.prepare([OVEN, BURNT])
        unprepared = await client.unprepare([OVEN, BURNT])
        await client.close()

    device = DeviceAnswer(("pizza",), "pool", "oven", ("dra.pizza/claim=uid-1",), share)
    assert prepared == {"uid-1": ClaimAnswer((device,)), "uid-3": ClaimAnswer((), "burnt")}
    assert unprepared == {"uid-1": "", "uid-3": "stuck"}


@pytest.mark.parametrize("service", ["v1.DRAPlugin", "v1beta1.DRAPlugin"])
async def test_failed_call_has_the_error_text_of_go(kubelet_dir: Path, service: str) -> None:
    client = PluginClient(str(kubelet_dir / "missing.sock"), service)

    with pytest.raises(KubeletError, match=r"^NodePrepareResources: rpc error: code = Unavailable desc = "):
        await client.prepare([OVEN])
    with pytest.raises(KubeletError, match=r"^NodeUnprepareResources: rpc error: code = Unavailable desc = "):
        await client.unprepare([OVEN])
    await client.close()


class Silent(Driver):
    """Is asked, and does not answer."""

    def __init__(self, kubelet_dir: Path) -> None:
        super().__init__(kubelet_dir)
        self.asked = asyncio.Event()

    @override
    async def prepare(self, claims: Sequence[ClaimReference]) -> NoReturn:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_call_whose_connection_is_closed_fails_like_any_other(kubelet_dir: Path) -> None:
    async with Silent(kubelet_dir) as driver:
        client = PluginClient(str(kubelet_dir / "plugins/dra.pizza/dra.sock"), "v1.DRAPlugin")
        call = asyncio.ensure_future(client.prepare([OVEN]))
        await driver.asked.wait()
        await client.close()

        with pytest.raises(KubeletError, match=r"^NodePrepareResources: rpc error: code = Canceled desc = "):
            await call


async def test_waiting_for_a_call_can_be_cancelled(kubelet_dir: Path) -> None:
    async with Silent(kubelet_dir) as driver:
        client = PluginClient(str(kubelet_dir / "plugins/dra.pizza/dra.sock"), "v1.DRAPlugin")
        call = asyncio.ensure_future(client.prepare([OVEN]))
        await driver.asked.wait()
        call.cancel()

        with pytest.raises(asyncio.CancelledError):
            await call
        await client.close()
