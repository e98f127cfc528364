"""Programs and objects as effects: what ``ensure`` gives of them, and what their classes must say."""

from typing import Any, assert_type

import dra_kit as dra
from dra_kit.testing import unit


class Oven:
    pipe = "/run/oven"


class Daemon(dra.ChildProcess[Oven], id="daemon"):
    def keys(self) -> list[str]:
        return ["oven"]

    def command(self) -> list[str]:
        return ["ovend", "-f", self.hardware.pipe]

    def environment(self) -> dict[str, str]:
        return {"OVEN": self.hardware.plug}  # error: attr-defined reportAttributeAccessIssue

    async def ready(self) -> bool:
        return True


class Attachment(
    dra.ClusterObject, id="attachment", api_version="a.example/v1", kind="Attachment", plural="attachments"
):
    port: int

    def body(self) -> dict[str, Any]:
        return {"spec": {"port": self.port}}


class Waiter(dra.Preparer):
    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        running = await device.ensure(Daemon())
        assert_type(running, dra.RunningProcess)
        applied = await device.ensure(Attachment(claim_uid=claim.uid, namespace=claim.namespace, port=7))
        assert_type(applied, dra.AppliedObject)
        return dra.Prepared(env={"DAEMON": running.pid})  # error: dict-item reportArgumentType


class Clears(Daemon, id="clears"):
    async def clear(self) -> None:
        return None


def test_a_bench(any_driver: dra.Driver[Any, Any]) -> None:
    with unit(any_driver) as bench:
        bench.prepare("lunch", [dra.Device(name="a")], within=10)
        bench.prepare("lunch", [dra.Device(name="a")], within="10 s")  # error: arg-type reportArgumentType
        assert_type(bench.objects, dict[str, dict[str, Any]])
