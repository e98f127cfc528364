"""Binding conditions: calls of the author's binder, and the conditions written to claims."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.client.api import APPLY, Client
from dra_kit.client.events import EventRecorder
from dra_kit.client.resources import EVENTS, RESOURCE_CLAIMS
from dra_kit.controller.binding import DeviceBinding
from tests.support.api import eventually
from tests.unit.controller.cluster import DRIVER, allocate, conditions_of, following, made_claim, running

BOUND = {"example.com/attached": ("True", "")}
Answer = Callable[[], Any]


class Crane(dra.DeviceBinder):
    """Does what a test says, and remembers its calls."""

    def __init__(self, *answers: Answer, released: Answer | None = None) -> None:
        self.answers = list(answers)
        self.released = released
        self.calls: list[str] = []
        self.held: list[str] = []

    async def bind(self, claim: dra.ObservedClaim, device: dra.ObservedDevice) -> None:
        self.calls.append(f"bind {claim.name} {device.name} {claim.node}")
        if self.answers:
            answer = self.answers.pop(0)()
            if hasattr(answer, "__await__"):
                await answer

    def release(self, claim: dra.ObservedClaim, device: dra.ObservedDevice) -> None:
        self.calls.append(f"release {claim.name} {device.name}")
        if self.released is not None:
            self.released()

    def resume(self, held: Sequence[tuple[dra.ObservedClaim, dra.ObservedDevice]]) -> None:
        self.held = [f"{claim.name} {device.name}" for claim, device in held]


def raising(error: Exception) -> Answer:
    def answer() -> None:
        raise error

    return answer


@pytest.fixture
async def client(client: Client) -> Client:
    await made_claim(client)
    return client


@asynccontextmanager
async def binding(client: Client, crane: Crane) -> AsyncIterator[EventRecorder]:
    recorder = EventRecorder(client, controller=DRIVER, instance="controller-0")
    async with following(client) as follower:
        part = DeviceBinding(DRIVER, crane, client, follower, recorder, retry=(0.02, 0.05))
        async with running(part):
            yield recorder


async def until(client: Client, wanted: object, device: str = "disk-0", claim: str = "lunch") -> None:
    async with asyncio.timeout(60):
        while await conditions_of(client, device, claim) != wanted:  # noqa: ASYNC110 - what the server has sets no Event
            await asyncio.sleep(0.02)


async def test_a_bound_device_has_its_binding_conditions(client: Client) -> None:
    crane = Crane()
    async with binding(client, crane) as recorder:
        await allocate(client)
        await until(client, BOUND)
        await recorder.flush(10)
    assert crane.calls == ["bind lunch disk-0 node-1"]
    [event] = (await client.list(EVENTS)).items
    assert (event["reason"], event["regarding"]["name"], event["type"]) == ("DeviceBound", "lunch", "Normal")
    assert event["note"] == "Bound device disk-0 (request disk, pool warehouse) on node node-1 for ResourceClaim lunch"


async def test_devices_without_binding_conditions_are_ignored_by_the_binder(client: Client) -> None:
    crane = Crane()
    await made_claim(client, "dinner")
    async with binding(client, crane):
        await allocate(client, "dinner", conditions=(), failures=())
        await allocate(client)
        await until(client, BOUND)
    assert crane.calls == ["bind lunch disk-0 node-1"]


@pytest.mark.parametrize("error", [dra.NotYet("coming up"), dra.TransientError("no answer"), OSError("no route")])
async def test_a_failed_bind_is_retried(client: Client, error: Exception) -> None:
    crane = Crane(raising(error), raising(error))
    async with binding(client, crane):
        await allocate(client)
        await until(client, BOUND)
    assert crane.calls == ["bind lunch disk-0 node-1"] * 3


async def test_a_permanent_error_makes_the_failure_conditions_true(client: Client) -> None:
    crane = Crane(raising(dra.PermanentError("port 3 has no light")))
    async with binding(client, crane) as recorder:
        await allocate(client)
        await until(client, {"example.com/failed": ("True", "port 3 has no light")})
        await recorder.flush(10)
        assert crane.calls == ["bind lunch disk-0 node-1"]
    [event] = (await client.list(EVENTS)).items
    assert (event["reason"], event["type"]) == ("DeviceBindingFailed", "Warning")
    assert event["note"].endswith("for ResourceClaim lunch: port 3 has no light")


async def test_a_claim_allocated_the_same_device_after_a_failure_is_bound_again(client: Client) -> None:
    crane = Crane(raising(dra.PermanentError("no light")))
    async with binding(client, crane):
        await allocate(client)
        await until(client, {"example.com/failed": ("True", "no light")})
        await allocate(client, devices=())
        await allocate(client, at="2026-01-01T00:00:05Z")
        await until(client, BOUND)
    assert crane.calls == ["bind lunch disk-0 node-1", "release lunch disk-0", "bind lunch disk-0 node-1"]


async def test_a_device_is_released_when_its_claim_is_deallocated(client: Client) -> None:
    crane = Crane()
    async with binding(client, crane):
        await allocate(client)
        await until(client, BOUND)
        await allocate(client, devices=())
        await eventually(lambda: len(crane.calls) == 2)
    assert crane.calls[1] == "release lunch disk-0"


async def test_a_running_bind_is_cancelled_when_the_claim_is_deleted(client: Client) -> None:
    hangs = asyncio.Event()
    crane = Crane(hangs.wait)
    async with binding(client, crane):
        await allocate(client)
        await eventually(lambda: crane.calls)
        await client.delete(RESOURCE_CLAIMS, "lunch", "default")
        await eventually(lambda: len(crane.calls) == 2)
    assert crane.calls == ["bind lunch disk-0 node-1", "release lunch disk-0"]


async def test_a_failed_release_is_retried_until_a_permanent_error(client: Client) -> None:
    errors: list[Exception] = [OSError("no route"), dra.NotYet("moving"), dra.PermanentError("gone for good")]

    def failing() -> None:
        if errors:
            raise errors.pop(0)

    crane = Crane(released=failing)
    await made_claim(client, "dinner")
    async with binding(client, crane):
        await allocate(client)
        await until(client, BOUND)
        await allocate(client, devices=())
        await allocate(client, "dinner")
        await until(client, BOUND, claim="dinner")
    assert crane.calls[1:] == ["release lunch disk-0"] * 3 + ["bind dinner disk-0 node-1"]


async def test_another_claim_is_bound_after_the_device_is_released(client: Client) -> None:
    stuck = [True]

    def failing() -> None:
        if stuck:
            raise dra.NotYet("moving")

    crane = Crane(released=failing)
    await made_claim(client, "dinner")
    async with binding(client, crane):
        await allocate(client)
        await until(client, BOUND)
        await allocate(client, "dinner")  # seen before the other one's release
        await allocate(client, devices=())
        await eventually(lambda: crane.calls.count("release lunch disk-0") > 2)
        assert "bind dinner disk-0 node-1" not in crane.calls
        stuck.clear()
        await until(client, BOUND, claim="dinner")


async def test_a_new_active_replica_binds_only_devices_that_are_not_bound_yet(client: Client) -> None:
    first, second = Crane(raising(dra.NotYet("slow")), asyncio.Event().wait), Crane()
    await made_claim(client, "dinner")
    async with binding(client, first):
        await allocate(client)
        await eventually(lambda: len(first.calls) == 2)
        await allocate(client, "dinner", ["disk-1"])
        await until(client, BOUND, "disk-1", "dinner")
    async with binding(client, second):
        await until(client, BOUND)
    assert second.calls == ["bind lunch disk-0 node-1"]
    assert sorted(second.held) == ["dinner disk-1", "lunch disk-0"]


async def test_no_device_is_bound_before_resume_returns(client: Client) -> None:
    class Failing(Crane):
        def resume(self, held: Sequence[tuple[dra.ObservedClaim, dra.ObservedDevice]]) -> None:
            self.calls.append("resume")
            if self.calls.count("resume") < 3:
                raise OSError("no route")

    crane = Failing()
    await allocate(client)
    async with binding(client, crane):
        await until(client, BOUND)
    assert crane.calls == ["resume"] * 3 + ["bind lunch disk-0 node-1"]


async def test_several_devices_of_a_claim_keep_their_own_conditions(client: Client) -> None:
    crane = Crane(raising(dra.NotYet("slow")))
    async with binding(client, crane):
        await allocate(client, devices=["disk-0", "disk-1", "disk-2"])
        for device in ("disk-0", "disk-1", "disk-2"):
            await until(client, BOUND, device)


async def test_conditions_of_node_and_controller_do_not_overwrite_each_other(client: Client) -> None:
    async def node_says(status: str) -> None:
        condition = {
            "type": "Ready", "status": status, "reason": "Prepared", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }  # fmt: skip
        entry = {"driver": DRIVER, "pool": "warehouse", "device": "disk-0", "conditions": [condition]}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "lunch"},
                "status": {"devices": [entry]}}  # fmt: skip
        await client.patch(
            RESOURCE_CLAIMS, "lunch", body, "default",
            content_type=APPLY, subresource="status", field_manager=DRIVER, force=True,
        )  # fmt: skip

    await allocate(client)
    await node_says("False")
    async with binding(client, Crane()):
        await until(client, {**BOUND, "Ready": ("False", "")})
        await node_says("True")
        await until(client, {**BOUND, "Ready": ("True", "")})
