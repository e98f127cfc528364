"""``pods/log`` of a whole sandbox."""

from __future__ import annotations

import asyncio
import re
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from dra_kit.client.resources import PODS
from dra_kit.client.transport import ClientRequest, Transport
from dra_kit.errors import KubeError
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver
from tests.unit.apiserver.programs import program
from tests.unit.sandbox.cluster.kubelet.polling import until
from tests.unit.sandbox.test_sandbox import Settings, new_driver

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    driver = SandboxDriver((new_driver(),), lambda _: Settings())
    settings = SandboxSettings(time_scale=100, webhook=False, controller=False)
    async with Sandbox(driver, settings) as running:
        yield running


def pod(name: str, script: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "eater", "image": "x", "command": ["sh", "-c", script]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container], **spec},
    }


def status(sandbox: Sandbox, name: str) -> dict[str, Any]:
    """Of the container of a pod."""
    found = sandbox.informers.objects(PODS).get(("default", name), {}).get("status", {}).get("containerStatuses")
    return dict(found[0]) if found else {"state": {}}


async def running(sandbox: Sandbox, name: str, script: str) -> None:
    await sandbox.client.create(PODS, pod(name, script))
    await until(lambda: "running" in status(sandbox, name)["state"])


@asynccontextmanager
async def log(sandbox: Sandbox, name: str, **options: str) -> AsyncGenerator[aiohttp.StreamReader, None]:
    transport = Transport(sandbox.control_plane.credentials(), user_agent="test", timeout=60)
    try:
        call = ClientRequest.of_object("get", PODS, name, "default", subresource="log", query=options)
        async with transport.stream(call, silence=60) as content:
            yield content
    finally:
        await transport.close()


async def read(sandbox: Sandbox, name: str, **options: str) -> bytes:
    async with log(sandbox, name, **options) as content:
        return await content.read()


async def test_log_follower_reads_until_the_container_exits(sandbox: Sandbox) -> None:
    await running(sandbox, "singer", "echo one; until [ -e go ]; do sleep 0.05; done; printf 'two\\377'")

    async with log(sandbox, "singer", follow="true") as content:
        assert await content.readline() == b"one\n"
        for directory in (sandbox.nodes[0].directory / "containers").glob("eater-*"):
            (directory / "go").touch()
        assert await content.read() == b"two\xff"

    assert await read(sandbox, "singer", follow="true", tailLines="1") == b"two\xff"


async def test_log_follower_stops_when_the_pod_is_deleted(sandbox: Sandbox) -> None:
    await running(sandbox, "lasting", "echo one; exec sleep 3600")

    async with log(sandbox, "lasting", follow="true") as content:
        assert await content.readline() == b"one\n"
        await sandbox.client.delete(PODS, "lasting", "default")
        assert await content.read() == b""


async def test_disconnected_log_followers_are_cleaned_up(sandbox: Sandbox) -> None:
    await running(sandbox, "forgotten", "echo one; exec sleep 3600")
    before = len(asyncio.all_tasks())
    for _ in range(5):
        async with log(sandbox, "forgotten", follow="true") as content:
            assert await content.readline() == b"one\n"

    await until(lambda: len(asyncio.all_tasks()) <= before)


async def test_previous_attempt_has_a_log(sandbox: Sandbox, tmp_path: Path) -> None:
    script = f"[ -e {tmp_path}/mark ] && echo again && exec sleep 3600; touch {tmp_path}/mark; echo first; exit 1"
    await sandbox.client.create(PODS, pod("again", script, restartPolicy="Always"))
    await until(lambda: status(sandbox, "again").get("restartCount") == 1)
    await until(lambda: "running" in status(sandbox, "again")["state"])

    async with log(sandbox, "again", follow="true") as content:
        assert await content.readline() == b"again\n"
    assert await read(sandbox, "again", previous="true") == b"first\n"


async def test_container_without_restarts_has_no_previous_log(sandbox: Sandbox) -> None:
    await running(sandbox, "steady", "exec sleep 3600")

    with pytest.raises(KubeError, match='previous terminated container "eater" in pod "steady" not found'):
        await read(sandbox, "steady", previous="true")


async def test_kubectl_prints_the_log(sandbox: Sandbox) -> None:
    kubectl = program("kubectl")
    await running(sandbox, "talker", "echo one; echo two; until [ -e end ]; do sleep 0.05; done; echo three")

    async def logs(*arguments: str) -> tuple[str, str]:
        process = await asyncio.create_subprocess_exec(
            kubectl, "--kubeconfig", str(sandbox.kubeconfig), "logs", *arguments, stdout=PIPE, stderr=PIPE
        )
        stdout, stderr = await process.communicate()
        return stdout.decode(), stderr.decode()

    assert await logs("talker", "--tail=1") == ("two\n", "")
    assert await logs("talker", "--limit-bytes=5") == ("one\nt", "")
    assert await logs("talker", "--since-time=2100-01-01T00:00:00Z") == ("", "")
    stamped, _ = await logs("talker", "--timestamps", "--since=1h", "--all-containers")
    assert re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (one|two)\n){2}", stamped)
    _, refused = await logs("talker", "--previous")
    assert refused == (
        'Error from server (BadRequest): previous terminated container "eater" in pod "talker" not found\n'
    )
    following = asyncio.create_task(logs("talker", "-f", "--tail=1"))
    for directory in (sandbox.nodes[0].directory / "containers").glob("eater-*"):
        (directory / "end").touch()
    assert (await following)[0].endswith("three\n")
