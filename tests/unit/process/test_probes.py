"""Liveness and readiness as a kubelet asks for them."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial

import pytest

from dra_kit.author.calls import call
from dra_kit.errors import ConfigurationError, StoreError
from dra_kit.process.logging import log_context
from dra_kit.process.metrics import Metrics
from dra_kit.process.probes import LoopWatchdog, Probes, hanging_calls, unready_parts
from dra_kit.process.supervisor import Supervisor
from tests.support.api import eventually
from tests.support.ports import kept_free
from tests.support.probes import ask
from tests.unit.process.clock import Clock


async def asked(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    return await asyncio.to_thread(ask, port, path, host)


def well() -> list[str]:
    return []


@asynccontextmanager
async def probing(
    *,
    live: Callable[[], Iterable[str]] = well,
    ready: Callable[[], Iterable[str]] = well,
    address: str = "127.0.0.1:0",
    metrics: Metrics | None = None,
) -> AsyncIterator[int]:
    """The port of probes that are answered."""
    probes = Probes(address, live=[live], ready=[ready], metrics=metrics)
    serving = asyncio.Event()
    task = asyncio.create_task(probes.run(serving))
    async with asyncio.timeout(60):
        await serving.wait()
    try:
        yield probes.port
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_probes_answer_ok() -> None:
    async with probing() as port:
        assert await asked(port, "/healthz") == (200, "ok\n")
        assert await asked(port, "/readyz") == (200, "ok\n")
        assert (await asked(port, "/metricz"))[0] == 404


async def test_each_problem_is_a_line_of_its_probe() -> None:
    async with probing(live=lambda: ["a", "b"], ready=lambda: ["c"]) as port:
        assert await asked(port, "/healthz") == (503, "a\nb\n")
        assert await asked(port, "/readyz") == (503, "c\n")


@pytest.mark.processes
async def test_connections_that_are_held_leave_room_for_a_probe() -> None:
    async with probing() as port:
        with ExitStack() as stack:
            held = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 60)) for _ in range(100)]
            for each in held[50:]:
                with suppress(ConnectionError):
                    each.sendall(b"GET /readyz HTTP/1.1\r\nHost: x")
            assert await asked(port, "/healthz") == (200, "ok\n")
            assert await asyncio.to_thread(_is_cut_off, held[0])


def _is_cut_off(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


async def test_the_port_is_free_again_at_the_end() -> None:
    with kept_free() as port:
        async with probing(address=f"127.0.0.1:{port}"):
            pass
        with socket.create_server(("127.0.0.1", port)):
            pass


async def test_without_a_host_it_listens_everywhere() -> None:
    async with probing(address=":0") as port:
        assert (await asked(port, "/healthz"))[0] == 200


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
async def test_ipv6_address_needs_brackets() -> None:
    async with probing(address="[::1]:0") as port:
        assert (await asked(port, "/healthz", "[::1]"))[0] == 200


def test_port_in_use_is_reported_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError) as told:
            Probes(f"127.0.0.1:{port}", live=[], ready=[])
    assert str(told.value) == (
        f"--probe-address cannot listen on 127.0.0.1:{port} (Address already in use): give another address or port"
    )


@pytest.mark.parametrize("address", ["8081", "localhost", "localhost:", ":http", "::1:80", "a:b:1", ":-1"])
def test_an_address_of_another_form_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="is not host:port; write for example ':8081'"):
        Probes(address, live=[], ready=[])


class Settling:
    """A part that is ready when a test says so, and fails when it says so."""

    name = "oven"

    def __init__(self) -> None:
        self.heat = asyncio.Event()
        self.burn = asyncio.Event()

    async def run(self, ready: asyncio.Event) -> None:
        await self.heat.wait()
        ready.set()
        await self.burn.wait()
        raise StoreError("burnt")


async def test_a_process_is_ready_while_all_its_parts_are() -> None:
    supervisor, oven = Supervisor(), Settling()
    supervisor.add(oven)
    running = asyncio.create_task(supervisor.run())
    async with probing(ready=lambda: unready_parts(supervisor)) as port:
        assert await asked(port, "/readyz") == (503, "oven is waiting\n")
        oven.heat.set()
        await eventually(lambda: not unready_parts(supervisor))
        assert await asked(port, "/readyz") == (200, "ok\n")
        oven.burn.set()
        await running
        assert await asked(port, "/readyz") == (503, "the process is stopping\noven is failed: burnt\n")


async def test_blocked_loop_fails_the_probe_while_it_is_blocked(clock: Clock) -> None:
    here = "in test_blocked_loop_fails_the_probe_while_it_is_blocked"
    watchdog = LoopWatchdog(patience=0.2)
    answers: list[tuple[int, str]] = []
    watching = asyncio.create_task(watchdog.run(asyncio.Event()))
    async with probing(live=watchdog.blocked) as port:
        assert (await asked(port, "/healthz"))[0] == 200

        def look() -> None:
            for _ in range(600):
                answers.append(ask(port, "/healthz"))
                if here in answers[-1][1]:  # at first the place may be one inside of start()
                    return
                time.sleep(0.05)

        looking = threading.Thread(target=look)
        clock.now += 2.0
        looking.start()
        looking.join()  # the loop is blocked here until the probe has failed
        assert {status for status, _ in answers} == {503}
        assert answers[-1][1].startswith("the event loop is blocked for 2 s at ")
        assert here in answers[-1][1]
        await eventually(lambda: not watchdog.blocked())
        assert (await asked(port, "/healthz"))[0] == 200
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    clock.now += 2.0
    assert watchdog.blocked() == [], "a loop that is no longer watched is not blocked"


class Waiter:
    def __init__(self) -> None:
        self.go_on = threading.Event()

    def prepare(self) -> str:
        self.go_on.wait()
        return "served"

    async def serve(self) -> str:
        await eventually(self.go_on.is_set)
        return "served"


@pytest.mark.parametrize("method", ["prepare", "serve"])
async def test_hanging_call_fails_the_probe_with_claim_and_age(method: str) -> None:
    waiter = Waiter()
    hanging = partial(hanging_calls, asyncio.get_running_loop(), 0.1)
    with log_context(claim="default/lunch"):
        calling = asyncio.create_task(call(getattr(waiter, method)))
    await eventually(hanging)
    [told] = hanging()
    assert re.fullmatch(rf"claim default/lunch: Waiter\.{method} has not returned for \d+ s", told)
    assert hanging_calls(asyncio.get_running_loop(), 3600) == []
    waiter.go_on.set()
    assert await calling == "served"
    assert hanging() == []


async def test_a_call_that_fails_hangs_no_longer() -> None:
    def fail() -> None:
        raise RuntimeError("burnt")

    with pytest.raises(RuntimeError, match="burnt"):
        await call(fail)
    assert hanging_calls(asyncio.get_running_loop(), -1) == []
