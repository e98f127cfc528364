"""A kubelet and real drivers over real sockets: registration, calls, restarts, rolling updates."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dra_kit.errors import KubeletError
from dra_kit.kubelet.plugin_server import RegistrationServer, RegistrationStatus
from dra_kit.kubelet.sockets import plugin_socket
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.sandbox.kubelet.plugin_manager import PluginManager
from tests.unit.sandbox.cluster.kubelet.driver import DRIVER, Driver
from tests.unit.sandbox.cluster.kubelet.polling import until

OVEN = ClaimReference("default", "oven", "uid-1")
BURNT = ClaimReference("default", "burnt", "uid-3")
GENEROUS = 60.0


@pytest.fixture
async def kubelet(kubelet_dir: Path) -> AsyncIterator[PluginManager]:
    async with PluginManager(kubelet_dir, get_info_timeout=GENEROUS, release=UNMODIFIED) as kubelet:
        yield kubelet


async def pool_of_prepare(kubelet: PluginManager) -> str:
    """Which instance the kubelet called."""
    (device,) = (await kubelet.prepare(DRIVER, [OVEN]))["uid-1"]
    return device.pool_name


async def test_a_driver_that_was_there_before_the_kubelet(kubelet_dir: Path) -> None:
    async with (
        Driver(kubelet_dir) as driver,
        PluginManager(kubelet_dir, get_info_timeout=GENEROUS, release=UNMODIFIED) as kubelet,
    ):
        await kubelet.wait_for_plugin(DRIVER)
        await until(lambda: driver.registration.status is not None)

        assert driver.registration.status == RegistrationStatus(registered=True)


async def test_a_driver_that_comes_later(kubelet: PluginManager, kubelet_dir: Path) -> None:
    async with Driver(kubelet_dir):
        client = await kubelet.wait_for_plugin(DRIVER)

        assert client.service == "v1.DRAPlugin"
        assert (await kubelet.prepare(DRIVER, [OVEN]))["uid-1"][0].share_id == "share-1"
        await kubelet.unprepare(DRIVER, [OVEN])


async def test_an_older_kubelet_and_an_older_driver(kubelet_dir: Path) -> None:
    older = ("v1beta1.DRAPlugin",)
    async with (
        Driver(kubelet_dir),
        PluginManager(kubelet_dir, supported_services=older, get_info_timeout=GENEROUS, release=UNMODIFIED) as kubelet,
    ):
        assert (await kubelet.wait_for_plugin(DRIVER)).service == "v1beta1.DRAPlugin"
        assert (await kubelet.prepare(DRIVER, [OVEN]))["uid-1"][0].share_id is None

    async with (
        Driver(kubelet_dir, versions=["v1beta1"]),
        PluginManager(kubelet_dir, get_info_timeout=GENEROUS, release=UNMODIFIED) as kubelet,
    ):
        assert (await kubelet.wait_for_plugin(DRIVER)).service == "v1beta1.DRAPlugin"
        assert (await kubelet.prepare(DRIVER, [OVEN])).keys() == {"uid-1"}


async def test_registration_errors_have_the_text_of_the_kubelet(kubelet: PluginManager, kubelet_dir: Path) -> None:
    async with Driver(kubelet_dir):
        await kubelet.wait_for_plugin(DRIVER)

        with pytest.raises(KubeletError, match=r"^NodePrepareResources failed for ResourceClaim burnt: burnt$"):
            await kubelet.prepare(DRIVER, [OVEN, BURNT])
        with pytest.raises(KubeletError, match=r"^NodeUnprepareResources failed for ResourceClaim burnt: stuck$"):
            await kubelet.unprepare(DRIVER, [OVEN, BURNT])


async def test_a_driver_that_is_not_there(kubelet: PluginManager) -> None:
    with pytest.raises(KubeletError, match=r"^DRA driver dra\.pizza is not registered$"):
        await kubelet.prepare(DRIVER, [OVEN])
    with pytest.raises(KubeletError, match=r"^DRA driver dra\.pizza is not registered$"):
        await kubelet.wait_for_plugin(DRIVER, timeout=0)


async def test_a_driver_that_stops_is_deregistered(kubelet: PluginManager, kubelet_dir: Path) -> None:
    async with Driver(kubelet_dir):
        await kubelet.wait_for_plugin(DRIVER)
    await until(lambda: not kubelet.plugins(DRIVER))


async def test_rejected_driver_receives_the_reason(kubelet: PluginManager, kubelet_dir: Path) -> None:
    async with Driver(kubelet_dir, advertised=["v9.DRAPlugin"]) as driver:
        await until(lambda: driver.registration.status is not None)
        status = driver.registration.status
        assert status is not None
        await until(lambda: list(kubelet.refusals.values()) == [status.error])

        assert not status.registered
        assert 'supported by the plugin (["v9.DRAPlugin"]) are supported by the kubelet' in status.error
        with pytest.raises(KubeletError, match=r"is not registered; RegisterPlugin error -- plugin validation failed"):
            await kubelet.wait_for_plugin(DRIVER, timeout=0)


def second_registration(kubelet_dir: Path, driver: Driver) -> RegistrationServer:
    """Another registration socket of a driver's endpoint."""
    return RegistrationServer(
        DRIVER,
        endpoint=plugin_socket(kubelet_dir, DRIVER, None),
        supported_versions=driver.plugin.supported_versions,
        socket=kubelet_dir / "plugins_registry" / "second-reg.sock",
    )


async def test_an_endpoint_registers_once(kubelet: PluginManager, kubelet_dir: Path) -> None:
    async with Driver(kubelet_dir) as driver:
        await kubelet.wait_for_plugin(DRIVER)
        again = second_registration(kubelet_dir, driver)
        again.start()
        await until(lambda: again.status is not None)
        status = again.status
        again.stop(0)

        assert status == RegistrationStatus(
            registered=False,
            error="RegisterPlugin error -- plugin registration failed with err: endpoint "
            f"{plugin_socket(kubelet_dir, DRIVER, None)} already registered for DRA driver plugin dra.pizza",
        )


async def test_a_failed_registration_is_repeated(kubelet: PluginManager, kubelet_dir: Path) -> None:
    async with Driver(kubelet_dir) as driver:
        await kubelet.wait_for_plugin(DRIVER)
        second = second_registration(kubelet_dir, driver)
        second.start()
        await until(lambda: second.status is not None)
        assert second.status != RegistrationStatus(registered=True)

        # with the endpoint free, the kubelet's next attempt succeeds
        driver.registration.stop(0)
        await until(lambda: second.status == RegistrationStatus(registered=True))
        second.stop(0)


async def test_a_kubelet_that_restarts_registers_the_driver_again(kubelet: PluginManager, kubelet_dir: Path) -> None:
    async with Driver(kubelet_dir):
        before = await kubelet.wait_for_plugin(DRIVER)
        await kubelet.restart()
        assert kubelet.plugins(DRIVER) == ()
        after = await kubelet.wait_for_plugin(DRIVER)

        assert after is not before
        assert await pool_of_prepare(kubelet) == "pool"


async def test_a_driver_that_restarts_is_called_again(kubelet: PluginManager, kubelet_dir: Path) -> None:
    async with Driver(kubelet_dir):
        before = await kubelet.wait_for_plugin(DRIVER)
    async with Driver(kubelet_dir):
        await until(lambda: kubelet.plugins(DRIVER) not in ((), (before,)))

        assert await pool_of_prepare(kubelet) == "pool"


async def test_a_rolling_update(kubelet: PluginManager, kubelet_dir: Path) -> None:
    async with Driver(kubelet_dir, "old"):
        await kubelet.wait_for_plugin(DRIVER)
        async with Driver(kubelet_dir, "new"):
            await until(lambda: len(kubelet.plugins(DRIVER)) == 2)
            await until(lambda: all(client.connected for client in kubelet.plugins(DRIVER)))
            assert await pool_of_prepare(kubelet) == "new"
        # the newer one stops: the older one takes over
        await until(lambda: len(kubelet.plugins(DRIVER)) == 1)
        assert await pool_of_prepare(kubelet) == "old"


async def test_the_older_instance_stops_and_the_newer_stays(kubelet: PluginManager, kubelet_dir: Path) -> None:
    old = Driver(kubelet_dir, "old")
    await old.__aenter__()
    await kubelet.wait_for_plugin(DRIVER)
    async with Driver(kubelet_dir, "new"):
        await until(lambda: len(kubelet.plugins(DRIVER)) == 2)
        await old.__aexit__()
        await until(lambda: len(kubelet.plugins(DRIVER)) == 1)

        assert await pool_of_prepare(kubelet) == "new"


async def test_a_connected_instance_goes_before_a_newer_one_that_is_not(
    kubelet: PluginManager, kubelet_dir: Path
) -> None:
    async with Driver(kubelet_dir, "old"):
        await kubelet.wait_for_plugin(DRIVER)
        async with Driver(kubelet_dir, "new") as new:
            await until(lambda: len(kubelet.plugins(DRIVER)) == 2)
            await until(lambda: all(client.connected for client in kubelet.plugins(DRIVER)))
            # the new one's service dies, its registration socket stays
            await new.plugin.stop(0)
            await until(lambda: not kubelet.plugins(DRIVER)[1].connected)

            assert await pool_of_prepare(kubelet) == "old"
