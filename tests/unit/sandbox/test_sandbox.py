"""A cluster with two nodes in one process: what a driver and its users find there."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
import pytest_asyncio
from aiohttp.web import BaseRequest
from pydantic import BaseModel
from typing_extensions import override

import dra_kit as dra
from dra_kit.apiserver.authentication import Authenticator, TokenIssuer, User
from dra_kit.client.credentials import load_credentials
from dra_kit.client.resources import DEVICE_CLASSES, EVENTS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kit.errors import ConfigurationError, KubeError, SandboxError
from dra_kit.kubernetes.release import Release
from dra_kit.sandbox.cluster import Sandbox, SandboxObserver, SandboxSettings
from dra_kit.sandbox.containers.processes import MARK_VARIABLE
from dra_kit.sandbox.directory import mark_of
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver
from tests.unit.sandbox.cluster.kubelet.polling import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "pizza"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "dra.pizza"'}}]},
}


class Settings(BaseModel):
    oven: str = ""


class PizzaConfig(dra.OpaqueConfig, api_version="dra.pizza/v1"):
    extra_cheese: bool = False


class Oven(dra.DeviceProvider):
    node = ""

    @override
    def startup(self, context: dra.Context[Settings]) -> None:
        self.node = context.settings.oven

    @override
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [dra.Device(name="pizza", attributes={"oven": self.node})]


class Waiter(dra.Preparer[PizzaConfig]):
    @override
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[PizzaConfig]) -> dra.Prepared:
        return dra.Prepared(env={"CHEESE": str(device.config.extra_cheese).lower()})


def new_driver() -> dra.Driver[PizzaConfig, dra.Device]:
    return dra.Driver("dra.pizza", provider=Oven(), preparer=Waiter(), settings=Settings)


class WatchedDoor(Authenticator):
    """Remembers who came over TCP, by user agent, and who over the unix socket."""

    tcp: ClassVar[set[str]] = set()
    unix: ClassVar[set[str]] = set()

    @override
    def check(self, request: BaseRequest, tokens: TokenIssuer) -> User:
        assert request.transport is not None
        came = self.unix if isinstance(request.transport.get_extra_info("sockname"), str) else self.tcp
        came.add(request.headers["User-Agent"].partition("/")[0])
        return super().check(request, tokens)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    driver = SandboxDriver((new_driver(), new_driver()), Settings.model_validate, values={"oven": "oven of {node}"})
    with patch("dra_kit.sandbox.control_plane.Authenticator", WatchedDoor):
        cluster = Sandbox(driver, SandboxSettings(nodes=2, time_scale=10))
    async with cluster as running:
        await running.client.create(DEVICE_CLASSES, CLASS)
        yield running


async def test_components_and_kopf_connect_over_a_unix_socket(sandbox: Sandbox) -> None:
    own = {
        "kube-controller-manager", "kubelet node-1", "kubelet node-2",
        "dra-kit sandbox", "dra-kit-sandbox", "dra.pizza dra-kit", "dra-kit", "kopf",
    }  # fmt: skip

    await until(lambda: own <= WatchedDoor.unix)

    assert not WatchedDoor.tcp & own
    [path] = sandbox.directory.glob("*.sock")
    assert path.is_socket()


def claim(name: str, selector: str = "", parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": "pizza"}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    devices: dict[str, Any] = {"requests": [{"name": "pizza", "exactly": exactly}]}
    if parameters is not None:
        parameters = {"apiVersion": "dra.pizza/v1", "kind": "PizzaConfig", **parameters}
        devices["config"] = [{"opaque": {"driver": "dra.pizza", "parameters": parameters}}]
    metadata = {"name": name, "namespace": "default"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": {"devices": devices},
    }


def pod(name: str, claim_name: str, *command: str) -> dict[str, Any]:
    container = {
        "name": "eater",
        "image": "x",
        "command": list(command),
        "resources": {"claims": [{"name": "pizza"}]},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "resourceClaims": [{"name": "pizza", "resourceClaimName": claim_name}],
        },
    }


def phase(sandbox: Sandbox, name: str) -> str:
    found = sandbox.informers.objects(PODS).get(("default", name), {})
    return str(found.get("status", {}).get("phase"))


async def test_driver_has_separate_settings_on_each_node(sandbox: Sandbox) -> None:
    found = {
        item["spec"]["nodeName"]: item["spec"]["devices"][0]["attributes"]["oven"]["string"]
        for item in sandbox.informers.objects(RESOURCE_SLICES).values()
    }

    assert found == {"node-1": "oven of node-1", "node-2": "oven of node-2"}


async def test_pod_runs_on_the_node_of_its_claim(sandbox: Sandbox) -> None:
    await sandbox.client.create(RESOURCE_CLAIMS, claim("far", 'device.attributes["dra.pizza"].oven.endsWith("node-2")'))
    await sandbox.client.create(PODS, pod("traveller", "far", "sh", "-c", "echo cheese: $CHEESE"))

    await until(lambda: phase(sandbox, "traveller") == "Succeeded")

    assert sandbox.informers.objects(PODS)["default", "traveller"]["spec"]["nodeName"] == "node-2"
    assert await sandbox.output("default", "traveller", "eater") == "cheese: false\n"


async def test_api_server_returns_container_logs(sandbox: Sandbox) -> None:
    await sandbox.client.create(RESOURCE_CLAIMS, claim("loud"))
    await sandbox.client.create(PODS, pod("singer", "loud", "echo", "la la"))
    await until(lambda: phase(sandbox, "singer") == "Succeeded")

    import aiohttp

    outside = await load_credentials(sandbox.kubeconfig)
    url = f"{outside.connection.server}/api/v1/namespaces/default/pods/singer/log?container=eater"
    headers = {"Authorization": await outside.authorization() or ""}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(url, ssl=outside.ssl or True) as answer:
        assert await answer.text() == "la la\n"


async def test_api_rejects_other_users(sandbox: Sandbox) -> None:
    import aiohttp

    outside = await load_credentials(sandbox.kubeconfig)
    assert outside.ssl is not None
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{outside.connection.server}/api/v1/pods", ssl=outside.ssl) as answer:
            assert answer.status == 401
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(f"http://127.0.0.1:{sandbox.control_plane.server.port}/livez")
    assert sandbox.directory.stat().st_mode & 0o777 == 0o700
    assert sandbox.kubeconfig.stat().st_mode & 0o777 == 0o600


async def test_process_mark_is_not_in_the_reported_environment(sandbox: Sandbox) -> None:
    await sandbox.client.create(RESOURCE_CLAIMS, claim("marked"))
    await sandbox.client.create(PODS, pod("marked", "marked", "env"))
    await until(lambda: phase(sandbox, "marked") == "Succeeded")

    [mark] = [line for line in (await sandbox.output("default", "marked", "eater")).splitlines() if "_MARK=" in line]
    assert mark == f"{MARK_VARIABLE}={mark_of(sandbox.directory)}"
    assert MARK_VARIABLE not in await sandbox.environment("default", "marked", "eater")


async def test_webhook_rejects_invalid_configuration(sandbox: Sandbox) -> None:
    with pytest.raises(KubeError, match="extra_chese"):
        await sandbox.client.create(RESOURCE_CLAIMS, claim("wrong", parameters={"extra_chese": True}))

    await sandbox.client.create(RESOURCE_CLAIMS, claim("right", parameters={"extra_cheese": True}))


async def test_deleted_pod_frees_its_device(sandbox: Sandbox) -> None:
    only = 'device.attributes["dra.pizza"].oven.endsWith("node-1")'
    for name in ("first", "second"):
        await sandbox.client.create(RESOURCE_CLAIMS, claim(name, only))
    await sandbox.client.create(PODS, pod("first", "first", "sleep", "3600"))
    await until(lambda: phase(sandbox, "first") == "Running")
    await sandbox.client.create(PODS, pod("second", "second", "true"))
    await sandbox.client.delete(PODS, "first", "default")

    await until(lambda: phase(sandbox, "second") == "Succeeded")
    await until(lambda: ("default", "first") not in sandbox.informers.objects(PODS))


async def test_unexpected_driver_exit_cancels_waiting_work() -> None:
    class Leaving(Oven):
        @override
        async def startup(self, context: dra.Context[Settings]) -> None:  # type: ignore[override]
            async def leave() -> None:
                await asyncio.to_thread(gone.wait, 60)
                raise SystemExit(3)

            self.task = asyncio.create_task(leave())

    gone = threading.Event()
    driver = dra.Driver("dra.pizza", provider=Leaving(), preparer=Waiter(), settings=Settings)

    async with Sandbox(SandboxDriver((driver,), lambda _: Settings()), SandboxSettings(webhook=False)) as running:
        gone.set()
        with pytest.raises(SandboxError, match="the driver's node role on node-1 ended: SystemExit: 3"):
            await running.or_fail(asyncio.Event().wait())


class Endings(SandboxObserver):
    """Records the calls reported at the end of the cluster."""

    calls: Sequence[str] = ()

    @override
    def ending(self, calls: Sequence[str]) -> None:
        self.calls = calls


async def test_first_pod_gets_events_if_the_controller_starts_after_its_deletion() -> None:
    class SlowObserver(dra.ClaimObserver):
        @override
        async def startup(self, context: dra.Context[Settings]) -> None:
            await asyncio.to_thread(gone.wait, 60)

    gone = threading.Event()
    driver = dra.Driver("dra.pizza", provider=Oven(), preparer=Waiter(), settings=Settings, observer=SlowObserver())
    async with Sandbox(SandboxDriver((driver,), Settings.model_validate), SandboxSettings(time_scale=10)) as sandbox:
        client = sandbox.client
        await client.create(DEVICE_CLASSES, CLASS)
        await client.create(RESOURCE_CLAIMS, claim("first"))
        await client.create(PODS, pod("eater", "first", "true"))
        await until(lambda: phase(sandbox, "eater") == "Succeeded")
        await client.delete(RESOURCE_CLAIMS, "first", "default")
        await until(lambda: not sandbox.informers.objects(RESOURCE_CLAIMS))
        gone.set()

        reasons: set[str] = set()
        async with asyncio.timeout(60):
            while reasons < {"DeviceAllocated", "ClaimReserved", "ClaimReleased"}:
                await asyncio.sleep(0.05)
                events = (await client.list(EVENTS)).items
                reasons = {item["reason"] for item in events if item["regarding"]["name"] == "first"}


@pytest.mark.processes
async def test_hanging_code_is_reported_and_does_not_block_shutdown() -> None:
    entered, released = threading.Event(), threading.Event()

    class Sleeper(Waiter):
        @override
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[PizzaConfig]) -> dra.Prepared:
            entered.set()
            released.wait()
            return dra.Prepared()

    endings = Endings()
    others = set(threading.enumerate())
    sandbox = Sandbox(
        SandboxDriver((dra.Driver("dra.pizza", provider=Oven(), preparer=Sleeper(), settings=Settings),),
                      lambda _: Settings()),
        SandboxSettings(webhook=False, controller=False),
        observers=(endings,),
    )  # fmt: skip
    try:
        async with sandbox:
            await sandbox.client.create(DEVICE_CLASSES, CLASS)
            await sandbox.client.create(RESOURCE_CLAIMS, claim("stuck"))
            await sandbox.client.create(PODS, pod("stuck", "stuck", "true"))
            await until(entered.is_set)
        # it was left while the call goes on
        assert not released.is_set()
    finally:
        released.set()

    await until(lambda: not any(thread.name.startswith("node role") for thread in set(threading.enumerate()) - others))
    assert not sandbox.directory.exists(), "what returned late made it again"

    [told] = endings.calls
    assert told.startswith("on node-1: claim default/stuck")
    assert "Sleeper.prepare has not returned for" in told


async def test_sandbox_with_a_long_temporary_directory_has_short_socket_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("deep" * 30)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))

    async with Sandbox([]) as sandbox:
        [path] = sandbox.directory.glob("*.sock")
        assert path.is_socket()
        assert len(str(path)) <= 107
        assert await sandbox.client.list(DEVICE_CLASSES)


async def test_sandbox_leaves_no_processes_or_files() -> None:
    with tempfile.TemporaryDirectory() as directory:
        kubeconfig = Path(directory) / "kubeconfig"
        driver = SandboxDriver((new_driver(),), lambda _: Settings())
        async with Sandbox(driver, SandboxSettings(kubeconfig=kubeconfig, webhook=False)) as sandbox:
            own = sandbox.directory
            assert kubeconfig.exists()

        assert not own.exists()
        assert not kubeconfig.exists()


async def test_unwritable_kubeconfig_is_reported() -> None:
    settings = SandboxSettings(kubeconfig=Path("/proc/no-such-place/kubeconfig"))

    with pytest.raises(ConfigurationError, match="kubeconfig /proc/no-such-place/kubeconfig cannot be written"):
        async with Sandbox(SandboxDriver((new_driver(),), lambda _: Settings()), settings):
            pass


async def test_node_allocatable_devices_are_accepted_with_alpha_features() -> None:
    class Counting(dra.DeviceProvider):
        @override
        def discover(self) -> Iterator[Sequence[dra.Device]]:
            each = dra.NodeAllocatableResource(mapping=dra.NodeAllocatableResourceMapping(device_multiplier="1"))
            yield [dra.Device(name="pizza", node_allocatable_resources={"cpu": each})]

    driver = dra.Driver("dra.pizza", provider=Counting(), preparer=Waiter())
    async with Sandbox(SandboxDriver((driver,)), SandboxSettings(release=Release.alpha())) as sandbox:
        await sandbox.client.create(DEVICE_CLASSES, CLASS)
        (published,) = sandbox.informers.objects(RESOURCE_SLICES).values()
        await sandbox.client.create(RESOURCE_CLAIMS, claim("lunch"))
        await sandbox.client.create(PODS, pod("guest", "lunch", "true"))
        await until(lambda: phase(sandbox, "guest") == "Succeeded")

    (device,) = published["spec"]["devices"]
    assert device["nodeAllocatableResources"] == {"cpu": {"mapping": {"deviceMultiplier": "1"}}}


async def test_start_fails_early_only_while_discover_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    late = threading.Event()

    class Flaky(dra.DeviceProvider):
        tries = 0

        @override
        def discover(self) -> Iterator[Sequence[dra.Device]]:
            self.tries += 1
            if self.tries == 1:
                raise OSError("the oven is cold")
            yield [dra.Device(name="pizza")]

    class Late(dra.DeviceProvider):
        @override
        def discover(self) -> Iterator[Sequence[dra.Device]]:
            late.wait()
            yield [dra.Device(name="pizza")]

    class Broken(dra.DeviceProvider):
        @override
        def discover(self) -> Iterator[Sequence[dra.Device]]:
            raise OSError("the oven is gone")

    def driver(provider: dra.DeviceProvider) -> SandboxDriver:
        name = f"dra.{type(provider).__name__.lower()}"
        return SandboxDriver((dra.Driver(name, provider=provider, preparer=Waiter()),))

    async def start(cluster: Sandbox) -> None:
        async with cluster:
            pass

    monkeypatch.setattr("dra_kit.sandbox.drivers.running._FAILED_SECONDS", 60.0)
    recovering = Sandbox([driver(Flaky()), driver(Late())], SandboxSettings(webhook=False))
    starting = asyncio.create_task(start(recovering))
    await until(lambda: bool(recovering.log.problems_of("discover failed")))
    await until(lambda: any(item["spec"]["driver"] == "dra.flaky" for item in slices_of(recovering)))
    monkeypatch.setattr("dra_kit.sandbox.drivers.running._FAILED_SECONDS", 0.0)
    done, _ = await asyncio.wait({starting}, timeout=0.5)
    late.set()
    await starting  # without an error
    assert not done

    with pytest.raises(SandboxError, match=r"driver dra\.broken publishes nothing on node-1 within"):
        await start(Sandbox([driver(Broken())], SandboxSettings(webhook=False)))


def slices_of(cluster: Sandbox) -> list[Any]:
    return list(cluster.informers.objects(RESOURCE_SLICES).values())
