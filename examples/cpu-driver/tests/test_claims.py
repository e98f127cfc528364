"""The CPUs of claims and containers, without a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import dra_kit as dra
import pytest
from dra_kit.testing import BlockingBench, unit
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from hypothesis.strategies import integers, sampled_from

from cpu_driver.driver import driver
from cpu_driver.provider import CAPACITY
from cpu_driver.settings import Settings
from cpu_driver.topology import Topology, parse_cpus, read_profile
from tests.machines import devices, profile

GROUPED = Settings(sysfs=profile("two-sockets"), reserved_cpus="0,32")
NODE_0, NODE_1 = devices(GROUPED)


@pytest.fixture
def bench() -> Iterator[BlockingBench]:
    with unit(driver, settings=GROUPED) as bench:
        yield bench


def take(bench: BlockingBench, claim: str, count: int, device: dra.Device = NODE_0) -> str:
    [prepared] = bench.prepare(claim, [device], capacity={CAPACITY: count})
    assert isinstance(prepared.state, str)
    return prepared.state


def test_claim_takes_cpus_of_two_numa_nodes(bench: BlockingBench) -> None:
    prepared = bench.prepare("cpus", [NODE_0, NODE_1], requests=["left", "right"], capacity={CAPACITY: 10})
    assert [item.state for item in prepared] == ["1-5,33-37", "16-20,48-52"]
    adjustment = bench.container_starts()
    assert adjustment is not None
    # two plugins that set the memory nodes fail the container: those are left to drivers of memory
    assert (adjustment.cpus, adjustment.memory_nodes) == ("1-5,16-20,33-37,48-52", None)


def test_cpus_are_reported(bench: BlockingBench) -> None:
    [prepared] = bench.prepare("cpus", [NODE_0], capacity={CAPACITY: 2})
    assert prepared.status is not None
    assert prepared.metadata is not None
    assert prepared.claim_edits is not None
    assert prepared.status.data == {"cpus": "1,33"}
    assert prepared.metadata.attributes == {"cpus": "1,33", "allocatedNumCPUs": 2}
    assert prepared.claim_edits.env == {"DRA_CPUSET_uid-cpus": "1,33"}


def test_claim_without_an_amount_takes_one_cpu(bench: BlockingBench) -> None:
    [prepared] = bench.prepare("cpu", [NODE_0])
    assert prepared.state == "1"


def test_claim_that_is_prepared_again_keeps_its_cpus(bench: BlockingBench) -> None:
    first, second = take(bench, "first", 4), take(bench, "second", 4)
    bench.unprepare("first")
    assert take(bench, "second", 4) == second
    assert take(bench, "third", 4) == first


def test_claim_for_more_cpus_than_are_left_is_rejected(bench: BlockingBench) -> None:
    take(bench, "first", 29)
    with pytest.raises(dra.TransientError, match="too few CPUs: 2 are requested and 1 are free"):
        take(bench, "second", 2)
    assert take(bench, "third", 1)


async def test_claims_that_are_prepared_at_once_take_different_cpus() -> None:
    async with unit(driver, settings=GROUPED) as bench:
        calls = [bench.prepare(f"claim-{number}", [NODE_0], capacity={CAPACITY: 3}) for number in range(10)]
        states = [str(prepared.state) for [prepared] in await asyncio.gather(*calls)]
    assert sum(len(parse_cpus(state)) for state in states) == len(parse_cpus(",".join(states))) == 30


def test_claim_with_admin_access_takes_no_cpu(bench: BlockingBench) -> None:
    [prepared] = bench.prepare("admin", [NODE_0], admin_access=True)
    assert prepared.state == ""
    adjustment = bench.container_starts()
    assert adjustment is not None
    assert adjustment.cpus == "1-31,33-63"


def test_single_cpu_is_that_of_the_device() -> None:
    settings = Settings(sysfs=profile("two-sockets"), mode="individual")
    found = devices(settings)
    with unit(driver, settings=settings) as bench:
        prepared = bench.prepare("cpus", found[2:4])
        assert [item.state for item in prepared] == ["1", "33"]


# -- the pool of containers without a claim


def shared(bench: BlockingBench, name: str = "web", **env: str) -> dra.ContainerAdjustment:
    container = dra.RuntimeContainer(id=f"id-{name}", name="main", env=env)
    adjustment = bench.container_starts(container, pod=bench.pod(name, claims=[]))
    assert adjustment is not None
    return adjustment


def test_pool_shrinks_when_a_claimed_container_starts_and_grows_when_the_claim_is_released(
    bench: BlockingBench,
) -> None:
    assert shared(bench).cpus == "1-31,33-63"
    take(bench, "cpus", 2)
    adjustment = bench.container_starts()
    assert adjustment is not None
    assert list(adjustment.updates) == [dra.ContainerUpdate(container="id-web", cpus="2-31,34-63")]
    bench.unprepare("cpus")
    assert bench.container_updates == [dra.ContainerUpdate(container="id-web", cpus="1-31,33-63")]


def test_containers_of_pods_that_have_ended_are_not_updated(bench: BlockingBench) -> None:
    shared(bench)
    bench.pod_stops(bench.pod("web", claims=[]))
    take(bench, "cpus", 2)
    adjustment = bench.container_starts()
    assert adjustment is not None
    assert not adjustment.updates


def test_full_pool_is_the_reserved_cpus(bench: BlockingBench) -> None:
    take(bench, "left", 30)
    take(bench, "right", 32, NODE_1)
    assert shared(bench).cpus == "0,32"


def test_empty_pool_is_not_written() -> None:
    settings = Settings(sysfs=profile("two-cpus"))
    [group] = devices(settings)
    with unit(driver, settings=settings) as bench:
        assert shared(bench).cpus == "0-1"
        take(bench, "all", 2, group)
        adjustment = bench.container_starts()
        assert adjustment is not None
        assert not adjustment.updates
        with pytest.raises(dra.TransientError, match="--reserved-cpus"):
            shared(bench, "late")


def test_variable_of_a_container_changes_nothing(bench: BlockingBench) -> None:
    take(bench, "cpus", 2)
    assert shared(bench, **{"DRA_CPUSET_uid-cpus": "1,33"}).cpus == "2-31,34-63"


def test_connection_repairs_what_started_without_the_driver(bench: BlockingBench) -> None:
    take(bench, "cpus", 2)
    pinned = dra.RuntimeContainer(id="id-pinned", name="pinned", state="running", cpus="1,33")
    helper = dra.RuntimeContainer(id="id-helper", name="helper", state="running", cpus="0-63")
    ended = dra.RuntimeContainer(id="id-ended", name="ended", state="stopped")
    web = dra.RuntimeContainer(id="id-web", name="web", state="running")
    settled = dra.RuntimeContainer(id="id-settled", name="settled", state="running", cpus="2-31,34-63")
    updates = bench.synchronize(
        bench.pod("solver", containers=[pinned, helper, ended]), bench.pod("web", claims=[], containers=[web, settled])
    )
    assert updates == [
        dra.ContainerUpdate(container="id-helper", cpus="2-31,34-63"),
        dra.ContainerUpdate(container="id-web", cpus="2-31,34-63"),
    ]


class Claims(RuleBasedStateMachine):
    """Claims that come and go: no CPU twice, each in its group, none reserved, and the pool is the rest."""

    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.test = unit(driver, settings=GROUPED)
        self.bench = self.test.__enter__()
        self.taken: dict[str, frozenset[int]] = {}
        self.count = 0

    @rule(target=claims, device=sampled_from([NODE_0, NODE_1]), count=integers(1, 12))
    def prepare(self, device: dra.Device, count: int) -> tuple[str, dra.Device, int]:
        self.count += 1
        claim = f"claim-{self.count}"
        group = cpus_of(device)
        if count > len(group - self._all()):
            with pytest.raises(dra.TransientError):
                take(self.bench, claim, count, device)
            return claim, device, 0
        cpus = parse_cpus(take(self.bench, claim, count, device))
        assert len(cpus) == count
        assert cpus <= group - self._all()
        self.taken[claim] = cpus
        return claim, device, count

    @rule(claim=claims)
    def prepare_again(self, claim: tuple[str, dra.Device, int]) -> None:
        name, device, count = claim
        if name in self.taken:
            assert parse_cpus(take(self.bench, name, count, device)) == self.taken[name]

    @rule(claim=consumes(claims))
    def release(self, claim: tuple[str, dra.Device, int]) -> None:
        self.bench.unprepare(claim[0])
        self.taken.pop(claim[0], None)

    @invariant()
    def pool_is_the_rest(self) -> None:
        assert parse_cpus(shared(self.bench).cpus or "") == AVAILABLE - self._all() or parse_cpus("0,32")

    def _all(self) -> frozenset[int]:
        return frozenset().union(*self.taken.values())

    def teardown(self) -> None:
        self.test.__exit__(None, None, None)


MACHINE: Topology = read_profile(profile("two-sockets").read_text(encoding="utf-8"))
AVAILABLE = MACHINE.online - {0, 32}


def cpus_of(device: dra.Device) -> frozenset[int]:
    node = device.attributes["resource.kubernetes.io/numaNode"]
    return frozenset(number for number, cpu in MACHINE.by_number.items() if cpu.numa_node == node) & AVAILABLE


TestClaims = Claims.TestCase
TestClaims.settings = hypothesis_settings(max_examples=15, stateful_step_count=15, deadline=None)
