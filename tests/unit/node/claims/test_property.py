"""For any sequence of calls and failures, the node has exactly what unreleased claims need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dra_kit as dra
from tests.unit.node import role
from tests.unit.node.drivers import driver
from tests.unit.node.hardware import Hardware, Heat

CLAIMS = ("a", "b", "c")
DEVICES = ("pizza-0", "pizza-1", "pizza-2", "pizza-3")


class Oven(dra.Preparer):
    """Every device has an oven of its own but the last two, which share one; pizza-1 is served without edits."""

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        oven = "shared" if device.name in {"pizza-2", "pizza-3"} else device.name
        await device.ensure(Heat(oven=oven, temperature=200))
        return dra.Prepared() if device.name == "pizza-1" else dra.Prepared(env={device.env_name: "served"})


def oven_of(device: str) -> str:
    return "shared" if device in {"pizza-2", "pizza-3"} else device


STEPS = st.one_of(
    st.tuples(st.just("prepare"), st.sampled_from(CLAIMS)),
    st.tuples(st.just("unprepare"), st.sampled_from(CLAIMS)),
    st.tuples(st.just("allocate"), st.sampled_from(CLAIMS), st.sets(st.sampled_from(DEVICES), max_size=2)),
    st.tuples(st.just("delete"), st.sampled_from(CLAIMS)),
    st.tuples(st.just("lose files")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("reboot")),
)


class Model:
    """The node, and what should be true of it."""

    def __init__(self, node: role.Node) -> None:
        self.node = node
        self.allocated: dict[str, tuple[str, ...]] = {}
        self.prepared: dict[str, tuple[str, ...]] = {}
        self._agent = AsyncExitStack()
        self._boots = 1

    async def start(self) -> None:
        self._agent = AsyncExitStack()
        await self._agent.enter_async_context(self.node.running(driver(Oven(), effects=[Heat])))

    async def stop(self) -> None:
        await self._agent.aclose()

    def reference(self, claim: str) -> dra.ClaimReference:
        return dra.ClaimReference("default", claim, f"uid-{claim}")

    async def step(self, what: str, *arguments: Any) -> None:
        await getattr(self, "_" + what.replace(" ", "_"))(*arguments)

    async def _prepare(self, claim: str) -> None:
        wanted = self.allocated.get(claim, ())
        client = self.node.kubelet.plugin(role.DRIVER)
        answer = (await client.prepare([self.reference(claim)]))[f"uid-{claim}"]
        if not wanted:
            assert answer.error
            return
        if self.prepared.get(claim, wanted) != wanted:
            assert "was reallocated after it was prepared" in answer.error  # its containers may still run
            return
        for other, devices in list(self.prepared.items()):
            taken = set(devices) & set(wanted)
            if other != claim and taken:
                assert f"is still prepared for claim default/{other}" in answer.error
                live = set(self.allocated.get(other, ())) & taken
                assert ("to which it is allocated too" if live else "whose container may still run") in answer.error
                return
        assert not answer.error
        assert sorted(device.device_name for device in answer.devices) == list(wanted)
        self.prepared[claim] = wanted

    async def _unprepare(self, claim: str) -> None:
        await self.node.unprepare(self.reference(claim))
        self.prepared.pop(claim, None)

    async def _allocate(self, claim: str, devices: set[str]) -> None:
        self.allocated[claim] = tuple(sorted(devices))
        self.node.claim(claim, self.allocated[claim])

    async def _delete(self, claim: str) -> None:
        if self.allocated.pop(claim, None) is not None:
            self.node.api.delete("resourceclaims", claim, "default")

    async def _lose_files(self) -> None:
        for claim in list(self.prepared):
            if self.allocated.get(claim) == self.prepared[claim]:  # else the kubelet does not ask for it again
                for path in self.node.specs():
                    if path.stem.endswith(f"uid-{claim}"):
                        path.unlink()
                await self._prepare(claim)

    async def _restart(self) -> None:
        await self.stop()
        await self.start()

    async def _reboot(self) -> None:
        await self.stop()
        self._boots += 1
        self.node.boot_id.write_text(f"boot-{self._boots}")
        Heat.hardware.on.clear()
        await self.start()
        for claim in list(self.prepared):  # the kubelet makes the sandboxes of its pods again
            if self.allocated.get(claim) == self.prepared[claim]:
                await self._prepare(claim)
            else:
                await self._unprepare(claim)

    def check(self) -> None:
        state = self.node.state()
        assert {item["name"] for item in state["claims"]} == self.prepared.keys()
        assert {item["phase"] for item in state["claims"]} <= {"prepared"}
        needed = {oven_of(device): set[str]() for devices in self.prepared.values() for device in devices}
        for claim, devices in self.prepared.items():
            for device in devices:
                needed[oven_of(device)].add(claim)
        assert {item["keys"][0]: {claim["name"] for claim in item["claims"]} for item in state["effects"]} == needed
        assert {item["phase"] for item in state["effects"]} <= {"applied"}
        assert Heat.hardware.on == dict.fromkeys(needed, 200)
        assert state["epochs"] == {}
        with_edits = {claim for claim, devices in self.prepared.items() if set(devices) != {"pizza-1"}}
        assert {path.name.rpartition("uid-")[2] for path in self.node.specs()} == {
            f"{item}.json" for item in with_edits
        }


@asynccontextmanager
async def model() -> AsyncIterator[Model]:
    Heat.hardware = Hardware()
    async with role.node() as node:
        made = Model(node)
        await made.start()
        try:
            yield made
        finally:
            await made.stop()


@pytest.mark.timeout(600)  # a busy machine takes ten times as long as one with nothing else to do
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, min_size=5, max_size=25))
def test_the_node_has_exactly_what_unreleased_claims_need(steps: list[tuple[Any, ...]]) -> None:
    async def play() -> None:
        async with model() as made:
            for what, *arguments in steps:
                await made.step(what, *arguments)
                made.check()
            for claim in CLAIMS:
                await made.step("unprepare", claim)
            assert made.node.is_clean()

    asyncio.run(play())
