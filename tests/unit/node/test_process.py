"""The node process as a whole: start without its dependencies, recovery and exit."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.errors import ConfigurationError, StoreError
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.node.claims.metadata import MetadataFiles
from dra_kit.sandbox.kubelet.plugin_manager import PluginManager
from tests.support.api import eventually
from tests.support.ports import kept_free
from tests.support.probes import ask
from tests.unit.node.drivers import Doing, Oven, Paused, SlowToStart, Waiter, driver
from tests.unit.node.hardware import Heat, kitchen
from tests.unit.node.role import DRIVER, NODE, PLENTY, SLICES, Node, node


async def test_kubelet_is_answered_without_an_api_server(node: Node) -> None:
    waiter = Waiter()
    lunch = node.claim()
    node.api.go_away()
    async with node.running(driver(waiter)):
        assert "claim default/lunch cannot be read" in await node.error(lunch)
        assert "no connection to" in await node.error(lunch)
        node.api.listen()
        await node.prepare(lunch)
        await eventually(node.slices)
        assert waiter.context.node.labels == {"oven": "hot"}, "learned when the API server came"


async def test_prepared_claims_are_answered_during_an_api_outage(node: Node) -> None:
    lunch = node.claim()
    async with node.running(driver()):
        await node.prepare(lunch)
        node.api.go_away()
        assert "no connection to" in await node.error(lunch)
        assert node.records() == ["lunch"]
        assert node.env(lunch) == ["PIZZA_0=served"]
        await node.unprepare(lunch)
        assert node.is_clean()


async def test_hanging_startup_does_not_delay_the_registration(node: Node) -> None:
    slow, lunch = SlowToStart(), node.claim()
    async with node.running(driver(slow), deadline=0.5):
        assert await node.error(lunch) == (
            "not prepared within 0.5 s: Oven.startup and SlowToStart.startup have not both returned yet; the kubelet "
            "tries again"
        )
        slow.go_on.set()
        await eventually(node.published)
    assert node.is_clean()


async def test_failing_startup_stops_the_process(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Waiter):
        def startup(self, context: dra.Context[Any]) -> None:
            raise RuntimeError("no licence")

    agent = await node.agent(driver(Failing()))
    assert await agent.run() == 1
    [logged] = [item for item in caplog.records if item.getMessage() == "part failed"]
    place = f"{__file__}:{Failing.startup.__code__.co_firstlineno + 1}"
    assert (vars(logged)["part"], vars(logged)["error"], vars(logged)["at"]) == (
        "startup", "RuntimeError: no licence", place,
    )  # fmt: skip


async def test_next_process_gives_the_same_answers(node: Node) -> None:
    waiter = Waiter()
    lunch = node.claim(devices=["pizza-0", "pizza-1"])
    answer = await node.prepared_by(driver(), lunch)
    async with node.running(driver(waiter)):
        assert await node.prepare(lunch) == answer
        assert waiter.calls == []
        await eventually(lambda: waiter.context)
        assert [claim.name for claim in waiter.context.prepared().values()] == ["lunch"]
        await node.unprepare(lunch)
        assert node.is_clean()


async def test_start_restores_missing_files_and_removes_leftovers(node: Node) -> None:
    await node.prepared_by(driver(), node.claim())
    [path] = node.specs()
    content = path.read_bytes()
    path.rename(path.with_name(path.name.replace("uid-lunch", "uid-unknown")))
    foreign = node.cdi / "vendor.json"
    foreign.write_text("{}")
    async with node.running(driver()):
        await eventually(lambda: node.specs() == [path, foreign])
        assert path.read_bytes() == content


async def test_next_process_reverts_the_effects_of_an_interrupted_prepare(node: Node) -> None:
    entered = asyncio.Event()

    async def cut_off(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        await device.ensure(Heat(oven="oven", temperature=200))
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            Heat.hardware.fail = _stuck
        raise AssertionError

    lunch = node.claim()
    kitchen()
    hardware = Heat.hardware
    async with node.running(driver(Doing(cut_off), effects=[Heat]), deadline=1.0):
        await node.late(lunch, entered.is_set)
    assert node.effects() == [("heat", "reverting", ["lunch"])]
    hardware.fail = lambda what, temperature: None
    async with node.running(driver(effects=[Heat])):
        await eventually(node.is_clean)
    assert hardware.on == {}


def _stuck(what: str, temperature: int) -> None:
    raise RuntimeError("stuck")


async def test_sigterm_drains_calls_and_keeps_the_slices(node: Node) -> None:
    paused, lunch = Paused(), node.claim()
    agent = await node.agent(driver(paused))
    running = asyncio.create_task(agent.run())
    client = await node.kubelet.wait_for_plugin(DRIVER, timeout=PLENTY)
    await eventually(node.slices)
    preparing = asyncio.create_task(client.prepare([lunch]))
    await paused.entered.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await eventually(lambda: not node.kubelet.plugins(DRIVER) or preparing.done())
    paused.go_on.set()
    assert await running == 0
    assert node.published() == ["pizza-0", "pizza-1", "pizza-2", "pizza-3"]
    assert node.records() == ["lunch"], "the running call is finished"
    preparing.cancel()
    await asyncio.gather(preparing, return_exceptions=True)
    assert sorted(path.name for path in node.root.rglob("*.sock")) == []


class Slow:
    """An operator that stops slowly, as kopf may."""

    name = "slow operator"

    def __init__(self) -> None:
        self.asked, self.may_end = asyncio.Event(), asyncio.Event()

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.asked.set()
            await self.may_end.wait()


async def test_slow_kopf_does_not_shorten_the_drain_of_kubelet_calls(node: Node) -> None:
    paused, slow, lunch = Paused(), Slow(), node.claim()
    agent = await node.agent(driver(paused), drain=PLENTY)
    agent.supervisor.add(slow)
    running = asyncio.create_task(agent.run())
    client = await node.kubelet.wait_for_plugin(DRIVER, timeout=PLENTY)
    preparing = asyncio.create_task(client.prepare([lunch]))
    await paused.entered.wait()
    agent.stop()
    await eventually(lambda: not node.kubelet.plugins(DRIVER) or preparing.done())
    assert not slow.asked.is_set()
    paused.go_on.set()
    await slow.asked.wait()
    assert node.records() == ["lunch"], "the running call is finished"
    assert not [path for path in node.root.rglob("*.sock") if not path.name.startswith("ops")]
    slow.may_end.set()
    assert await running == 0
    preparing.cancel()
    await asyncio.gather(preparing, return_exceptions=True)


async def test_stale_sockets_of_a_dead_process_are_replaced(node: Node) -> None:
    stale = [
        node.root / "plugins" / DRIVER / "dra-dead.sock",
        node.root / "plugins_registry" / f"{DRIVER}-dead-reg.sock",
        node.root / "plugins" / DRIVER / "dra.sock",
        node.root / "plugins_registry" / f"{DRIVER}-reg.sock",
    ]
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    lunch = node.claim()
    async with node.running(driver()):
        await node.prepare(lunch)
        assert not stale[0].exists()
        assert not stale[1].exists()


async def test_paths_too_long_for_sockets_are_shortened(tmp_path: Path) -> None:
    async with node() as made:
        uid = "0f9c6c64-7dbf-4d6c-9bd1-2a4f1c8f6f0a"
        made.root /= "d" * (49 - len(str(made.root)))
        made.root.mkdir()
        lunch = made.claim()
        async with PluginManager(made.root, get_info_timeout=60, call_timeout=60, release=UNMODIFIED) as kubelet:
            made.kubelet = kubelet
            async with made.running(driver(), pod_uid=uid):
                assert uid not in kubelet.plugin(DRIVER).endpoint
                await made.prepare(lunch)


async def test_socket_path_that_is_too_long_when_hashed_is_rejected(node: Node) -> None:
    with pytest.raises(ConfigurationError, match="give a shorter --kubelet-dir"):
        await node.agent(driver(), kubelet_dir=node.root / ("d" * 100))


async def test_regular_file_at_the_path_of_the_socket(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    path = node.root / "plugins" / DRIVER / "dra.sock"
    path.parent.mkdir(parents=True)
    path.write_text("")
    agent = await node.agent(driver())
    assert await agent.run() == 2
    assert any("is at the path of the driver's socket" in str(getattr(item, "error", "")) for item in caplog.records)


async def test_directory_without_kubelet_is_reported_once(
    node: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_kit.node.kubelet_connection.KUBELET_WAIT", 0.1)
    agent = await node.agent(driver(), kubelet_dir=node.directory / "e")
    running = asyncio.create_task(agent.run())

    def logged() -> list[str]:
        return [str(getattr(item, "remedy", "")) for item in caplog.records if "no kubelet" in item.getMessage()]

    await eventually(logged)
    await eventually(node.slices)
    agent.stop()
    assert await running == 0
    [remedy] = logged()
    assert "tries again within 122 s" in remedy
    assert "none watches plugins_registry: set --kubelet-dir" in remedy


@pytest.mark.processes
async def test_rejected_kopf_affects_no_claim(node: Node) -> None:
    lunch = node.claim()
    with node.api.failing(403, agent="kopf"):
        async with node.running(driver()):
            await eventually(node.slices)
            await eventually(lambda: any("kopf" in item.agent for item in node.api.requests))
            await node.prepare(lunch)
            await node.unprepare(lunch)
            assert node.is_clean()


async def test_state_that_cannot_be_opened_is_reported(node: Node) -> None:
    database = node.settings().database(DRIVER)
    database.mkdir(parents=True)
    with pytest.raises(StoreError, match=r"cannot be opened: .*--state-dir"):
        await node.agent(driver())


async def test_unreadable_boot_id_is_reported(node: Node) -> None:
    node.boot_id.unlink()
    with pytest.raises(ConfigurationError, match="cannot be read: No such file or directory; mount /proc"):
        await node.agent(driver())
    assert not node.settings().database(DRIVER).exists()


async def test_leftovers_that_cannot_be_removed_do_not_stop_the_node(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    async with node.running(driver()):
        pass  # what lies there before the first start of all may belong to claims whose records were lost
    metadata = node.root / "state" / "device-metadata" / "claim-uid-gone"
    metadata.parent.mkdir(parents=True, exist_ok=True)
    metadata.write_text("no directory")
    lunch = node.claim()
    async with node.running(driver()):
        assert any("files of released claims" in item.getMessage() for item in caplog.records)
        await node.prepare(lunch)
        await node.unprepare(lunch)
        assert node.records() == []


async def test_unreadable_metadata_directory_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may read everything
    try:
        with pytest.raises(
            StoreError, match=r"device metadata directory .* cannot be read: Permission denied; check .*--state-dir"
        ):
            MetadataFiles(tmp_path, DRIVER).uids()
    finally:
        os.seteuid(user)
        tmp_path.chmod(0o700)


async def test_read_only_cdi_directory_is_reported_at_start(node: Node) -> None:
    node.cdi.write_text("in the way")
    with pytest.raises(ConfigurationError, match=r"CDI directory .* cannot be written: Not a directory; .*--cdi-dir"):
        await node.agent(driver())


# -- in a process of its own


@asynccontextmanager
async def process(node: Node, source: str, *flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """``dra-kit node`` with a driver; killed if the test does not end it."""
    path = node.directory / "pizzeria.py"
    path.write_text(textwrap.dedent(source))
    command = [
        str(Path(sys.executable).with_name("dra-kit")), "node", str(path), "--node-name", NODE,
        "--kubeconfig", str(node.kubeconfig), "--kubelet-dir", str(node.root), "--cdi-dir", str(node.cdi),
        "--state-dir", str(node.root / "state"), "--log-format", "json", *flags,
    ]  # fmt: skip
    log = (node.directory / "log").open("wb")
    with log:
        running = await asyncio.create_subprocess_exec(*command, stderr=log, stdout=log)
        try:
            yield running
        finally:
            if running.returncode is None:
                running.kill()
                await running.wait()


def log(node: Node) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (node.directory / "log").read_text().splitlines()]


def troubles(node: Node) -> list[dict[str, Any]]:
    """Return warnings and errors, except those of a busy machine."""
    slow = {("Node cannot be read yet", "no answer"), ("no kubelet has registered the driver", "")}
    found = [line for line in log(node) if line["level"] in {"WARNING", "ERROR"}]
    return [line for line in found if (line["message"], line.get("error", "")) not in slow]


PIZZERIA = """
    import sys
    from collections.abc import Iterator, Sequence

    import dra_kit as dra


    class Oven(dra.DeviceProvider):
        def discover(self) -> Iterator[Sequence[dra.Device]]:
            yield [dra.Device(name=f"pizza-{i}") for i in range(128)]


    class Waiter(dra.Preparer):
        async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            models = [name for name in list(sys.modules) if name.startswith("kubernetes_asyncio.client.models")]
            rss = int(open("/proc/self/statm").read().split()[1]) * 4096 // 2**20
            return dra.Prepared(env={"MODELS": str(len(models)), "KOPF": str("kopf" in sys.modules), "RSS": str(rss)})


    driver = dra.Driver("dra.pizza", provider=Oven(), preparer=Waiter())
"""


@pytest.mark.processes
async def test_process_serves_without_generated_models_and_exits_on_sigterm(node: Node) -> None:
    lunch = node.claim()
    async with process(node, PIZZERIA) as running:
        await node.kubelet.wait_for_plugin(DRIVER, timeout=PLENTY)
        await eventually(lambda: node.api.asked("WATCH", SLICES))
        assert len(node.published()) == 128
        await node.prepare(lunch)
        env = dict(entry.split("=") for entry in node.env(lunch))
        assert (env["MODELS"], env["KOPF"]) == ("0", "True")
        assert int(env["RSS"]) <= 100
        running.terminate()
        assert await running.wait() == 0
    assert node.records() == ["lunch"]
    assert len(node.published()) == 128
    assert not troubles(node)


@pytest.mark.processes
async def test_process_serves_probes_at_the_configured_address(node: Node) -> None:
    with kept_free() as port:

        def ready() -> bool:
            try:
                return ask(port, "/readyz") == (200, "ok\n")
            except OSError:
                return False

        async with process(node, PIZZERIA, "--probe-address", f"127.0.0.1:{port}") as running:
            await eventually(ready)
            assert len(node.published()) == 128
            assert ask(port, "/healthz") == (200, "ok\n")
            running.terminate()
            assert await running.wait() == 0
    assert not troubles(node)


@pytest.mark.processes
async def test_killed_process_keeps_its_answers(node: Node) -> None:
    claims = [node.claim(f"claim-{number}", [f"pizza-{number}"]) for number in range(10)]
    async with process(node, PIZZERIA) as running:
        await node.kubelet.wait_for_plugin(DRIVER, timeout=PLENTY)
        answers = await node.prepare(*claims)
        running.kill()
        await running.wait()
    async with node.running(driver(provider=Oven(*(f"pizza-{number}" for number in range(128))))):
        assert await node.prepare(*claims) == answers
        await node.unprepare(*claims)
        assert node.is_clean()


@pytest.mark.processes
async def test_error_at_runtime_stops_the_process_with_its_code(node: Node) -> None:
    (node.root / "plugins_registry").mkdir(exist_ok=True)
    (node.root / "plugins_registry" / f"{DRIVER}-reg.sock").write_text("")
    async with process(node, PIZZERIA) as running:
        assert await running.wait() == 2
    [failed] = [line for line in log(node) if line["message"] == "part failed"]
    assert failed["code"] == "socket-path-taken"


@pytest.mark.processes
async def test_logs_name_claim_and_pod(node: Node) -> None:
    lunch = node.claim(reserved_for=["guest"])
    async with process(node, PIZZERIA) as running:
        await node.kubelet.wait_for_plugin(DRIVER, timeout=PLENTY)
        await node.prepare(lunch)
        running.terminate()
        await running.wait()
    [line] = [line for line in log(node) if line["message"] == "claim prepared"]
    assert (line["claim"], line["claim_uid"], line["pod"]) == ("default/lunch", "uid-lunch", "default/guest")
