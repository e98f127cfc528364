"""Hostile output of containers and drivers: endless, without line endings, with control sequences."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from benchmarks.loud_pods import gets, p95, pod, sandbox
from dra_kit.client.credentials import load_credentials
from dra_kit.client.resources import PODS
from dra_kit.client.transport import ClientRequest, Transport
from dra_kit.sandbox.containers.log import LIMIT
from tests.hostile.ledger import Ledger, peak_mebibytes

PART = "output"
GET_MS = 5_000  # for busy machines
MEBIBYTES = 250  # an idle sandbox needs 90, the output of a container at most one; ``yes`` writes gibibytes
COMMON = "; exec sleep 3600"

LOUD_DRIVER = """
    import threading

    import dra_kit as dra


    class Oven(dra.DeviceProvider):
        def discover(self):
            threading.Thread(target=self.sing, daemon=True).start()
            yield [dra.Device(name="pizza")]

        def sing(self):
            for number in range(400_000):
                print(f"{number:099}", flush=True)
            open("sung", "w").close()


    class Waiter(dra.Preparer):
        def prepare(self, claim, device):
            return dra.Prepared()


    driver = dra.Driver("dra.pizza", provider=Oven(), preparer=Waiter())
"""


async def log(directory: Path, name: str, **query: str) -> bytes:
    """Return the current log of a pod."""
    transport = Transport(await load_credentials(directory / "kubeconfig"), user_agent="hostile", timeout=60)
    try:
        return await transport.send(
            ClientRequest.of_object("get", PODS, name, "default", subresource="log", query=query)
        )
    finally:
        await transport.close()


async def ended(directory: Path, name: str, mark: bytes) -> bytes:
    """Return the log once its last line is complete."""
    async with asyncio.timeout(60):
        while not (found := await log(directory, name)).endswith(mark):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.1)
    return found


async def test_pods_that_write_without_end(tmp_path: Path, ledger: Ledger) -> None:
    with ledger.attack("three pods that run yes, GETs of a pod meanwhile") as case:
        async with sandbox(tmp_path, [pod(f"yes-{number}", "yes") for number in range(3)], 1) as (client, pid):
            assert p95(await gets(client, "yes-0", 5)) < GET_MS
            assert len(await log(tmp_path, "yes-1")) <= LIMIT
            assert await log(tmp_path, "yes-1", tailLines="2") == b"y\ny\n"
            case.took(peak_mebibytes(pid))
            assert case.mebibytes < MEBIBYTES


async def test_readers_that_do_not_read(tmp_path: Path, ledger: Ledger) -> None:
    with ledger.attack("20 that follow yes and take nothing") as case:
        async with sandbox(tmp_path, [pod("yes", "yes")], 1) as (client, pid), contextlib.AsyncExitStack() as stack:
            transport = Transport(await load_credentials(tmp_path / "kubeconfig"), user_agent="hostile", timeout=60)
            stack.push_async_callback(transport.close)
            call = ClientRequest.of_object("get", PODS, "yes", "default", subresource="log", query={"follow": "true"})
            for _ in range(20):
                await stack.enter_async_context(transport.stream(call, silence=60))
            assert p95(await gets(client, "yes", 3)) < GET_MS
            case.took(peak_mebibytes(pid))
            assert case.mebibytes < MEBIBYTES


async def test_much_output_of_many_pods(tmp_path: Path, ledger: Ledger) -> None:
    script = "tr '\\0' x < /dev/zero | head -c 1000000 | fold -w 99; echo; echo sung" + COMMON
    pods = [pod(f"singer-{number}", "sh", "-c", script) for number in range(40)]
    with ledger.attack("40 pods of 1 MB, GETs of a pod meanwhile") as case:
        async with sandbox(tmp_path, pods, 2) as (client, pid):
            assert p95(await gets(client, "singer-0", 3)) < GET_MS
            for number in range(40):
                found = await ended(tmp_path, f"singer-{number}", b"\nsung\n")
                assert len(found) >= LIMIT * 0.9
            case.took(peak_mebibytes(pid))
            assert case.mebibytes < MEBIBYTES
    assert (tmp_path / "view").stat().st_size < 2_000_000


async def test_a_line_without_end(tmp_path: Path, ledger: Ledger) -> None:
    script = "tr '\\0' x < /dev/zero | head -c 10000000; echo; echo sung" + COMMON
    with ledger.attack("a line of 10 MB") as case:
        async with sandbox(tmp_path, [pod("breathless", "sh", "-c", script)], 1) as (_, pid):
            found = await ended(tmp_path, "breathless", b"x\nsung\n")
            assert LIMIT * 0.9 < len(found) <= LIMIT
            assert await log(tmp_path, "breathless", tailLines="1") == b"sung\n"
            case.took(peak_mebibytes(pid))
            assert case.mebibytes < MEBIBYTES
    assert (tmp_path / "view").stat().st_size < 100_000


async def test_bytes_that_are_not_text_and_control_sequences(tmp_path: Path, ledger: Ledger) -> None:
    raw = b"\xff\xfe\x1b[2J\x1b]0;owned\x07\x00\xf0\x9f\r\n"
    octal = "".join(f"\\{byte:03o}" for byte in raw)
    with ledger.attack("invalid UTF-8 and terminal escapes: raw in the log, escaped in the view") as case:
        async with sandbox(tmp_path, [pod("rude", "sh", "-c", f"printf '{octal}'{COMMON}")], 1) as (_, pid):
            assert await ended(tmp_path, "rude", b"\n") == raw
            view = tmp_path / "view"
            async with asyncio.timeout(60):
                while b"owned" not in view.read_bytes():  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(0.05)
            case.took(peak_mebibytes(pid))
        assert b"\x1b" not in view.read_bytes()
        assert rb"\x1b]0;owned\x07\x00" in view.read_bytes()


def test_a_driver_that_prints_without_end(tmp_path: Path, ledger: Ledger) -> None:
    (tmp_path / "pizzeria.py").write_text(textwrap.dedent(LOUD_DRIVER))
    tool = str(Path(sys.executable).with_name("dra-kit"))
    state = tmp_path / "run"
    state.mkdir(mode=0o700)
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(state)}

    def command(*arguments: str) -> None:
        subprocess.run([tool, "sandbox", *arguments], cwd=tmp_path, env=environment, check=True, timeout=120)

    with ledger.attack("a driver that prints 40 MB, in the background"):
        command("./pizzeria.py", "--detach")
        try:
            [log_file] = state.glob("*/*.log")
            end = time.monotonic() + 60
            while not ((tmp_path / "sung").exists() and log_file.stat().st_size <= 8 << 20):
                assert time.monotonic() < end
                time.sleep(0.1)
            first, *lines = log_file.read_text().splitlines()
            assert "bytes of older lines went: at most 8 MiB are kept" in first
            assert any(line == f"{399_999:099}" for line in lines)
        finally:
            command("down")
