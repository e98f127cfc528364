"""Prepares through the kubelet's socket: answers, files for containers, and API requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ValidationInfo, field_validator

import dra_kit as dra
from dra_kit.kubelet.plugin_client import DeviceAnswer
from dra_kit.kubernetes.resource.objects import ClaimReference
from tests.support.api import eventually
from tests.unit.node import role
from tests.unit.node.drivers import Doing, Oven, Waiter, driver
from tests.unit.node.hardware import Hardware, Heat
from tests.unit.node.role import DRIVER, Node


class PizzaConfig(dra.OpaqueConfig, api_version="kitchen.example/v1"):
    toppings: list[Literal["mushrooms", "olives"]] = []
    cheese: bool = False


def parameters(**fields: object) -> dict[str, object]:
    return {"apiVersion": "kitchen.example/v1", "kind": "PizzaConfig", **fields}


class Cook(dra.Preparer[PizzaConfig]):
    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[PizzaConfig]) -> dra.Prepared:
        toppings = [",".join(entry.config.toppings) for entry in device.configs]
        env = {device.env_name: f"{','.join(device.config.toppings)} of {toppings}"}
        return dra.Prepared(env=env)


async def test_a_claim_is_prepared_and_released(node: Node) -> None:
    lunch = node.claim()
    async with node.running(driver()):
        assert await node.prepare(lunch) == [
            DeviceAnswer(("pizza",), "node-1", "pizza-0", ("k8s.dra.pizza/claim=uid-lunch:pizza:node-1:pizza-0",), None)
        ]
        assert node.env(lunch) == ["PIZZA_0=served"]
        assert node.records() == ["lunch"]
        await node.unprepare(lunch)
        assert node.is_clean()


async def test_an_older_kubelet_gets_the_same_without_share_ids() -> None:
    async with role.node(services=("v1beta1.DRAPlugin",)) as node:
        lunch = node.claim(devices=[{"device": "pizza-0", "shareID": "share-1"}])
        async with node.running(driver()):
            [device] = await node.prepare(lunch)
            assert node.kubelet.plugin(role.DRIVER).service == "v1beta1.DRAPlugin"
            assert (device.device_name, device.share_id) == ("pizza-0", None)
            await node.unprepare(lunch)
            assert node.is_clean()


async def test_preparing_again_returns_the_same_answer_with_one_get(node: Node) -> None:
    waiter = Waiter()
    lunch = node.claim()
    async with node.running(driver(waiter)):
        first = await node.prepare(lunch)
        [path] = node.specs()
        before = path.stat().st_ino
        assert node.gets(lunch) == 1
        assert await node.prepare(lunch) == first
        assert node.gets(lunch) == 2
        assert waiter.calls == ["lunch pizza-0"]
        assert path.stat().st_ino == before, "an intact CDI file is left alone"


@pytest.mark.parametrize("file", ["missing", "emptied"])
async def test_preparing_again_repairs_the_cdi_file(node: Node, file: str) -> None:
    lunch = node.claim()
    async with node.running(driver()):
        await node.prepare(lunch)
        [path] = node.specs()
        content = path.read_bytes()
        if file == "missing":
            path.unlink()
        else:
            path.write_bytes(b"")
        await node.prepare(lunch)
        assert path.read_bytes() == content


async def test_a_failing_claim_does_not_fail_the_others(node: Node) -> None:
    good, bad, other = node.claim("a", ["pizza-0"]), node.claim("b", []), node.claim("c", ["pizza-1"])
    async with node.running(driver()):
        answers = await node.kubelet.plugin(role.DRIVER).prepare([good, bad, other])
        assert {uid: answer.error for uid, answer in answers.items()} == {
            "uid-a": "",
            "uid-b": "claim default/b is not allocated; it is prepared once the scheduler has allocated it",
            "uid-c": "",
        }
        assert node.records() == ["a", "c"]


async def test_concurrent_claims_cost_one_get_each(node: Node) -> None:
    claims = [node.claim(f"claim-{number:02}", [f"pizza-{number}"]) for number in range(20)]
    async with node.running(driver(provider=Oven(*(f"pizza-{number}" for number in range(20))))):
        assert len(await node.prepare(*claims)) == 20
        assert [node.gets(claim) for claim in claims] == [1] * 20
        await node.unprepare(*claims)
        assert node.is_clean()


async def test_prepare_rejects_a_claim_that_does_not_exist(node: Node) -> None:
    async with node.running(driver()):
        error = await node.error(ClaimReference("default", "missing", "uid-1"))
        assert error == ("claim default/missing does not exist; delete the pod that uses it, or create the claim again")
        assert node.is_clean()


async def test_prepare_rejects_a_replaced_claim(node: Node) -> None:
    node.claim("lunch", uid="new")
    async with node.running(driver()):
        error = await node.error(ClaimReference("default", "lunch", "old"))
        assert "default/lunch was replaced: the kubelet asks for UID old, the API server has new" in error
        assert node.is_clean()


async def test_prepare_rejects_a_claim_of_another_driver(node: Node) -> None:
    lunch = node.claim(devices=[{"driver": "gpu.example", "device": "gpu-0"}])
    async with node.running(driver()):
        error = await node.error(lunch)
        assert error.startswith("claim default/lunch has no device of driver dra.pizza, only of gpu.example")


async def test_results_of_other_drivers_are_ignored(node: Node) -> None:
    lunch = node.claim(devices=[{"driver": "gpu.example", "device": "gpu-0"}, "pizza-1"])
    async with node.running(driver()):
        assert [device.device_name for device in await node.prepare(lunch)] == ["pizza-1"]


async def test_an_allocation_that_cannot_be_parsed_is_an_error(node: Node) -> None:
    lunch = node.claim(devices=[{"device": "pizza-0", "consumedCapacity": {"slices": "many"}}])
    async with node.running(driver()):
        assert "default/lunch cannot be parsed" in await node.error(lunch)


async def test_prepare_rejects_a_missing_device(node: Node) -> None:
    lunch = node.claim(devices=["pizza-9"])
    async with node.running(driver()):
        assert (await node.error(lunch)).startswith(
            "device node-1/pizza-9 is not in the driver's inventory any more; it can be prepared when it is back"
        )
        assert node.is_clean()


def entry(source: str, *requests: str, driver: str = DRIVER, **fields: object) -> dict[str, Any]:
    return {
        "source": source,
        "requests": list(requests),
        "opaque": {"driver": driver, "parameters": parameters(**fields)},
    }


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # the claim's config says nothing of toppings
        ([entry("FromClass", toppings=["olives"]), parameters(cheese=True)], " of ['olives', '']"),
        (
            [entry("FromClass", toppings=["olives"]), entry("FromClaim", driver="gpu.example", any=1)],
            "olives of ['olives']",
        ),
        ([entry("FromClaim", "pizza", toppings=["olives"])], "olives of ['olives']"),
        ([], " of []"),
    ],
    ids=["of the claim", "of the class", "of the request of a subrequest", "defaults"],
)
async def test_the_most_specific_config_is_used_unmerged(
    node: Node, config: list[dict[str, Any]], expected: str
) -> None:
    lunch = node.claim(devices=[{"request": "pizza/big", "device": "pizza-0"}], config=config)
    async with node.running(driver(Cook())):
        await node.prepare(lunch)
        assert node.env(lunch) == [f"PIZZA_0={expected}"]


async def test_config_validators_can_use_the_node_settings(node: Node) -> None:
    class Kitchen(BaseModel):
        hottest: int

    class Hot(dra.OpaqueConfig, api_version="kitchen.example/v1"):
        temperature: int = 200

        @field_validator("temperature")
        @classmethod
        def _can_be_reached(cls, value: int, info: ValidationInfo) -> int:
            if isinstance(info.context, Kitchen) and value > info.context.hottest:
                raise ValueError(f"at most {info.context.hottest}")
            return value

    class Baker(dra.Preparer[Hot]):
        async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[Hot]) -> dra.Prepared:
            return dra.Prepared(env={"TEMPERATURE": str(device.config.temperature)})

    lunch = node.claim(config=[{"apiVersion": "kitchen.example/v1", "kind": "Hot", "temperature": 300}])
    async with node.running(driver(Baker(), settings=Kitchen), author=Kitchen(hottest=250)):
        assert "Hot: temperature: at most 250" in await node.error(lunch)
    async with node.running(driver(Baker(), settings=Kitchen), author=Kitchen(hottest=300)):
        await node.prepare(lunch)
        assert node.env(lunch) == ["TEMPERATURE=300"]


async def test_each_config_has_its_source_index_and_requests(node: Node) -> None:
    seen: dict[str, tuple[dra.ConfigEntry[PizzaConfig], ...]] = {}

    class Noting(dra.Preparer[PizzaConfig]):
        async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[PizzaConfig]) -> dra.Prepared:
            seen[device.name] = device.configs
            return dra.Prepared()

    lunch = node.claim(
        devices=[{"request": "big", "device": "pizza-0"}, {"request": "small/pan", "device": "pizza-1"}],
        config=[
            entry("FromClass", "big"),
            entry("FromClaim", driver="dra.drinks"),
            entry("FromClaim"),
            entry("FromClaim", "small/pan", "big"),
        ],
    )
    await node.prepared_by(driver(Noting()), lunch)
    assert [(item.source, item.index, item.requests) for item in seen["pizza-0"]] == [
        ("class", 0, ("big",)),
        ("claim", 2, ()),
        ("claim", 3, ("small/pan", "big")),
    ]
    assert [item.index for item in seen["pizza-1"]] == [2, 3]
    assert seen["pizza-0"][2].config is seen["pizza-1"][1].config, "one entry, one config"
    assert [str(item) for item in seen["pizza-0"]] == [
        "PizzaConfig of the DeviceClass, for big",
        "PizzaConfig of the claim, for all requests",
        "PizzaConfig of the claim, for small/pan, big",
    ]


async def test_a_config_has_its_requests_even_if_the_scheduler_omitted_them(node: Node) -> None:
    seen: list[tuple[str, tuple[str, ...]]] = []

    class Noting(dra.Preparer[PizzaConfig]):
        async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[PizzaConfig]) -> dra.Prepared:
            seen.extend((entry.source, entry.requests) for entry in device.configs)
            return dra.Prepared()

    olives, mushrooms = (entry("FromClaim", toppings=[name]) for name in ("olives", "mushrooms"))
    lunch = node.claim(
        config=[entry("FromClass"), olives, mushrooms],
        spec={
            "devices": {
                "config": [{"opaque": olives["opaque"]}, {"requests": ["pizza"], "opaque": mushrooms["opaque"]}]
            }
        },
    )
    await node.prepared_by(driver(Noting()), lunch)
    assert seen == [("class", ()), ("claim", ()), ("claim", ("pizza",))]


async def test_an_invalid_config_is_reported_with_request_source_and_field(node: Node) -> None:
    lunch = node.claim(config=[parameters(toppings=["olvies"], chese=True)])
    async with node.running(driver(Cook())):
        error = await node.error(lunch)
        assert error.startswith("request 'pizza': config of the claim: PizzaConfig: ")
        assert "toppings[0]" in error
        assert 'did you mean "olives"' in error
        assert "chese: unknown field" in error
        assert "cheese" in error
        assert node.is_clean()


async def test_an_invalid_class_config_names_the_class(node: Node) -> None:
    entry = {"source": "FromClass", "opaque": {"driver": role.DRIVER, "parameters": {"kind": "PizzaConfig"}}}
    lunch = node.claim(config=[entry])
    async with node.running(driver(Cook())):
        assert "request 'pizza': config of its DeviceClass: parameters: apiVersion: is missing" in (
            await node.error(lunch)
        )


async def test_subrequests_are_visible_to_the_author_and_not_to_the_kubelet(node: Node) -> None:
    seen = []

    def look(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        seen.append((device.request, device.subrequest))
        return dra.Prepared(env={"A": "1"})

    lunch = node.claim(devices=[{"request": "gpu/big", "device": "pizza-0"}])
    async with node.running(driver(Doing(look))):
        [device] = await node.prepare(lunch)
        assert device.request_names == ("gpu",)
        assert seen == [("gpu", "big")]


async def test_shares_of_one_device_can_be_prepared_for_several_claims(node: Node) -> None:
    shares = [
        node.claim(f"claim-{share}", [{"device": "pizza-0", "shareID": f"share-{share}"}]) for share in ("a", "b")
    ]
    async with node.running(driver()):
        devices = await node.prepare(*shares)
        assert [device.share_id for device in devices] == ["share-a", "share-b"]
        assert len({name for device in devices for name in device.cdi_device_ids}) == 2


async def test_admin_access_works_while_another_claim_has_the_device(node: Node) -> None:
    lunch = node.claim("lunch", ["pizza-0"])
    inspection = node.claim("inspection", [{"device": "pizza-0", "adminAccess": True}])
    seen = {}

    def look(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        seen[claim.name] = device.admin_access
        return dra.Prepared()

    async with node.running(driver(Doing(look))):
        await node.prepare(inspection)
        await node.prepare(lunch)
        assert seen == {"lunch": False, "inspection": True}


async def test_a_device_without_edits_needs_no_cdi_device(node: Node) -> None:
    lunch = node.claim()
    async with node.running(driver(Doing(lambda claim, device: dra.Prepared()))):
        assert [device.cdi_device_ids for device in await node.prepare(lunch)] == [()]
        assert node.specs() == []
        await node.unprepare(lunch)
        assert node.is_clean()


async def test_edits_that_no_runtime_loads_are_rejected_before_anything_is_stored(node: Node) -> None:
    # copied past the constructor, which would refuse it where it is written
    nameless = dra.Prepared(env={"PIZZA": "served"}).model_copy(update={"env": {"": "served"}})
    lunch = node.claim()
    async with node.running(driver(Doing(lambda claim, device: nameless))):
        error = await node.error(lunch)
        assert error.startswith("prepare returned edits that CDI does not allow: devices[0].containerEdits.env[0]: ")
        assert node.is_clean()


async def test_a_claim_waits_for_the_first_inventory(node: Node) -> None:
    lunch = node.claim()
    async with node.running(driver(provider=Broken()), deadline=0.5):
        while "no bus" not in (error := await node.error(lunch)):
            assert error.startswith("not prepared within 0.5 s: "), "asked before discover was"
        assert error == (
            "not prepared within 0.5 s: Broken.discover has not yielded an inventory yet "
            "(RuntimeError: no bus); the kubelet tries again"
        )
        assert node.is_clean()


class Broken(dra.DeviceProvider):
    def discover(self) -> list[list[dra.Device]]:
        raise RuntimeError("no bus")


async def test_the_context_shows_node_claim_and_prepared_claims(node: Node) -> None:
    oven = Oven()
    seen = []

    def look(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        seen.append((claim.pod_claim_name, claim.raw["metadata"]["name"]))
        return dra.Prepared(state={"slices": 8})

    doing = Doing(look)
    pod = {"apiVersion": "v1", "kind": "Pod", "name": "guest", "controller": True}
    lunch = node.claim(annotations={"resource.kubernetes.io/pod-claim-name": "my-lunch"}, owner=pod)
    async with node.running(driver(doing, oven)):
        await node.prepare(lunch)
        assert seen == [("my-lunch", "lunch")]
        assert oven.context is doing.context
        await eventually(node.slices)  # an API server that takes its time is asked for the Node again, for these
        assert (oven.context.node.name, oven.context.node.labels) == ("node-1", {"oven": "hot"})
        [prepared] = oven.context.prepared().values()
        assert (prepared.name, prepared.states) == ("lunch", {("node-1", "pizza-0", None): {"slices": 8}})
        assert oven.context.state_dir.is_dir()
        assert not oven.context.stopping
    assert oven.context.stopping


async def test_prepared_claim_has_its_devices_and_whom_it_was_reserved_for(node: Node) -> None:
    oven = Oven()
    lunch = node.claim(devices=["pizza-0", "pizza-2"], reserved_for=["guest"])
    async with node.running(driver(Doing(lambda claim, device: dra.Prepared(state=device.name)), oven)):
        await node.prepare(lunch)
    async with node.running(driver(Waiter(), oven)):  # from the state, without the API server
        [prepared] = oven.context.prepared().values()
        assert prepared.devices == tuple(
            dra.PreparedDevice(pool="node-1", device=name, request="pizza", state=name)
            for name in ("pizza-0", "pizza-2")
        )
        assert prepared.consumers == (dra.ConsumerReference("", "pods", "guest", "guest"),)


async def test_consumers_of_a_prepared_claim_are_read_when_they_are_needed(node: Node) -> None:
    oven = Oven()
    lunch = node.claim(reserved_for=["guest"])
    async with node.running(driver(Waiter(), oven)):
        await node.prepare(lunch)
        [claim] = node.api.objects("resourceclaims")
        claim["status"]["reservedFor"].append({"resource": "pods", "name": "other", "uid": "uid-2"})
        node.api.put("resourceclaims", claim)
        [prepared] = oven.context.prepared().values()
        now = await oven.context.consumers(prepared)
        assert [(item.name, item.uid) for item in now] == [("guest", "guest"), ("other", "uid-2")]
        in_thread = await asyncio.to_thread(lambda: oven.context.consumers(lunch).result())
        assert in_thread == now
        node.api.delete("resourceclaims", "lunch", "default")
        assert await oven.context.consumers(prepared) == ()
        node.claim(uid="uid-of-another", reserved_for=["guest"])
        assert await oven.context.consumers(prepared) == ()


async def test_waiting_loops_of_a_provider_stop_with_the_process(node: Node) -> None:
    told: list[str] = []

    class Watching(Oven):
        def discover(self) -> Iterator[Sequence[dra.Device]]:
            yield [dra.Device(name="pizza-0")]
            told.append(f"stopping: {self.context.stopping.blocking_sleep(3600)}")

    async with node.running(driver(provider=Watching())):
        await eventually(node.slices)
        assert not told
    await eventually(lambda: told == ["stopping: True"])


async def test_a_replugged_device_is_prepared_again(node: Node) -> None:
    oven = Oven(dra.Device(name="pizza-0", attributes={"slot": 1}))
    cook = Doing(lambda claim, device: dra.Prepared(env={"SLOT": str(device.advertised.attributes["slot"])}))
    lunch = node.claim()
    async with node.running(driver(cook, oven)):
        before = await node.prepare(lunch)
        assert node.env(lunch) == ["SLOT=1"]
        oven.devices = (dra.Device(name="pizza-0", attributes={"slot": 2}),)
        oven.context.rescan()
        await eventually(lambda: node.env(lunch) == ["SLOT=2"])
        assert await node.prepare(lunch) == before


async def test_a_claim_prepared_from_an_older_inventory_is_prepared_again(node: Node) -> None:
    node.given["leftovers_interval"] = 0.05

    def plugged(slot: int) -> dra.Driver[Any, Any]:
        cook = Doing(lambda claim, device: dra.Prepared(env={"SLOT": str(device.advertised.attributes["slot"])}))
        return driver(cook, Oven(dra.Device(name="pizza-0", attributes={"slot": slot})))

    lunch = node.claim()
    async with node.running(plugged(1), pod_uid="old") as old:
        await node.prepare(lunch)
        [former] = node.kubelet.plugins(DRIVER)
        async with node.running(plugged(2), pod_uid="new"):
            await eventually(lambda: node.env(lunch) == ["SLOT=2"])
            assert not (await former.prepare([lunch]))[lunch.uid].error
            old.stop()
            await eventually(lambda: node.env(lunch) == ["SLOT=2"])
            await node.unprepare(lunch)


async def test_a_claim_keeps_its_answer_when_its_device_is_unplugged(node: Node) -> None:
    oven = Oven()
    lunch = node.claim()
    async with node.running(driver(provider=oven)):
        before = await node.prepare(lunch)
        oven.devices = ("pizza-7",)
        oven.context.rescan()
        await eventually(lambda: node.published() == ["pizza-7"])
        assert await node.prepare(lunch) == before
        await node.unprepare(lunch)
        assert node.is_clean()


async def test_admin_access_changes_nothing_for_the_whole_claim(node: Node) -> None:
    class Whole(dra.Preparer):
        async def prepare_claim(
            self, claim: dra.Claim, devices: Sequence[dra.AllocatedDevice]
        ) -> Sequence[dra.Prepared]:
            await claim.ensure(Heat(oven="oven", temperature=200))
            return [dra.Prepared() for _ in devices]

    Heat.hardware = Hardware()
    look = node.claim("look", [{"device": "pizza-0", "adminAccess": True}])
    async with node.running(driver(Whole(), effects=[Heat])):
        assert "has admin access only, which changes nothing" in await node.error(look)
        assert Heat.hardware.log == []


@pytest.mark.parametrize("uid", ["u" * 250, "a b", "\0"], ids=ascii)
async def test_a_uid_that_is_not_a_valid_file_name_is_rejected_before_anything_is_stored(node: Node, uid: str) -> None:
    preparer = Waiter()
    lunch, dinner = node.claim("lunch", uid=uid), node.claim("dinner", ["pizza-1"])
    async with node.running(driver(preparer)):
        answers = await node.kubelet.plugin(DRIVER).prepare([lunch, dinner])
        assert answers[uid].error.startswith("claim UID ")
        assert not answers[dinner.uid].error
        assert preparer.calls == ["dinner pizza-1"]
        assert node.gets(lunch) == 0
        assert node.records() == ["dinner"]
        await node.unprepare(lunch)  # the pod can end
        assert node.records() == ["dinner"]
        await eventually(lambda: [item["regarding"]["name"] for item in node.events()] == ["lunch"])
