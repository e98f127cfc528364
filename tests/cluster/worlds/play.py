"""Plays a world on the sandbox and on a real control plane, and tells where they differ."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from dra_kit.client.api import STRATEGIC_MERGE_PATCH, Client, discover_release
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.client.resources import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from dra_kit.errors import NotFound
from dra_kit.kubernetes.release import Release
from dra_kit.sandbox.control_plane import ControlPlane
from tests.cluster.worlds.outcome import BY_OUTCOME, outcome
from tests.golden.kind import Line
from tests.golden.scenario_player import Player, eventually, playing, quiet_seconds

# in this order: what uses others goes before them
_SWEPT = (PODS, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES, DEVICE_TAINT_RULES, DEVICE_CLASSES, RESOURCE_SLICES, NODES,
          EVENTS)  # fmt: skip
_CALM_SECONDS = 0.4
_PAUSE_SECONDS = 0.1
_REAL_PAUSE_SECONDS = 0.15
# until the scheduler has seen the slices, and that the nodes have no taints any more: a busy one is seconds late
_SETUP_SECONDS = 3.0
_BEAT_SECONDS = 1.0
_FORGOTTEN_SECONDS = 6.0  # until the node lifecycle controller knows nothing of earlier nodes of the same name
# a pod whose attempts failed is tried again after ten seconds at most, and a busy machine is late
_DEADLINE_SECONDS = 30.0
_SLOWLY = "quiet 12"


class RealPlane:
    """A control plane of Kubernetes without nodes, emptied before each world.

    Args:
        credentials: an administrator's.
        client: of the same server.
        release: its release, with the default gates.
        rules: whether it serves DeviceTaintRules.
    """

    def __init__(self, credentials: Credentials, client: Client, release: Release, *, rules: bool) -> None:
        self._credentials = credentials
        self._client = client
        self._swept = [resource for resource in _SWEPT if rules or resource is not DEVICE_TAINT_RULES]
        self.release: Release = release

    async def play(
        self, world: Line, expected: list[Line], *, whole: bool = False, patient: bool = False
    ) -> list[Line]:
        """What becomes of a world: its phases with answers, objects and traces, to the first that is not as expected.

        Args:
            world: a scenario without answers.
            expected: the phases as the sandbox played them.
            whole: play it to its end.
            patient: let each phase last as long as it says.
        """
        await self.sweep()
        heartbeats = asyncio.create_task(self._beat())
        try:
            async with playing(self._credentials, self._client) as player:
                phases: list[Line] = []
                for number, phase in enumerate(world["phases"]):
                    phases.append(await _phase(player, number, phase, expected[number]["settled"], patient))
                    if not whole and not _ended_alike(phases[-1], expected[number]):
                        break
        finally:
            heartbeats.cancel()
            await asyncio.wait([heartbeats])
        return phases

    async def _beat(self) -> None:
        """What a kubelet does for its node: without it the node lifecycle controller would taint the node."""
        while True:
            for node in (await self._client.list(NODES)).items:
                now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now}
                await _or_gone(
                    self._client.patch(
                        NODES, node["metadata"]["name"], {"status": {"conditions": [ready]}},
                        subresource="status", content_type=STRATEGIC_MERGE_PATCH,
                    )
                )  # fmt: skip
            await asyncio.sleep(_BEAT_SECONDS)

    async def sweep(self) -> None:
        """Remove everything that worlds have created, including late Events."""
        for resource in self._swept:
            await self._remove_all(resource)
        await asyncio.sleep(_CALM_SECONDS)
        await self._remove_all(EVENTS)

    async def _remove_all(self, resource: Resource) -> None:
        if resource is EVENTS:
            await self._client.delete_collection(EVENTS, "default")
            return
        for item in (await self._client.list(resource)).items:
            metadata = item["metadata"]
            name, namespace = metadata["name"], metadata.get("namespace")
            if metadata.get("finalizers"):
                unheld = {"metadata": {"finalizers": None}}
                await _or_gone(self._client.patch(resource, name, unheld, namespace))
            await _or_gone(self._client.delete(resource, name, namespace, grace_period_seconds=0))


async def _or_gone(request: Awaitable[object]) -> None:
    try:
        await request
    except NotFound:
        pass  # a controller was faster


async def _phase(player: Player, number: int, phase: Line, expected: Line, patient: bool) -> Line:
    answers = await player.send(number, phase, pause=_REAL_PAUSE_SECONDS)
    await asyncio.sleep(0 if number else _SETUP_SECONDS)
    await asyncio.sleep(quiet_seconds(phase) if patient else 0)
    await eventually(lambda: _alike(phase, player.settled(), expected), _DEADLINE_SECONDS)
    await player.calm(_CALM_SECONDS)
    return _played(phase, answers, player)


async def play_on_sandbox(world: Line, release: Release, *, patient: bool = False) -> list[Line]:
    """What becomes of a world in the sandbox: its phases with answers, objects and traces.

    Args:
        world: a scenario without answers.
        release: of the sandbox.
        patient: let each phase last as long as it says.
    """
    async with ControlPlane(release=release) as control_plane:
        client = await control_plane.connect("worlds")
        async with playing(control_plane.credentials(), client) as player:
            phases = []
            for number, phase in enumerate(world["phases"]):
                answers = await player.send(number, phase, pause=_PAUSE_SECONDS)
                await asyncio.sleep(quiet_seconds(phase) if patient else 0)
                await player.calm(_CALM_SECONDS)
                phases.append(_played(phase, answers, player))
    return phases


def _played(phase: Line, answers: list[int], player: Player) -> Line:
    return phase | {"answers": answers, "settled": player.settled(), "trace": player.traces()}


def same(real: list[Line], ours: list[Line]) -> bool:
    """Whether the phases that the real control plane came to ended as ours did; by which steps is not compared."""
    return all(_ended_alike(*pair) for pair in zip(real, ours, strict=False))


def _ended_alike(one: Line, other: Line) -> bool:
    return one["answers"] == other["answers"] and _alike(one, one["settled"], other["settled"])


def _alike(phase: Line, settled: Line, other: Line) -> bool:
    if phase.get("compare") == BY_OUTCOME:
        return outcome(settled) == outcome(other)
    return settled == other


async def play(plane: RealPlane, world: Line, *, whole: bool = False) -> tuple[list[Line], list[Line]]:
    """A world on the real control plane and on the sandbox, whole or to the first phase that differs.

    Where they differ both play it again, slowly: on a busy machine a request may come before all have seen the one
    before, and a pod whose attempt has failed with an error is tried again while one of the two still plays a phase.
    """
    patient = whole
    for _ in range(2):
        ours = await play_on_sandbox(world, plane.release, patient=patient)
        real = await plane.play(world, ours, whole=whole, patient=patient)
        if same(real, ours):
            break
        if not whole:
            world = {**world, "phases": [{**phase, "until": _SLOWLY} for phase in world["phases"]]}
            patient = True
    return real, ours


@asynccontextmanager
async def real_plane(kubectl: Path, kubeconfig: Path) -> AsyncIterator[RealPlane]:
    """A real control plane behind ``kubectl proxy``."""
    async with proxied(kubectl, kubeconfig) as (credentials, client):
        served = await client.get_path("/apis/resource.k8s.io/v1")
        rules = DEVICE_TAINT_RULES.plural in {each["name"] for each in served["resources"]}
        plane = RealPlane(credentials, client, Release.of(await discover_release(client)), rules=rules)
        await plane.sweep()
        await asyncio.sleep(_FORGOTTEN_SECONDS)
        yield plane
        await plane.sweep()


@asynccontextmanager
async def proxied(kubectl: Path, kubeconfig: Path) -> AsyncIterator[tuple[Credentials, Client]]:
    """The administrator of a real control plane, through ``kubectl proxy``."""
    process = await asyncio.create_subprocess_exec(
        kubectl, "--kubeconfig", kubeconfig, "proxy", "--port=0", stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).decode()
        url = f"http://{line.rsplit(maxsplit=1)[-1]}"
        credentials = Credentials(Connection(url))
        async with Client(credentials, user_agent="worlds") as client:
            yield credentials, client
    finally:
        process.terminate()
        await process.wait()
