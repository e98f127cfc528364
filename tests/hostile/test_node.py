"""The node's process, attacked by requests of the kubelet and by the contents of claims."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from dra_kit.kubernetes.resource.objects import ClaimReference
from tests.hostile import victim
from tests.hostile.ledger import Ledger, peak_mebibytes
from tests.support.api import eventually
from tests.unit.kubelet.wire import Client
from tests.unit.node.role import DRIVER, NODE, Node, node

PART = "node"
ERROR_BYTES = 1024
MOST_MEBIBYTES = 400.0
CONFIG = {"apiVersion": "kitchen.pizza.example/v1", "kind": "PizzaConfig"}
MOUNTS = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims"


class Running:
    """``dra-kit node``, its environment, and a client with the kubelet's gRPC limits."""

    def __init__(self, made: Node, client: Client, pid: int) -> None:
        self.node = made
        self.client = client
        self.pid = pid

    async def errors(self, claims: Sequence[ClaimReference]) -> list[str]:
        """Return the errors of a prepare call, each a short line; empty for claims without error."""
        answers = await self.client.prepare(claims)
        assert answers.keys() == {claim.uid for claim in claims}
        texts = [entry.error for entry in answers.values()]
        for text in texts:
            assert len(text.encode()) <= ERROR_BYTES
            assert len(text.splitlines()) <= 1
        return texts

    async def serves(self) -> None:
        """Prepare and release a valid claim."""
        good = self.node.claim("good", config=[CONFIG])
        assert await self.errors([good]) == [""]
        assert await self.client.unprepare([good]) == {good.uid: ""}
        assert self.node.specs() == []
        assert peak_mebibytes(self.pid) < MOST_MEBIBYTES

    def files(self) -> set[Path]:
        """Return all files except those of the database."""
        return {path for path in self.node.directory.rglob("*") if ".db" not in path.name and "sqlite" not in path.name}


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(node())
        program = victim.running(
            *victim.DRA_KIT, "node", "tests.hostile.loud_driver:driver",
            "--node-name", NODE, "--kubelet-dir", str(made.root), "--cdi-dir", str(made.cdi), "--state-dir",
            str(made.root / "state"), "--kubeconfig", str(made.kubeconfig), "--log-level", "error",
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        process = await stack.enter_async_context(program)
        await eventually(lambda: made.kubelet.plugins(DRIVER) and made.published())
        socket = made.root / "plugins" / DRIVER / "dra.sock"
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            yield Running(made, Client(channel, "v1"), process.pid)


ODD = [
    "../../../../etc/passwd", "/etc/passwd", "..", ".",
    "a/../../b", "~root", "a\nb", "a\tb", "\x1b[31m", "\x00", "'; DROP", "*",
    "%2e%2e%2f", "?watch=true", "#", "naïve ☃", "x" * 300, "x" * 100_000, "/" * 5000, "[a]", "{}", "-rf", "",
]  # fmt: skip


async def test_odd_uids_names_and_namespaces(running: Running, ledger: Ledger) -> None:
    await running.serves()
    before = running.files()
    for number, text in enumerate(ODD):
        attack = f"gRPC: {text[:20]!r} of {len(text)} bytes as UID, name and namespace"
        with ledger.attack(attack, pid=running.pid):
            claims = [
                ClaimReference("default", "lunch", text),
                ClaimReference("default", text, f"uid-name-{number}"),
                ClaimReference(text, "lunch", f"uid-namespace-{number}"),
            ]
            assert all(await running.errors(claims))
            released = await running.client.unprepare(claims)
            assert all(len(error.encode()) <= ERROR_BYTES for error in released.values())
            assert running.files() == before
    await running.serves()


async def test_annotations_and_request_names_of_a_claim(running: Running, ledger: Ledger) -> None:
    for number, text in enumerate(item for item in ODD if item):
        name = f"lunch-{number}"
        with ledger.attack(f"annotation pod-claim-name {text[:20]!r}"):
            lunch = running.node.claim(
                name, annotations={"resource.kubernetes.io/pod-claim-name": text}, config=[CONFIG]
            )
            assert await running.errors([lunch]) == [""]
            assert paths(running.node.spec(lunch)) == [f"{MOUNTS}/{name}/pizza/{DRIVER}-metadata.json"]
            await running.client.unprepare([lunch])
        with ledger.attack(f"request {text[:20]!r}"):
            lunch = running.node.claim(f"{name}-r", [{"device": "pizza-0", "request": text}], config=[CONFIG])
            before = running.files()
            [error] = await running.errors([lunch])
            if text != "a/../../b":  # the request is a, followed by the selected subrequest
                assert error
                assert running.files() == before
            else:
                assert paths(running.node.spec(lunch)) == [f"{MOUNTS}/{name}-r/a/{DRIVER}-metadata.json"]
            await running.client.unprepare([lunch])
    await running.serves()


def paths(spec: dict[str, Any]) -> list[str]:
    return [mount["containerPath"] for mount in spec["devices"][0]["containerEdits"]["mounts"]]


CONFIGS: dict[str, dict[str, Any]] = {
    "a validator's text of 1 MB": {"topping": "loud"},
    "an exception's text of 1 MB": {"topping": "burnt"},
    "an error's text of 1 MB": {"topping": "late"},
    "1,000 unknown keys": {f"key-{number}": number for number in range(1000)},
    "one key of 10 KiB": {"x" * 10_000: 1},
    "one value of 10 KiB": {"topping": ["x" * 10_000]},
}


async def test_long_errors(running: Running, ledger: Ledger) -> None:
    for number, (name, fields) in enumerate(CONFIGS.items()):
        claims = [running.node.claim(f"lunch-{number}", config=[{**CONFIG, **fields}])]
        with ledger.attack(f"config: {name}", pid=running.pid):
            assert all(await running.errors(claims))
    await running.serves()


async def test_500_claims_whose_errors_are_long(running: Running, ledger: Ledger) -> None:
    for topping in ("loud", "late"):
        claims = [running.node.claim(f"{topping}-{i}", config=[{**CONFIG, "topping": topping}]) for i in range(500)]
        with ledger.attack(f"500 claims in a call, an error of 1 MB each ({topping})", pid=running.pid):
            assert all(await running.errors(claims))
    with ledger.attack("500 claims in a call that name one another's UIDs by long names"):
        claims = [ClaimReference("default", f"{i}-{'x' * 5000}", "uid-1") for i in range(500)]
        assert all(await running.errors(claims))
    await running.serves()
