"""Calls that a driver does not answer are reported while the kubelet waits."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Sequence

import pytest
from typing_extensions import override

import dra_kit as dra
from dra_kit.client.resources import PODS
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver
from dra_kit.sandbox.timeline.report import PodProblems
from dra_kit.sandbox.views.live import LiveView
from tests.unit.sandbox.cluster.kubelet.polling import until
from tests.unit.sandbox.test_sandbox import phase, pod
from tests.unit.sandbox.timeline.feeding import watched


class Oven(dra.DeviceProvider):
    @override
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [dra.Device(name="pizza")]


class Waiter(dra.Preparer):
    def __init__(self) -> None:
        self.entered, self.hot = threading.Event(), threading.Event()

    @override
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        self.entered.set()
        self.hot.wait()
        return dra.Prepared()


@pytest.mark.processes
async def test_overdue_call_is_reported_with_the_running_code() -> None:
    waiter, told, problems = Waiter(), io.StringIO(), PodProblems()
    driver = SandboxDriver((dra.Driver("dra.pizza", provider=Oven(), preparer=waiter),))

    def tells(text: str) -> bool:
        return text in told.getvalue()

    async with watched(LiveView(told).read, problems.read, driver=driver) as sandbox:
        guest = await sandbox.client.create(PODS, pod("guest", "lunch", "true"))
        try:
            # the call is reported once, with the code that runs at that time
            await until(waiter.entered.is_set)
            await until(lambda: tells("NodePrepareResources for lunch is not answered after 3 s"))
            assert "claim default/lunch: Waiter.prepare has not returned for " in told.getvalue()
            assert problems.by_uid[guest["metadata"]["uid"]] == (
                "driver dra.pizza has not answered NodePrepareResources for ResourceClaim lunch"
            )
        finally:
            waiter.hot.set()
        await until(lambda: phase(sandbox, "guest") == "Succeeded")

    assert guest["metadata"]["uid"] not in problems.by_uid
    assert told.getvalue().count("NodePrepareResources for lunch is not answered") == 1
