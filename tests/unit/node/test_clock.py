"""A wall clock that jumps by years, forwards and backwards, while a process runs and between two of them."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any

import dra_kit
from tests.support.api import eventually
from tests.unit.node.role import DRIVER, PLENTY, SLICES, Node
from tests.unit.node.test_process import log, process

YEAR = 366 * 24 * 3600

CLOCKMAKER = """
    import datetime
    import sys
    import time
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    # the wall clock of this process, in Python: as far off as a file says
    OFF = Path(__file__).with_name("off")
    real_time, RealDatetime = time.time, datetime.datetime


    def off() -> int:
        return int(OFF.read_text())


    class Jumping(RealDatetime):
        @classmethod
        def now(cls, tz=None):
            return RealDatetime.now(tz) + datetime.timedelta(seconds=off())


    def jumping_time():
        # gRPC compares it with a clock of its core's own, which cannot be moved from here
        of_grpc = sys._getframe(1).f_globals.get("__name__", "").startswith("grpc")
        return real_time() if of_grpc else real_time() + off()


    time.time = jumping_time
    time.time_ns = lambda: int(time.time() * 1_000_000_000)
    datetime.datetime = Jumping

    import dra_kit as dra


    class Oven(dra.DeviceProvider):
        def discover(self) -> Iterator[Sequence[dra.Device]]:
            yield [dra.Device(name=f"pizza-{i}") for i in range(4)]


    class Waiter(dra.Preparer):
        async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            if claim.name == "burnt":
                raise dra.PermanentError("burnt")
            year = str(datetime.datetime.now(datetime.UTC).year)
            condition = dra.Condition(type="Baked", status="True", reason="Hot")
            return dra.Prepared(env={"YEAR": year}, status=dra.DeviceStatus(conditions=[condition]))


    driver = dra.Driver("dra.pizza", provider=Oven(), preparer=Waiter(), rescan_every=0.2)
"""


def jump(node: Node, years: int) -> int:
    """Moves the clock of the process; the year that it has now."""
    fresh = node.directory / "off.new"
    fresh.write_text(str(years * YEAR))
    fresh.replace(node.directory / "off")  # the process looks at it all the time
    return (dt.datetime.now(dt.UTC) + dt.timedelta(seconds=years * YEAR)).year


def burnt(node: Node) -> list[dict[str, Any]]:
    return [event for event in node.events() if event["regarding"]["name"] == "burnt"]


async def test_jump_of_the_wall_clock_stops_nothing(node: Node) -> None:
    lunch, dinner, supper = (node.claim(name, [f"pizza-{i}"]) for i, name in enumerate(("lunch", "dinner", "supper")))
    bad = node.claim("burnt", ["pizza-3"])
    then = jump(node, 10)
    async with process(node, CLOCKMAKER) as running:
        await node.kubelet.wait_for_plugin(DRIVER, timeout=PLENTY)
        answers = await node.prepare(lunch)
        assert node.env(lunch) == [f"YEAR={then}"]
        await eventually(lambda: node.api.asked("WATCH", SLICES))

        then = jump(node, -20)
        answers += await node.prepare(dinner)
        assert node.env(dinner) == [f"YEAR={then}"]
        assert "burnt" in await node.error(bad)
        await eventually(lambda: burnt(node))
        node.forge_slice()
        await eventually(lambda: len(node.published()) == 4)

        then = jump(node, 30)
        await node.unprepare(dinner)
        await eventually(lambda: {item["metadata"]["name"] for item in statuses(node)} >= {"lunch"})
        running.terminate()
        assert await running.wait() == 0
    await eventually(lambda: not node.kubelet.plugins(DRIVER))
    jump(node, -30)
    async with process(node, CLOCKMAKER) as running:
        await node.kubelet.wait_for_plugin(DRIVER, timeout=PLENTY)
        assert await node.prepare(lunch) == answers[:1]
        await node.prepare(supper)
        await node.unprepare(lunch, supper)
        running.terminate()
        assert await running.wait() == 0
    assert node.is_clean()
    assert not [line for line in log(node) if line["level"] == "ERROR" and line.get("claim") != "default/burnt"]


def statuses(node: Node) -> list[dict[str, Any]]:
    return [item for item in node.api.objects("resourceclaims") if item["status"].get("devices")]


def test_no_code_waits_by_the_wall_clock() -> None:
    """It is for what people and the API read: times in Events and conditions, names of files, ends of certificates."""
    rooms = ("node", "process", "kubelet", "client", "controller", "admission", "author")
    root = Path(dra_kit.__file__).parent
    sources = {path: path.read_text(encoding="utf-8") for room in rooms for path in (root / room).rglob("*.py")}
    assert [path.name for path, text in sources.items() if re.search(r"\btime\.time(_ns)?\(", text)] == []
    readers = {f"{path.parent.name}/{path.name}" for path, text in sources.items() if "datetime.now(" in text}
    known = {
        "admission/certificates.py", "claims/status.py", "client/credentials.py",
        "client/events.py", "controller/binding.py", "controller/election.py", "kubelet/plugin_server.py",
        "node/removal_confirmation.py", "node/health_ledger.py", "node/status.py", "state/salvage.py",
    }  # fmt: skip
    assert readers == known
