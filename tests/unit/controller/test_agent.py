"""The controller process against an API server: the Events it writes, and that it writes nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import pytest
from prometheus_client import Gauge
from pydantic import BaseModel

import dra_kit as dra
from dra_kit.controller.agent import ControllerSettings, run_controller
from dra_kit.errors import ConfigurationError
from tests.support.api import eventually
from tests.support.ports import kept_free
from tests.support.probes import ask
from tests.unit.controller.claims import DRIVER, claim
from tests.unit.controller.cluster import cancelled
from tests.unit.controller.cluster_api import CLAIMS, LEASES, ClusterApi


class Oven(dra.DeviceProvider):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [dra.Device(name="pizza-0")]


class Waiter(dra.Preparer):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared()


@pytest.fixture
def driver() -> dra.Driver:
    return dra.Driver(DRIVER, provider=Oven(), preparer=Waiter())


class Running:
    """The controller as a task of the test."""

    def __init__(self, driver: dra.Driver, api: ClusterApi, kubeconfig: Path, resync_seconds: float = 3600.0) -> None:
        settings = ControllerSettings(
            kubeconfig=api.kubeconfig(kubeconfig), instance="controller-0", resync_seconds=resync_seconds
        )
        self.api = api
        self.task = asyncio.create_task(run_controller(driver, settings))

    async def __aenter__(self) -> Self:
        await eventually(lambda: self.api.watched or self.task.done())
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancelled(self.task)


class Prices(BaseModel):
    currency: str = "EUR"


class Till(dra.ClaimObserver[Prices]):
    """Has the driver's settings, and a number of its own."""

    def startup(self, context: dra.Context[Prices]) -> None:
        self.served = Gauge("pizzas_served", "Allocated since the start.", ["currency"], registry=context.metrics)

    def allocated(self, claim: dra.ObservedClaim) -> None:
        self.served.labels(self.context.settings.currency).inc(len(claim.devices))


def announced(api: ClusterApi) -> list[tuple[str, str, str]]:
    return [(event["reason"], event["regarding"]["kind"], event["regarding"]["name"]) for event in api.events]


async def test_the_life_of_a_claim_creates_exactly_its_events(
    driver: dra.Driver, api: ClusterApi, tmp_path: Path
) -> None:
    api.apply(claim())
    async with Running(driver, api, tmp_path / "config"):
        api.apply(claim(devices=["pizza-0"], pods=["guest"]))
        await eventually(lambda: len(api.events) == 4)
        api.apply(claim())
        await eventually(lambda: len(api.events) == 6)
        api.delete("claim-1")
        api.apply(claim("claim-2", devices=["pizza-1"]))
        await eventually(lambda: len(api.events) == 7)
    assert announced(api) == [
        ("DeviceAllocated", "ResourceClaim", "lunch-claim-1"),
        ("DeviceAllocated", "Pod", "guest"),
        ("ClaimReserved", "ResourceClaim", "lunch-claim-1"),
        ("ClaimReserved", "Pod", "guest"),
        ("ClaimReleased", "ResourceClaim", "lunch-claim-1"),
        ("ClaimReleased", "Pod", "guest"),
        ("DeviceAllocated", "ResourceClaim", "lunch-claim-2"),
    ]


async def test_events_are_of_the_driver_and_in_the_namespace_of_the_claim(
    driver: dra.Driver, api: ClusterApi, tmp_path: Path
) -> None:
    async with Running(driver, api, tmp_path / "config"):
        api.apply(claim(devices=["pizza-0"]))
        await eventually(lambda: api.events)
    event = api.events[0]
    assert event["metadata"]["namespace"] == "default"
    assert (event["type"], event["reportingController"], event["reportingInstance"]) == (
        "Normal", DRIVER, "controller-0",
    )  # fmt: skip


async def test_nothing_but_events_and_the_lease_is_written(driver: dra.Driver, api: ClusterApi, tmp_path: Path) -> None:
    async with Running(driver, api, tmp_path / "config"):
        api.apply(claim(devices=["pizza-0"], pods=["guest"]))
        await eventually(lambda: len(api.events) == 4)
        api.delete("claim-1")
        await eventually(lambda: len(api.events) == 6)
    lease = f"{LEASES}/{DRIVER}-controller"
    assert set(api.writes) == {
        ("POST", "/apis/events.k8s.io/v1/namespaces/default/events"), ("POST", LEASES), ("PUT", lease),
    }  # fmt: skip


async def test_only_claims_and_the_lease_are_read(driver: dra.Driver, api: ClusterApi, tmp_path: Path) -> None:
    async with Running(driver, api, tmp_path / "config"):
        pass
    discovery = {"/version", "/api", "/api/v1", "/apis"}
    paths = {path for _, path in api.requests if not path.startswith(LEASES)}
    assert {path for path in paths if path not in discovery and not path.startswith("/apis/resource.k8s.io")} == set()


async def test_a_restart_repeats_no_event(driver: dra.Driver, api: ClusterApi, tmp_path: Path) -> None:
    api.apply(claim(devices=["pizza-0"], pods=["guest"]))
    async with Running(driver, api, tmp_path / "config"):
        api.apply(claim("claim-2", devices=["pizza-1"]))
        await eventually(lambda: api.events)
    assert announced(api) == [("DeviceAllocated", "ResourceClaim", "lunch-claim-2")]


async def test_claims_of_other_drivers_create_no_events(driver: dra.Driver, api: ClusterApi, tmp_path: Path) -> None:
    async with Running(driver, api, tmp_path / "config"):
        api.apply(claim("claim-1", devices=["gpu-0"], driver="dra.gpu", pods=["guest"]))
        api.apply(claim("claim-2", devices=["pizza-0"]))
        await eventually(lambda: api.events)
    assert announced(api) == [("DeviceAllocated", "ResourceClaim", "lunch-claim-2")]


async def test_the_periodic_list_finds_a_deletion_that_the_watch_missed(
    driver: dra.Driver, api: ClusterApi, tmp_path: Path
) -> None:
    api.apply(claim(devices=["pizza-0"], pods=["guest"]))
    async with Running(driver, api, tmp_path / "config", resync_seconds=0.1):
        api.delete("claim-1", silent=True)
        await eventually(lambda: len(api.events) == 2)
    assert announced(api) == [
        ("ClaimReleased", "ResourceClaim", "lunch-claim-1"), ("ClaimReleased", "Pod", "guest"),
    ]  # fmt: skip


async def test_a_failed_list_is_retried(driver: dra.Driver, api: ClusterApi, tmp_path: Path) -> None:
    async with Running(driver, api, tmp_path / "config", resync_seconds=0.1):
        before = api.lists
        api.list_failures = 1
        await eventually(lambda: api.list_failures == 0 and api.lists > before)


async def test_a_controller_without_the_right_to_list_exits(
    driver: dra.Driver, api: ClusterApi, tmp_path: Path
) -> None:
    api.forbidden = True
    settings = ControllerSettings(kubeconfig=api.kubeconfig(tmp_path / "config"))
    assert await run_controller(driver, settings) == 1
    assert CLAIMS in {path for _, path in api.requests}


async def test_sigterm_stops_the_controller_gracefully(driver: dra.Driver, api: ClusterApi, tmp_path: Path) -> None:
    async with Running(driver, api, tmp_path / "config") as controller:
        os.kill(os.getpid(), signal.SIGTERM)
        assert await controller.task == 0


async def test_a_cluster_without_dra_is_a_configuration_error(driver: dra.Driver, tmp_path: Path) -> None:
    async with ClusterApi(versions=("v1beta1",)) as api:
        settings = ControllerSettings(kubeconfig=api.kubeconfig(tmp_path / "config"))
        with pytest.raises(ConfigurationError, match="v1 is needed"):
            await run_controller(driver, settings)


async def test_an_observer_has_settings_and_metrics_and_one_replica_leads(api: ClusterApi, tmp_path: Path) -> None:
    driver = dra.Driver(DRIVER, provider=Oven(), preparer=Waiter(), observer=Till(), settings=Prices)
    with kept_free() as port:
        settings = ControllerSettings(
            kubeconfig=api.kubeconfig(tmp_path / "config"),
            probe_address=f"127.0.0.1:{port}",
            author=Prices(currency="CHF"),
        )
        task = asyncio.create_task(run_controller(driver, settings))
        try:
            await eventually(lambda: api.watched)
            api.apply(claim(devices=["pizza-0"]))

            async def scraped() -> list[str]:
                return (await asyncio.to_thread(ask, port, "/metrics"))[1].splitlines()

            async with asyncio.timeout(60):
                while 'pizzas_served{currency="CHF"} 1.0' not in await scraped():  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            leads = f'leader_election_master_status{{driver="{DRIVER}",name="{DRIVER}-controller"}} 1.0'
            assert leads in await scraped()
        finally:
            await cancelled(task)


async def test_probes_report_whether_the_controller_follows_claims(
    driver: dra.Driver, api: ClusterApi, tmp_path: Path
) -> None:
    def ready() -> bool:
        try:
            return ask(port, "/readyz") == (200, "ok\n")
        except OSError:
            return False  # claims may be followed before probes are answered

    with kept_free() as port:
        settings = ControllerSettings(kubeconfig=api.kubeconfig(tmp_path / "config"), probe_address=f"127.0.0.1:{port}")
        controller = asyncio.create_task(run_controller(driver, settings))
        await eventually(lambda: api.watched or controller.done())
        await eventually(ready)
        assert ask(port, "/healthz") == (200, "ok\n")
        await cancelled(controller)
        with socket.create_server(("127.0.0.1", port)):
            pass  # free again
