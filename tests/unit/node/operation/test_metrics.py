"""What a node tells Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

import dra_kit as dra
from dra_kit.kubelet.plugin_server import RegistrationServer, RegistrationStatus
from dra_kit.node.agent import NodeAgent
from dra_kit.node.kubelet_connection import KubeletRegistration
from dra_kit.node.processes import Takeover
from dra_kit.process.metrics import FAMILIES, HOOK_CALLS, HOOKS_SKIPPED, RUNTIME_CONNECTED, RUNTIME_RECONNECTS
from tests.support.api import eventually
from tests.support.pod_resources import held, kubelet
from tests.support.probes import ask
from tests.unit.node.drivers import Doing, driver
from tests.unit.node.hardware import kitchen
from tests.unit.node.role import DRIVER, NODE, Node

OF_POD_HOOKS = {item.shown_name for item in (HOOK_CALLS, HOOKS_SKIPPED, RUNTIME_CONNECTED, RUNTIME_RECONNECTS)}
"""Served only by drivers with pod hooks."""
Series = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


async def scraped(agent: NodeAgent) -> Series:
    """All series, without the label that all have."""
    import asyncio

    status, text = await asyncio.to_thread(ask, agent.probe_port, "/metrics")
    assert status == 200, text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            if not sample.name.startswith("process_"):
                assert labels.pop("driver") == DRIVER
            found[sample.name, frozenset(labels.items())] = sample.value
    return found


def value(series: Series, name: str, **labels: str) -> float | None:
    return series.get((name, frozenset(labels.items())))


async def test_calls_are_counted_by_method_result_and_code(node: Node) -> None:
    def serve(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        if claim.name == "bad":
            raise dra.PermanentError("no", code="burnt")
        return dra.Prepared(env={device.env_name: "1"})

    good, bad = node.claim("good"), node.claim("bad", ["pizza-1"])
    async with node.running(driver(Doing(serve)), probe_address="127.0.0.1:0") as agent:
        await eventually(lambda: agent.probe_port and node.published())
        await node.prepare(good)
        await node.error(bad)
        await node.unprepare(good)
        series = await scraped(agent)
    name = "dra_driver_kubelet_claims_total"
    assert value(series, name, method="prepare", result="success", code="") == 1
    assert value(series, name, method="prepare", result="error", code="burnt") == 1
    assert value(series, name, method="unprepare", result="success", code="") == 1
    calls = "dra_driver_kubelet_call_duration_seconds_count"
    assert value(series, calls, method="prepare", result="success") == 1
    assert value(series, calls, method="prepare", result="error") == 1


async def test_devices_claims_and_publication(node: Node) -> None:
    lunch = node.claim()
    async with node.running(driver(), probe_address="127.0.0.1:0") as agent:
        await eventually(lambda: bool(node.published()) and agent._publisher.record.last_success)
        await node.prepare(lunch)
        series = await scraped(agent)
    assert value(series, "dra_driver_prepared_claims") == 1
    assert value(series, "dra_driver_devices", state="prepared", health="not_reported") == 1
    assert value(series, "dra_driver_devices", state="free", health="not_reported") == 3
    assert value(series, "dra_driver_slice_writes_total", verb="create") == 1
    assert value(series, "dra_driver_pool_generation", pool=NODE) == 1
    assert value(series, "dra_driver_registered") == 1
    assert (value(series, "dra_driver_last_publication_timestamp_seconds") or 0) > 1e9
    assert (value(series, "dra_driver_publications_total", result="success") or 0) >= 1
    assert (value(series, "dra_driver_api_requests_total", verb="create", code="201") or 0) >= 1
    assert (value(series, "dra_driver_store_commit_duration_seconds_count") or 0) >= 1
    assert (value(series, "dra_driver_store_size_bytes") or 0) > 0
    assert value(series, "dra_driver_store_corrupt_rows") == 0
    assert value(series, "dra_driver_part_ready", part="publisher") == 1


async def test_device_info_links_hardware_to_container(node: Node) -> None:
    def serve(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared(env={device.env_name: "1"}, hardware_ids=["SN-1", "0000:3b:00.0"])

    lunch = node.claim()
    async with (
        kubelet(node.root, held("pizza-0", "guest", "eater")),
        node.running(driver(Doing(serve)), probe_address="127.0.0.1:0") as agent,
    ):
        await eventually(lambda: agent.probe_port and node.published())
        await node.prepare(lunch)
        series = await scraped(agent)
        for hardware_id in ("SN-1", "0000:3b:00.0"):
            assert (
                value(
                    series, "dra_device_info", pool=NODE, device="pizza-0", share="", hardware_id=hardware_id,
                    namespace="default", claim="lunch", pod="guest", container="eater",
                ) == 1
            )  # fmt: skip
        await node.unprepare(lunch)
        assert not [name for name, _ in await scraped(agent) if name == "dra_device_info"]


async def test_effects_in_force(node: Node) -> None:
    lunch = node.claim()
    async with node.running(kitchen(), probe_address="127.0.0.1:0") as agent:
        await eventually(lambda: agent.probe_port and node.published())
        await node.prepare(lunch)
        series = await scraped(agent)
        [effect] = [dict(labels) for name, labels in series if name == "dra_driver_effects"]
        assert effect["state"] == "in_force"


async def test_node_serves_exactly_the_documented_metrics(node: Node) -> None:
    lunch = node.claim()
    async with node.running(kitchen(), probe_address="127.0.0.1:0") as agent:
        await eventually(lambda: bool(node.published()) and agent._publisher.record.last_success)
        await node.prepare(lunch)
        logged = {name for name, _ in await scraped(agent) if not name.startswith("process_")}
    for suffix in ("_bucket", "_sum", "_count"):
        logged = {name.removesuffix(suffix) if name.endswith(f"seconds{suffix}") else name for name in logged}
    assert logged == {family.shown_name for family in FAMILIES if "node" in family.roles} - OF_POD_HOOKS


@pytest.mark.parametrize("claims", [1, 30])
async def test_number_of_series_is_independent_of_history(node: Node, claims: int) -> None:
    def refuse(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        raise dra.PermanentError("no", code=f"made-up-{claim.name}")

    refused = [node.claim(f"claim-{number}") for number in range(claims)]
    async with node.running(driver(Doing(refuse)), probe_address="127.0.0.1:0") as agent:
        await eventually(lambda: agent.probe_port and node.published())
        agent._calls._codes._most = 3
        for claim in refused:
            await node.error(claim)
        codes = [
            dict(labels)["code"] for name, labels in await scraped(agent) if name == "dra_driver_kubelet_claims_total"
        ]
    assert len(codes) <= 4


def test_a_registration_that_ends_while_it_is_read_causes_no_error() -> None:
    class Ending:
        """Another thread stops the server after the first look at its status."""

        def __init__(self) -> None:
            self._statuses = iter([RegistrationStatus(registered=True), None])

        @property
        def status(self) -> RegistrationStatus | None:
            return next(self._statuses)

    registration = KubeletRegistration(cast("RegistrationServer", Ending()), cast("Takeover", None))
    assert registration.is_registered()
