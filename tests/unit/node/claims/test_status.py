"""What a driver reports about its devices: in the claim's status, and in a file for containers."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.errors import StoreError, Unavailable
from dra_kit.node.claims.metadata import MetadataFiles
from dra_kit.node.failpoints import Failpoint, set_listener
from dra_kit.node.locks import ByteLocks
from tests.support.api import eventually
from tests.unit.node.drivers import Doing, Oven, Waiter, driver
from tests.unit.node.role import DRIVER, NODE, PLENTY, Node, set_deadline

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


@pytest.fixture
def written() -> Iterator[list[Failpoint]]:
    """One for each status whose writing has been answered; what the API server was asked for may still be under way."""
    found: list[Failpoint] = []
    set_listener(lambda step: found.append(step) if step is Failpoint.STATUS_WRITTEN else None)
    yield found
    set_listener(None)


def ready(status: str = "True") -> dra.DeviceStatus:
    return dra.DeviceStatus(conditions=[dra.Condition(type="Ready", status=status, reason="Baked")], data={"slices": 8})  # type: ignore[arg-type]


def statuses(node: Node) -> list[dict[str, Any]]:
    [claim] = node.api.objects("resourceclaims")
    found: list[dict[str, Any]] = claim["status"].get("devices", [])
    return found


def metadata(node: Node, claim: dra.ClaimReference) -> dict[str, Any]:
    """What a container reads about its device."""
    document: dict[str, Any] = json.loads(metadata_file(node, claim).read_text())
    return document


def metadata_file(node: Node, claim: dra.ClaimReference) -> Path:
    [mount] = node.spec(claim)["devices"][0]["containerEdits"]["mounts"]
    return Path(mount["hostPath"])


async def test_a_status_is_written_without_changing_those_of_other_drivers(node: Node) -> None:
    lunch = node.claim()
    [claim] = node.api.objects("resourceclaims")
    other = {"driver": "gpu.example", "pool": "p", "device": "d"}
    claim["status"]["devices"] = [other]
    node.api.put("resourceclaims", claim)
    async with node.running(driver(Doing(lambda claim, device: dra.Prepared(status=ready())))):
        await node.prepare(lunch)
        await eventually(lambda: len(statuses(node)) == 2)
    assert statuses(node)[0] == other
    entry = statuses(node)[1]
    assert (entry["driver"], entry["pool"], entry["device"], entry["data"]) == (
        "dra.pizza", "node-1", "pizza-0", {"slices": 8},
    )  # fmt: skip
    [condition] = entry["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Ready", "True", "Baked")


async def test_a_claim_without_status_is_never_written(node: Node) -> None:
    lunch = node.claim()
    async with node.running(driver()):
        await node.prepare(lunch)
        await node.unprepare(lunch)
    assert not [request for request in node.api.requests if request.method == "PATCH"]


async def test_a_pending_status_is_dropped_when_the_claim_is_released(node: Node, written: list[Failpoint]) -> None:
    lunch, dinner = node.claim("lunch"), node.claim("dinner", devices=["pizza-1"])
    async with node.running(driver(Doing(lambda claim, device: dra.Prepared(status=ready())))):
        with node.api.failing(503, "PATCH", below=f"{CLAIMS}/lunch"):
            await node.prepare(lunch)
            await eventually(lambda: node.api.asked("PATCH", f"{CLAIMS}/lunch/status"))
            await node.unprepare(lunch)
            await node.prepare(dinner)
            await eventually(lambda: written)  # one after the other: none of lunch is under way
        asked = node.api.asked("PATCH", f"{CLAIMS}/lunch/status")
        await node.prepare(lunch)
        await eventually(lambda: len(written) == 2)
        assert node.api.asked("PATCH", f"{CLAIMS}/lunch/status") == asked + 1


async def test_a_restarted_driver_does_not_rewrite_a_written_status(node: Node, written: list[Failpoint]) -> None:
    lunch, dinner = node.claim("lunch"), node.claim("dinner", devices=["pizza-1"])
    kitchen = driver(Doing(lambda claim, device: dra.Prepared(status=dra.DeviceStatus(data={"slices": 8}))))
    async with node.running(kitchen):
        await node.prepare(lunch)
        await eventually(lambda: written)
    claim = next(item for item in node.api.objects("resourceclaims") if item["metadata"]["name"] == "lunch")
    claim["status"]["devices"][0]["conditions"] = None  # as Kubernetes gives it back
    node.api.put("resourceclaims", claim)
    async with node.running(kitchen):
        await node.prepare(dinner)
        await eventually(lambda: node.api.asked("PATCH", f"{CLAIMS}/dinner/status"))  # written in order
    assert node.api.asked("PATCH", f"{CLAIMS}/lunch/status") == 1


async def test_a_status_written_during_a_second_prepare_is_not_rewritten(node: Node, written: list[Failpoint]) -> None:
    lunch, dinner = node.claim("lunch"), node.claim("dinner", devices=["pizza-1"])
    [before] = [item for item in node.api.objects("resourceclaims") if item["metadata"]["name"] == "lunch"]
    async with node.running(driver(Doing(lambda claim, device: dra.Prepared(status=ready())))):
        await node.prepare(lunch)
        await eventually(lambda: written)
        [after] = [item for item in node.api.objects("resourceclaims") if item["metadata"]["name"] == "lunch"]
        node.api.put("resourceclaims", before)

        def write(step: Failpoint) -> None:
            if step is Failpoint.CLAIM_FETCHED:
                node.api.put("resourceclaims", after)

        set_listener(write)
        try:
            await node.prepare(lunch)
        finally:
            set_listener(None)
        await node.prepare(dinner)
        await eventually(lambda: node.api.asked("PATCH", f"{CLAIMS}/dinner/status"))  # written in order
    assert node.api.asked("PATCH", f"{CLAIMS}/lunch/status") == 1


@pytest.mark.processes
async def test_an_unwritable_status_does_not_delay_other_claims(node: Node) -> None:
    lunch, dinner = node.claim("lunch"), node.claim("dinner", devices=["pizza-1"])
    async with node.running(driver(Doing(lambda claim, device: dra.Prepared(status=ready())))):
        with node.api.failing(503, "PATCH", below=f"{CLAIMS}/lunch"):
            await node.prepare(lunch)
            await eventually(lambda: node.api.asked("PATCH", f"{CLAIMS}/lunch/status"))
            await node.prepare(dinner)
            await eventually(lambda: any(item["status"].get("devices") for item in node.api.objects("resourceclaims")))
        await eventually(lambda: all(item["status"].get("devices") for item in node.api.objects("resourceclaims")))


async def test_a_restarted_driver_writes_no_status_of_a_deleted_claim(node: Node, written: list[Failpoint]) -> None:
    lunch, dinner = node.claim("lunch"), node.claim("dinner", devices=["pizza-1"])
    kitchen = driver(Doing(lambda claim, device: dra.Prepared(status=ready())))
    async with node.running(kitchen):
        await node.prepare(lunch)
        await eventually(lambda: written)
    node.api.delete("resourceclaims", "lunch", "default")
    async with node.running(kitchen):
        await node.prepare(dinner)
        await eventually(lambda: node.api.asked("PATCH", f"{CLAIMS}/dinner/status"))  # written in order
    assert node.api.asked("PATCH", f"{CLAIMS}/lunch/status") == 1


async def test_a_restarted_driver_writes_a_missing_status(node: Node) -> None:
    lunch = node.claim()
    kitchen = driver(Doing(lambda claim, device: dra.Prepared(status=ready())))
    async with node.running(kitchen):
        await node.prepare(lunch)
        await eventually(lambda: statuses(node))
    [claim] = node.api.objects("resourceclaims")
    claim["status"]["devices"][0]["data"] = {"slices": 7}
    node.api.put("resourceclaims", claim)
    async with node.running(kitchen):
        await eventually(lambda: statuses(node)[0]["data"] == {"slices": 8})


async def test_a_rejected_status_does_not_affect_claims(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    lunch = node.claim()
    async with node.running(driver(Doing(lambda claim, device: dra.Prepared(status=ready())))):
        with node.api.failing(403, "PATCH"):
            await node.prepare(lunch)
            await eventually(lambda: [item for item in caplog.records if "status not written" in item.getMessage()])
        await node.unprepare(lunch)
        assert node.is_clean()


async def test_an_invalid_status_fails_the_claim(node: Node) -> None:
    bad = dra.DeviceStatus(conditions=[dra.Condition(type="Ready", status="True", reason="no reason")])
    lunch = node.claim()
    async with node.running(driver(Doing(lambda claim, device: dra.Prepared(status=bad)))):
        assert "prepare returned a status that the API rejects: " in await node.error(lunch)
        assert node.is_clean()


async def test_metadata_is_mounted_as_a_file(node: Node) -> None:
    told = dra.DeviceMetadata(attributes={"dough": "pan"})
    lunch = node.claim()
    async with node.running(driver(Doing(lambda claim, device: dra.Prepared(metadata=told)))):
        await node.prepare(lunch)
        [mount] = node.spec(lunch)["devices"][0]["containerEdits"]["mounts"]
        assert mount["containerPath"] == (
            "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/lunch/pizza/dra.pizza-metadata.json"
        )
        document, path = metadata(node, lunch), metadata_file(node, lunch)
        assert document["metadata"] == {"name": "lunch", "namespace": "default", "uid": "uid-lunch", "generation": 1}
        device = {"driver": "dra.pizza", "pool": NODE, "name": "pizza-0", "attributes": {"dough": {"string": "pan"}}}
        assert document["requests"] == [{"name": "pizza", "devices": [device]}]
        path.unlink()
        await node.prepare(lunch)
        assert metadata(node, lunch) == document
        await node.unprepare(lunch)
        assert not path.exists()
        assert node.is_clean()


POD: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "name": "guest", "controller": True}
ORDINARY, GENERATED = "resourceclaims/lunch", "resourceclaimtemplates/my-lunch"


@pytest.mark.parametrize(
    ("name", "owner", "origin"),
    [
        ("my-lunch", POD, GENERATED),
        ("my-lunch", None, ORDINARY),
        ("my-lunch", {**POD, "controller": False}, ORDINARY),
        ("/etc", None, ORDINARY),
        ("/etc", POD, ORDINARY),
        ("..", POD, ORDINARY),
        ("my/lunch", POD, ORDINARY),
    ],
)
async def test_only_the_annotation_of_a_generated_claim_determines_the_metadata_path(
    node: Node, name: str, owner: dict[str, Any] | None, origin: str
) -> None:
    told = dra.DeviceMetadata(attributes={"dough": "pan"})
    lunch = node.claim(annotations={"resource.kubernetes.io/pod-claim-name": name}, owner=owner)
    async with node.running(driver(Doing(lambda claim, device: dra.Prepared(metadata=told)))):
        await node.prepare(lunch)
        [mount] = node.spec(lunch)["devices"][0]["containerEdits"]["mounts"]
        assert mount["containerPath"] == (
            f"/var/run/kubernetes.io/dra-device-attributes/{origin}/pizza/dra.pizza-metadata.json"
        )
        assert metadata(node, lunch).get("podClaimName") == ("my-lunch" if origin == GENERATED else None)


@pytest.mark.parametrize("request_name", ["../../../../etc", "/etc", "..", "a\nb", "x" * 64])
async def test_metadata_of_a_request_with_an_invalid_name_is_rejected(node: Node, request_name: str) -> None:
    told = dra.DeviceMetadata(attributes={"dough": "pan"})
    lunch = node.claim(devices=[{"device": "pizza-0", "request": request_name}])
    async with node.running(driver(Doing(lambda claim, device: dra.Prepared(metadata=told)))):
        assert "device metadata cannot be mounted" in await node.error(lunch)
        assert node.is_clean()


async def test_device_updates_are_stored_and_published(node: Node) -> None:
    oven = Oven()
    first = dra.Prepared(status=ready("False"), metadata=dra.DeviceMetadata(attributes={"dough": "pan"}))
    lunch = node.claim()
    async with node.running(driver(Doing(lambda claim, device: first), oven)):
        await node.prepare(lunch)
        await eventually(lambda: statuses(node))
        later = dra.DeviceMetadata(attributes={"dough": "thin"})
        oven.context.update("pizza-0", status=ready("True"), metadata=later)
        await eventually(lambda: statuses(node)[0]["conditions"][0]["status"] == "True")
        document = metadata(node, lunch)
        assert document["metadata"]["generation"] == 2
        assert document["requests"][0]["devices"][0]["attributes"] == {"dough": {"string": "thin"}}
        oven.context.update("pizza-3", pool=NODE, status=ready())
        await node.unprepare(lunch)
        assert node.is_clean()


@pytest.mark.parametrize("later", ["a much longer text than it was before", "x"])
async def test_updated_metadata_is_visible_to_a_running_container(node: Node, later: str) -> None:
    """It has the file itself mounted, not its name in the directory."""
    oven = Oven()
    first = dra.Prepared(metadata=dra.DeviceMetadata(attributes={"dough": "thick and crispy"}))
    lunch = node.claim()
    async with node.running(driver(Doing(lambda claim, device: first), oven)):
        await node.prepare(lunch)
        with metadata_file(node, lunch).open() as mounted:
            oven.context.update("pizza-0", metadata=dra.DeviceMetadata(attributes={"dough": later}))

            def seen() -> Any:
                mounted.seek(0)
                return json.load(mounted)["requests"][0]["devices"][0]["attributes"]

            await eventually(lambda: seen() == {"dough": {"string": later}})


async def test_invalid_device_updates_are_reported(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    oven = Oven()
    lunch = node.claim()
    bad = dra.DeviceStatus(conditions=[dra.Condition(type="Ready", status="True", reason="no reason")])
    async with node.running(driver(provider=oven)):
        await node.prepare(lunch)
        oven.context.update("pizza-0", status=bad)
        await eventually(lambda: [item for item in caplog.records if "device update" in item.getMessage()])
        assert node.records() == ["lunch"]


async def test_device_updates_during_prepare_are_stored(node: Node) -> None:
    oven = Oven()
    lunch = node.claim()

    def prepare(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        oven.context.update(device.name, status=ready("True"))
        return dra.Prepared()

    async with node.running(driver(Doing(prepare), oven)):
        await node.prepare(lunch)
        await eventually(lambda: [item["conditions"][0]["status"] for item in statuses(node)] == ["True"])


async def test_waiting_update_returns_when_the_container_can_read_the_facts(node: Node) -> None:
    oven = Oven()
    first = dra.Prepared(metadata=dra.DeviceMetadata(attributes={"dough": "pan"}))
    lunch = node.claim()
    async with node.running(driver(Doing(lambda claim, device: first), oven)):
        await node.prepare(lunch)
        later = dra.DeviceMetadata(attributes={"dough": "thin"})
        for dough in ("thin", "thick"):
            later = dra.DeviceMetadata(attributes={"dough": dough})
            await asyncio.to_thread(oven.context.update, "pizza-0", metadata=later, wait=True)
            attributes = metadata(node, lunch)["requests"][0]["devices"][0]["attributes"]
            assert attributes == {"dough": {"string": dough}}


async def test_waiting_updates_of_many_threads_are_all_written(node: Node) -> None:
    oven = Oven()
    lunch = node.claim()
    async with node.running(driver(Waiter(), oven)):
        await node.prepare(lunch)
        updates = [
            asyncio.to_thread(oven.context.update, "pizza-0", status=ready(str(number % 2 == 0)), wait=True)
            for number in range(10)
        ]
        await asyncio.wait_for(asyncio.gather(*updates), 60)
        await eventually(lambda: statuses(node))


async def test_waiting_update_raises_why_the_facts_are_not_written(node: Node) -> None:
    oven = Oven()
    lunch = node.claim()
    bad = dra.DeviceStatus(conditions=[dra.Condition(type="Ready", status="True", reason="no reason")])
    async with node.running(driver(Waiter(), oven)):
        with pytest.raises(dra.TransientError, match="device node-1/pizza-0: facts not written: no claim is prepared"):
            await asyncio.to_thread(oven.context.update, "pizza-0", status=ready(), wait=True)
        await node.prepare(lunch)
        with pytest.raises(dra.DraKitError, match="reason"):
            await asyncio.to_thread(oven.context.update, "pizza-0", status=bad, wait=True)
        with pytest.raises(dra.ConfigurationError, match=r"asyncio\.to_thread\(self\.context\.update"):
            oven.context.update("pizza-0", status=ready(), wait=True)


async def test_update_does_not_wait_for_the_call_that_it_is_in(node: Node) -> None:
    class Waiting(dra.Preparer):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            self.context.update(device.name, status=ready(), wait=True)
            return dra.Prepared()

    async with node.running(driver(Waiting())):
        error = await node.error(node.claim())
        assert "would wait for the call of the driver's code that it is in; return the facts in Prepared" in error


async def test_waiting_updates_of_two_calls_for_each_other_end_at_once(node: Node) -> None:
    first, second = node.claim("a", ["pizza-0"]), node.claim("b", ["pizza-1"])
    both = threading.Barrier(2)

    class Waiting(dra.Preparer):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            both.wait(60)
            other, name = (second, "pizza-1") if claim.name == "a" else (first, "pizza-0")
            self.context.update(name, claim=other, status=ready(), wait=True)
            return dra.Prepared()

    async with node.running(driver(Waiting()), deadline=PLENTY):
        answers = await node.kubelet.plugin(DRIVER).prepare([first, second])
    errors = [answer.error for answer in answers.values()]
    assert any("would wait in a circle" in error for error in errors), errors
    assert not any("not prepared within" in error for error in errors), errors


async def test_waiting_update_does_not_wait_for_a_call_that_comes_after_its_own(node: Node) -> None:
    first, second = node.claim("a", ["pizza-0"]), node.claim("b", ["pizza-1"])
    others = {first.uid: (second, "pizza-1"), second.uid: (first, "pizza-0")}

    class Waiting(dra.Preparer):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            other, name = others.pop(claim.uid, (None, ""))
            others.clear()  # only in the first call
            if other is not None:
                self.context.update(name, claim=other, status=ready(), wait=True)
            return dra.Prepared()

    async with node.running(driver(Waiting(), concurrency="driver"), deadline=PLENTY):
        answers = await node.kubelet.plugin(DRIVER).prepare([first, second])
    [error] = [answer.error for answer in answers.values() if answer.error]
    assert f"device {NODE}/pizza-" in error
    assert "would wait in a circle" in error


async def test_device_updates_do_not_wait_for_hanging_claims(node: Node) -> None:
    oven, go_on = Oven(), threading.Event()
    entered: list[str] = []
    lunch, *slow = (node.claim(name, [f"pizza-{i}"]) for i, name in enumerate(("lunch", "slow-1", "slow-2", "slow-3")))

    def hang(claim: dra.Claim) -> dra.Prepared:
        entered.append(claim.name)
        if claim.name != "lunch":
            go_on.wait()
        return dra.Prepared()

    def told() -> list[str]:
        [found] = [item for item in node.api.objects("resourceclaims") if item["metadata"]["name"] == "lunch"]
        return [item["conditions"][0]["status"] for item in found["status"].get("devices", [])]

    async with node.running(driver(Doing(lambda claim, device: asyncio.to_thread(hang, claim)), oven)):
        await node.prepare(lunch)
        hanging = asyncio.create_task(node.prepare(*slow))
        await eventually(lambda: len(entered) == 4)
        oven.context.update("pizza-0", status=ready("True"))
        oven.context.update("pizza-0", status=ready("False"))
        await eventually(lambda: told() == ["False"])
        go_on.set()
        await hanging


def addresses(node: Node) -> dict[str, list[str]]:
    """What the claims say of their shares, by claim."""
    return {
        claim["metadata"]["name"]: [
            f"{entry.get('shareID')} {ip}"
            for entry in claim["status"].get("devices", [])
            for ip in entry.get("networkData", {}).get("ips", [])
        ]
        for claim in node.api.objects("resourceclaims")
    }


def address(ip: str) -> dra.DeviceStatus:
    return dra.DeviceStatus(network_data=dra.NetworkDeviceData(ips=[ip]))


NIC = ["5f1c6f2e-0000-4000-8000-000000000001", "5f1c6f2e-0000-4000-8000-000000000002"]


@pytest.mark.parametrize("by", ["claim", "uid", "prepared claim", "share"])
async def test_device_updates_of_one_share_do_not_change_another(node: Node, by: str) -> None:
    oven = Oven()
    claims = [node.claim(f"lunch-{n}", [{"device": "pizza-0", "shareID": share}]) for n, share in enumerate(NIC)]
    async with node.running(driver(provider=oven)):
        await node.prepare(*claims)
        for number, (claim, share) in enumerate(zip(claims, NIC, strict=True)):
            told = address(f"10.0.0.{number}/24")
            match by:
                case "claim":
                    oven.context.update("pizza-0", claim=claim, status=told)
                case "uid":
                    oven.context.update("pizza-0", claim=claim.uid, status=told)
                case "prepared claim":
                    oven.context.update("pizza-0", claim=oven.context.prepared()[claim.uid], status=told)
                case "share":
                    oven.context.update("pizza-0", share=share, status=told)
        expected = {f"lunch-{n}": [f"{share} 10.0.0.{n}/24"] for n, share in enumerate(NIC)}
        await eventually(lambda: addresses(node) == expected)


async def test_device_updates_change_one_of_several_shares_of_a_claim(node: Node) -> None:
    oven = Oven()
    lunch = node.claim(devices=[{"device": "pizza-0", "shareID": share} for share in NIC])
    async with node.running(driver(provider=oven)):
        await node.prepare(lunch)
        oven.context.update("pizza-0", status=address("10.0.0.9/24"))
        oven.context.update("pizza-0", claim=lunch, share=NIC[1], status=address("10.0.0.2/24"))
        await eventually(lambda: addresses(node) == {"lunch": [f"{NIC[0]} 10.0.0.9/24", f"{NIC[1]} 10.0.0.2/24"]})
        oven.context.update("pizza-0", status=address("10.0.0.7/24"))
        await eventually(lambda: addresses(node) == {"lunch": [f"{share} 10.0.0.7/24" for share in NIC]})


async def test_only_the_latest_device_update_is_written(node: Node) -> None:
    oven, entered, go_on = Oven(), asyncio.Event(), asyncio.Event()

    async def slowly(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        entered.set()
        await go_on.wait()
        return dra.Prepared(metadata=dra.DeviceMetadata(attributes={"slices": 0}))

    lunch = node.claim()
    async with node.running(driver(Doing(slowly), oven)):
        preparing = asyncio.create_task(node.prepare(lunch))
        await entered.wait()
        oven.context.update("pizza-0", status=ready("True"))
        for slices in range(1, 201):
            oven.context.update("pizza-0", metadata=dra.DeviceMetadata(attributes={"slices": slices}))
        go_on.set()
        await preparing
        await eventually(lambda: statuses(node))
        document = metadata(node, lunch)
        assert document["requests"][0]["devices"][0]["attributes"] == {"slices": {"int": 200}}
        assert document["metadata"]["generation"] == 2, "written once"


async def test_device_updates_work_again_after_a_lock_failure(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(locks: ByteLocks, name: str) -> int | None:
        raise StoreError("no space left")

    oven = Oven()
    async with node.running(driver(provider=oven)):
        await node.prepare(node.claim())
        with monkeypatch.context() as disk:
            disk.setattr(ByteLocks, "take", full)
            oven.context.update("pizza-0", status=ready("False"))
            await eventually(lambda: "device update not written" in caplog.messages)
        oven.context.update("pizza-0", status=ready("True"))
        await eventually(lambda: statuses(node) and statuses(node)[0]["conditions"][0]["status"] == "True")


@pytest.mark.parametrize(
    ("device", "claim"), [("pizza-0", "uid-dinner"), ("piza-0", None)], ids=["of another claim", "unknown"]
)
async def test_a_device_update_for_no_claim_is_reported(
    node: Node, device: str, claim: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    oven = Oven()
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    async with node.running(driver(provider=oven)):
        await node.prepare(lunch, dinner)
        oven.context.update(device, claim=claim, status=ready())
        await eventually(lambda: [item for item in caplog.records if "device update dropped" in item.getMessage()])
        [told] = [item for item in caplog.records if "device update dropped" in item.getMessage()]
        assert vars(told).get("claim_uid") == claim
    assert not any(item["status"].get("devices") for item in node.api.objects("resourceclaims"))


async def test_device_updates_are_not_dropped_while_another_claim_is_prepared(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    oven, entered, go_on = Oven(), asyncio.Event(), asyncio.Event()

    async def slowly(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        if claim.name == "dinner":
            entered.set()
            await go_on.wait()
        return dra.Prepared()

    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    async with node.running(driver(Doing(slowly), oven)):
        await node.prepare(lunch)
        preparing = asyncio.create_task(node.prepare(dinner))
        await entered.wait()
        oven.context.update("pizza-0", status=ready())
        await eventually(lambda: any(item["status"].get("devices") for item in node.api.objects("resourceclaims")))
        go_on.set()
        await preparing
        await node.unprepare(dinner)  # behind all that waited for it
    assert not [item for item in caplog.records if "dropped" in item.getMessage()]


async def test_the_metadata_generation_increases_when_a_claim_is_prepared_again(node: Node) -> None:
    def cook(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        slot = str(device.advertised.attributes["slot"])
        return dra.Prepared(env={"SLOT": slot}, metadata=dra.DeviceMetadata(attributes={"a": 1}))

    oven, lunch = Oven(dra.Device(name="pizza-0", attributes={"slot": 1})), node.claim()
    async with node.running(driver(Doing(cook), oven)):
        await node.prepare(lunch)
        oven.context.update("pizza-0", metadata=dra.DeviceMetadata(attributes={"a": 2}))
        await eventually(lambda: metadata(node, lunch)["metadata"]["generation"] == 2)
        oven.devices = (dra.Device(name="pizza-0", attributes={"slot": 2}),)
        oven.context.rescan()
        await eventually(lambda: metadata(node, lunch)["metadata"]["generation"] == 3)


async def test_no_status_is_written_after_a_release_that_exceeded_its_deadline(
    node: Node, written: list[Failpoint]
) -> None:
    lunch, dinner = node.claim("lunch"), node.claim("dinner", devices=["pizza-1"])
    async with node.running(driver(Doing(lambda claim, device: dra.Prepared(status=ready())))) as agent:
        with node.api.failing(503, "PATCH", below=f"{CLAIMS}/lunch"):
            await node.prepare(lunch)
            await eventually(lambda: node.api.asked("PATCH", f"{CLAIMS}/lunch/status"))
            set_deadline(agent, 0.3)
            with closing(sqlite3.connect(node.settings().database(DRIVER), isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")  # the disk stands still
                assert "not released within 0.3 s" in await node.unprepare_error(lunch)
                other.execute("ROLLBACK")
            set_deadline(agent, PLENTY)
            await node.unprepare(lunch)
            await node.prepare(dinner)
            await eventually(lambda: written)  # one after the other: none of lunch is under way
        asked = node.api.asked("PATCH", f"{CLAIMS}/lunch/status")
        await node.unprepare(dinner)
        await node.prepare(dinner)
        await eventually(lambda: len(written) == 2)
        assert node.api.asked("PATCH", f"{CLAIMS}/lunch/status") == asked


async def test_no_status_is_written_of_a_claim_that_another_process_has_released(
    node: Node, written: list[Failpoint]
) -> None:
    def served() -> dra.Driver[Any, Any]:
        return driver(Doing(lambda claim, device: dra.Prepared(status=ready())))

    lunch, dinner = node.claim("lunch"), node.claim("dinner", devices=["pizza-1"])
    async with node.running(served(), pod_uid="old") as old:
        [former] = node.kubelet.plugins(DRIVER)
        with node.api.failing(503, "PATCH", below=f"{CLAIMS}/lunch"):
            await node.prepare(lunch)
            await eventually(lambda: node.api.asked("PATCH", f"{CLAIMS}/lunch/status"))
            async with node.running(served(), pod_uid="new"):
                await node.unprepare(lunch)
                assert not (await former.prepare([dinner]))[dinner.uid].error
                await eventually(lambda: written)  # by the old one, which has had its turn with lunch
                asked = node.api.asked("PATCH", f"{CLAIMS}/lunch/status")
                await node.unprepare(dinner)
                assert not (await former.prepare([dinner]))[dinner.uid].error
                await eventually(lambda: len(written) == 2)
                assert node.api.asked("PATCH", f"{CLAIMS}/lunch/status") == asked
                old.stop()


@pytest.mark.parametrize("code", [401, 403, 409])
async def test_a_temporarily_forbidden_status_is_written_later(
    node: Node, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr("dra_kit.node.claims.status.RETRY", (0.05,))
    lunch = node.claim()
    async with node.running(driver(Doing(lambda claim, device: dra.Prepared(status=ready())))):
        with node.api.failing(code, "PATCH"):
            await node.prepare(lunch)
            await eventually(lambda: node.api.asked("PATCH", f"{CLAIMS}/lunch/status") > 1)
        await eventually(lambda: statuses(node))


async def test_an_older_process_does_not_overwrite_the_status_of_a_newer_one(
    node: Node, monkeypatch: pytest.MonkeyPatch, written: list[Failpoint]
) -> None:
    monkeypatch.setattr("dra_kit.node.claims.status.RETRY", (0.05,))
    away = True

    def served(oven: Oven) -> dra.Driver[Any, Any]:
        return driver(Doing(lambda claim, device: dra.Prepared(status=ready("False"))), oven)

    def told() -> list[str]:
        return [entry["conditions"][0]["status"] for entry in statuses(node)]

    lunch, oven = node.claim(), Oven()
    async with node.running(served(Oven()), pod_uid="old") as old:
        patch = old._client.patch

        async def failing(*args: Any, **options: Any) -> Any:
            if away:
                raise Unavailable("no connection")
            return await patch(*args, **options)

        monkeypatch.setattr(old._client, "patch", failing)
        await node.prepare(lunch)
        async with node.running(served(oven), pod_uid="new"):
            await eventually(lambda: told() == ["False"])  # the next one reports what was prepared before
            oven.context.update("pizza-0", status=ready("True"))
            await eventually(lambda: told() == ["True"])
            count, away = len(written), False
            await eventually(lambda: len(written) > count)  # by the last one, late
            assert told() == ["True"]
            old.stop()


async def test_a_device_update_is_published_even_if_files_cannot_be_written(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node.given["repair_interval"] = 0.05

    def full(*_: object) -> None:
        raise StoreError("no space left")

    served = dra.Prepared(status=ready("False"), metadata=dra.DeviceMetadata(attributes={"dough": "pan"}))
    oven = Oven()
    async with node.running(driver(Doing(lambda claim, device: served), oven)):
        await node.prepare(node.claim())
        await eventually(lambda: statuses(node))
        with monkeypatch.context() as disk:
            disk.setattr(MetadataFiles, "write", full)
            thin = dra.DeviceMetadata(attributes={"dough": "thin"})
            oven.context.update("pizza-0", status=ready("True"), metadata=thin)
            await eventually(lambda: "device update not written" in caplog.messages)
            await eventually(lambda: statuses(node)[0]["conditions"][0]["status"] == "True")
        [file] = node.root.rglob("metadata.json")
        await eventually(lambda: "thin" in file.read_text())
