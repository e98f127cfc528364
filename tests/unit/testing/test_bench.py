"""Preparers and effects in unit tests, without a node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

import dra_kit as dra
from dra_kit.testing import unit


class FakeCard:
    def __init__(self) -> None:
        self.partitions: dict[str, str] = {}
        self.booting = False


class GpuConfig(dra.OpaqueConfig, api_version="gpu.example/v1"):
    profile: str = "1g"


class Gpu(dra.Device):
    uuid: str


class CreatePartition(dra.Effect[str, FakeCard], id="partition"):
    gpu: str
    profile: str

    def keys(self) -> Iterable[str]:
        return [self.gpu]

    def apply(self, previous: str | None) -> str:
        if self.hardware.booting:
            raise dra.NotYet("it boots")
        return self.hardware.partitions.setdefault(self.gpu, self.profile)

    def revert(self, outcome: str | None) -> None:
        self.hardware.partitions.pop(self.gpu, None)


class Settings(BaseModel):
    prefix: str = "MIG"


class Finder(dra.DeviceProvider[Gpu]):
    def discover(self) -> Iterator[Sequence[Gpu]]:
        raise AssertionError("no node, no discover")


class Partitioner(dra.Preparer[GpuConfig, Gpu, FakeCard, Settings]):
    def __init__(self) -> None:
        self.released: list[str] = []

    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[GpuConfig, Gpu]) -> dra.Prepared:
        profile = device.config.profile
        made = device.ensure(CreatePartition(gpu=device.advertised.uuid, profile=profile)).result()
        if profile == "broken":
            raise dra.PermanentError("no such profile")
        return dra.Prepared(env={"UUID": f"{self.context.settings.prefix}-{made}"}, state={"made": made})

    def unprepare(self, claim: dra.ClaimReference, devices: Sequence[Any]) -> None:
        self.released.append(claim.name)


GPU = Gpu(name="gpu-0", uuid="GPU-0")


def gpus(partitioner: Partitioner | None = None) -> dra.Driver[Any, Any]:
    def real(context: dra.Context[Settings]) -> FakeCard:
        raise AssertionError("no real card exists")

    return dra.Driver(
        "gpu.example",
        provider=Finder(),
        preparer=partitioner or Partitioner(),
        effects=[CreatePartition],
        settings=Settings,
        hardware=real,
    )


async def test_a_claim_is_prepared_and_released_on_a_fake() -> None:
    card, partitioner = FakeCard(), Partitioner()
    async with unit(gpus(partitioner), hardware=card) as bench:
        [prepared] = await bench.prepare("lunch", [GPU], config=GpuConfig(profile="2g"))
        assert prepared.env == {"UUID": "MIG-2g"}
        assert card.partitions == {"GPU-0": "2g"}
        [known] = bench.effects
        assert known.effect == CreatePartition(gpu="GPU-0", profile="2g")
        assert [claim.name for claim in known.claims] == ["lunch"]
        await bench.unprepare("lunch")
        assert bench.effects == []
    assert (card.partitions, partitioner.released) == ({}, ["lunch"])


def test_a_plain_function_does_the_same_without_await() -> None:
    card = FakeCard()
    with unit(gpus(), hardware=card, settings=Settings(prefix="VF")) as bench:
        [prepared] = bench.prepare(devices=[GPU])
        assert prepared.env == {"UUID": "VF-1g"}
        assert len(bench.effects) == 1
        bench.unprepare()
        assert card.partitions == {}


async def test_conflicts_and_failures_are_as_on_a_node() -> None:
    card = FakeCard()
    async with unit(gpus(), hardware=card) as bench:
        await bench.prepare("lunch", [GPU])
        with pytest.raises(dra.TransientError, match=r"dinner needs partition .* but claim default/lunch"):
            await bench.prepare("dinner", [GPU], config=GpuConfig(profile="2g"))
        await bench.unprepare("lunch")
        with pytest.raises(dra.PermanentError, match="no such profile"):
            await bench.prepare("dinner", [GPU], config=GpuConfig(profile="broken"))
        assert bench.effects == []
        assert card.partitions == {}


async def test_parameters_as_a_manifest_has_them_are_decoded() -> None:
    async with unit(gpus(), hardware=FakeCard()) as bench:
        parameters = {"apiVersion": "gpu.example/v1", "kind": "GpuConfig", "profil": "2g"}
        with pytest.raises(dra.InvalidConfig, match="profil"):
            await bench.prepare("lunch", [GPU], config=parameters)


async def test_what_is_still_coming_up_is_raised_at_once_and_goes_on_with_the_next_call() -> None:
    card = FakeCard()
    async with unit(gpus(), hardware=card) as bench:
        card.booting = True
        with pytest.raises(dra.NotYet, match="it boots"):
            await bench.prepare("lunch", [GPU])
        [begun] = bench.effects
        assert not begun.in_force
        card.booting = False
        await bench.prepare("lunch", [GPU])
        assert [item.in_force for item in bench.effects] == [True]


async def test_admin_access_changes_nothing() -> None:
    async with unit(gpus(), hardware=FakeCard()) as bench:
        with pytest.raises(dra.PermanentError, match="admin access only"):
            await bench.prepare("inspection", [GPU], admin_access=True)


class Waiter(dra.Preparer):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared(env={"CLAIM": claim.name})


async def test_a_preparer_alone() -> None:
    async with unit(Waiter()) as bench:
        first, second = await bench.prepare("lunch", [dra.Device(name="a"), dra.Device(name="b")])
        assert first.env == second.env == {"CLAIM": "lunch"}


def test_a_driver_has_its_own_effects() -> None:
    with pytest.raises(dra.ConfigurationError, match="omit effects"):
        unit(gpus(), effects=[CreatePartition])


class SizedConfig(dra.OpaqueConfig, api_version="gpu.example/v1"):
    size: int


class Choosy(dra.Preparer[SizedConfig, Gpu]):
    def default_config(self, device: Gpu) -> SizedConfig:
        raise dra.PermanentError("say how large")

    def admin_config(self, device: Gpu) -> SizedConfig:
        return SizedConfig(size=0)

    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[SizedConfig, Gpu]) -> dra.Prepared:
        return dra.Prepared(env={"SIZE": str(device.config.size)})


def test_admin_access_needs_no_config_where_other_claims_do() -> None:
    with unit(Choosy()) as bench:
        [prepared] = bench.prepare("admin", [GPU], admin_access=True)
        assert prepared.env["SIZE"] == "0"
        with pytest.raises(dra.PermanentError, match="say how large"):
            bench.prepare("lunch", [GPU])


class Sharer(dra.Preparer):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        taken = ",".join(f"{name}={amount}" for name, amount in device.consumed_capacity.items())
        return dra.Prepared(
            env={"SHARE": f"{device.share_id} {taken}"}, status=dra.DeviceStatus(data={"share": device.share_id})
        )


async def test_each_claim_has_a_share_of_its_own_of_a_device_that_may_be_shared() -> None:
    policy = dra.CapacityRequestPolicy(default="1Gi", valid_values=["1Gi", "2Gi"])
    memory = dra.DeviceCapacity(value="8Gi", request_policy=policy)
    shared = dra.Device(name="a", capacity={"memory": memory}, allow_multiple_allocations=True)
    async with unit(Sharer()) as bench:
        [first] = await bench.prepare("lunch", [shared])
        [second] = await bench.prepare("dinner", [shared])
    (share, taken), (other_share, other_taken) = (item.env["SHARE"].split() for item in (first, second))
    assert (taken, other_taken) == ("memory=1Gi", "memory=1Gi")
    assert str(UUID(share)) == share != other_share


class Told(dra.Effect[int, FakeCard], id="told"):
    def keys(self) -> Iterable[str]:
        return ["told"]

    def apply(self, previous: int | None) -> int:
        self.hardware.partitions["told"] = "yes"
        return (previous or 0) + 1

    def holds(self, outcome: int) -> bool:
        return "told" in self.hardware.partitions

    def revert(self, outcome: int | None) -> None:
        self.hardware.partitions.clear()


class Teller(dra.Preparer):
    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        times = await device.ensure(Told())
        return dra.Prepared(env={"TIMES": str(times)})


async def test_what_does_not_hold_is_applied_again_when_the_claim_is_prepared_again() -> None:
    card = FakeCard()
    async with unit(Teller(), effects=[Told], hardware=card) as bench:
        await bench.prepare("lunch", [GPU])
        [again] = await bench.prepare("lunch", [GPU])
        assert again.env == {"TIMES": "1"}
        card.partitions.clear()
        [again] = await bench.prepare("lunch", [GPU])
        assert again.env == {"TIMES": "2"}


def test_a_partition_that_takes_counters_can_be_prepared_alone_and_beside_another() -> None:
    def half(name: str) -> Gpu:
        taken = dra.DeviceCounterConsumption(counter_set="gpu-0", counters={"memory": "20Gi"})
        return Gpu(name=name, uuid=name, consumes_counters=[taken])

    with unit(gpus(), hardware=FakeCard(), settings=Settings()) as bench:
        assert len(bench.prepare("claim", [half("left"), half("right")])) == 2


class Seen(dra.Preparer[GpuConfig, dra.Device]):
    """Records the claims and devices that it is called with."""

    def __init__(self) -> None:
        self.claims: list[dra.Claim] = []
        self.devices: list[dra.AllocatedDevice[GpuConfig, dra.Device]] = []

    def prepare_claim(
        self, claim: dra.Claim, devices: Sequence[dra.AllocatedDevice[GpuConfig, dra.Device]]
    ) -> Sequence[dra.Prepared]:
        self.claims.append(claim)
        self.devices = list(devices)
        return [dra.Prepared() for _ in devices]


ONE, TWO = dra.Device(name="gpu-0"), dra.Device(name="gpu-1")
STEPS = dra.CapacityRequestPolicyRange(min="10Gi", step="10Gi", max="40Gi")
CARD = dra.Device(
    name="card",
    allow_multiple_allocations=True,
    capacity={
        "memory": dra.DeviceCapacity(
            value="80Gi", request_policy=dra.CapacityRequestPolicy(default="10Gi", valid_range=STEPS)
        ),
        "queues": dra.DeviceCapacity(value=8, request_policy=dra.CapacityRequestPolicy(default=1)),
    },
)


def test_requests_are_named_for_all_devices_or_for_each() -> None:
    seen = Seen()
    with unit(seen) as bench:
        bench.prepare("lunch", [ONE, TWO], requests="gpu")
        assert [(item.request, item.subrequest) for item in seen.devices] == [("gpu", None), ("gpu", None)]
        bench.prepare("dinner", [ONE, TWO], requests=["big", "any/small"])
        assert [(item.request, item.subrequest) for item in seen.devices] == [("big", None), ("any", "small")]
        with pytest.raises(dra.ConfigurationError, match="2 devices and 1 request; pass one name for all, or one"):
            bench.prepare("supper", [ONE, TWO], requests=["big"])


def test_configs_of_a_class_and_of_requests_apply_as_on_a_node() -> None:
    seen = Seen()
    of_class = dra.ConfigEntry(GpuConfig(profile="1g"), "class")
    of_one = dra.ConfigEntry(GpuConfig(profile="2g"), requests=("big",))
    with unit(seen) as bench:
        bench.prepare("lunch", [ONE, TWO], requests=["big", "small"], configs=[of_class, of_one])
        assert [item.config.profile for item in seen.devices] == ["2g", "1g"]
        entries = seen.devices[0].configs
        assert [(item.source, item.index, item.requests) for item in entries] == [
            ("class", 0, ()), ("claim", 1, ("big",)),
        ]  # fmt: skip
        with pytest.raises(dra.ConfigurationError, match="config cannot be combined with configs"):
            bench.prepare("dinner", [ONE], config=GpuConfig(), configs=[of_class])


def test_a_claim_is_reserved_for_pods_and_other_consumers() -> None:
    seen = Seen()
    group = dra.ConsumerReference("scheduling.k8s.io", "podgroups", "party", "7")
    with unit(seen) as bench:
        bench.prepare("lunch", [ONE], reserved_for=["guest", group])
    [guest, party] = seen.claims[0].reserved_for
    assert (guest.api_group, guest.resource, guest.name, guest.uid) == ("", "pods", "guest", "uid-guest")
    assert party == group
    with unit(seen) as bench:
        bench.prepare("dinner", [ONE], reserved_for="host")
    assert [item.name for item in seen.claims[1].reserved_for] == ["host"]


@pytest.mark.parametrize(
    ("requested", "consumed"),
    [
        (None, {"memory": "10Gi", "queues": "1"}),
        ({"memory": "11Gi"}, {"memory": "20Gi", "queues": "1"}),
        ({"memory": "40Gi", "queues": 2}, {"memory": "40Gi", "queues": "2"}),
    ],
)
def test_a_share_has_the_requested_capacity_rounded_as_by_the_scheduler(
    requested: dict[str, str] | None, consumed: dict[str, str]
) -> None:
    seen = Seen()
    with unit(seen) as bench:
        bench.prepare("lunch", [CARD], capacity=requested)
    assert {name: str(amount) for name, amount in seen.devices[0].consumed_capacity.items()} == consumed


@pytest.mark.parametrize("requested", [{"memory": "41Gi"}, {"cores": 1}])
def test_capacity_that_the_device_cannot_serve_is_rejected(requested: dict[str, str]) -> None:
    with unit(Seen()) as bench, pytest.raises(dra.ConfigurationError, match="device card cannot serve a request for"):
        bench.prepare("lunch", [CARD], capacity=requested)


def test_more_capacity_than_a_device_without_policies_has_is_rejected() -> None:
    with pytest.warns(match="the first share takes all of it"):
        whole = dra.Device(name="whole", allow_multiple_allocations=True, capacity={"memory": "40Gi"})
    with unit(Seen()) as bench, pytest.raises(dra.ConfigurationError, match="its capacity: memory 40Gi"):
        bench.prepare("lunch", [whole], capacity={"memory": "41Gi"})


@pytest.mark.parametrize(
    ("menu", "problem"),
    [
        ({"metadata": {"name": "menu"}}, "document 1 lacks apiVersion"),
        ({"apiVersion": "v1", "kind": "ConfigMap"}, r"document 1 \(ConfigMap\) lacks metadata"),
    ],
)
def test_an_incomplete_object_is_rejected(menu: dict[str, Any], problem: str) -> None:
    with pytest.raises(dra.ConfigurationError, match=problem):
        unit(Seen(), objects=[menu])
