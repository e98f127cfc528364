"""Asks ``explain`` and a real scheduler about the pods of many worlds, and tells where they disagree."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from msgspec import structs

from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.client.resources import (
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SERVICE_ACCOUNTS,
)
from dra_kit.diagnosis.explain.claims import ClaimExplainer, evicts
from dra_kit.diagnosis.explain.cluster import ClusterDocuments
from dra_kit.diagnosis.explain.pods import explain_pod
from dra_kit.diagnosis.explain.verdicts import PodExplanation
from dra_kit.diagnosis.live_cluster import ReadScope, read_live
from dra_kit.errors import Invalid, NotFound
from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.values.json import ObjectView
from tests.cluster.worlds.still import Document, StillWorld, still_world

_RESOURCES: Final = {
    each.kind: each
    for each in (NODES, RESOURCE_SLICES, DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES, PODS, NAMESPACES)
}
_AT_ONCE: Final = 16
_TOGETHER: Final = 50
"""Worlds that are in the cluster at the same time."""
_LOOK_SECONDS: Final = 0.5
_QUIET_SECONDS: Final = 3.0
"""After so long without a change of a pod or claim, the scheduler has nothing to do."""
_PATIENCE_SECONDS: Final = 180.0
_WAITING: Final = frozenset({"waits"})
"""The outcome of pods that the scheduler does not try."""
_UNPLACED: Final = frozenset({"error", "does-not-fit"})
"""Outcomes of pods that the scheduler tries, and finds no node for."""


@dataclass(frozen=True)
class Disagreement:
    """A pod about which they disagree.

    Attributes:
        pod: ``world/pod``.
        explained: by ``explain``, before the pod was created, or after the last one.
        real: its node, or why it has none.
        documents: what ``explain`` read.
    """

    pod: str
    explained: PodExplanation
    real: str
    documents: ClusterDocuments = field(repr=False)

    def __str__(self) -> str:
        nodes = ", ".join(self.explained.fitting) or "none"
        return f"{self.pod}: explain says {self.explained.outcome} (nodes: {nodes}), the scheduler {self.real}"


class _Fate(NamedTuple):
    """The node of a pod, empty for none, and what the scheduler did, for people."""

    node: str
    text: str


_UNDECIDED: Final = _Fate("", "has not decided")
_GONE: Final = _Fate("", "placed it, and it was evicted")


class VerdictComparison:
    """Plays worlds on a real control plane.

    Args:
        credentials: an administrator's.
        client: of the same server.
        release: of the cluster.
        run: begins the names of the worlds; the cluster has no objects of such names.
        patience: seconds that the scheduler has for its decisions on the pods of one round.

    Attributes:
        judged: how many verdicts were compared.
        placed: how many pods got a node.
        left_out: how many pods were not created, since ``explain`` says that the scheduler would end with a panic.
        refused: objects that the API server refused, with its message.
    """

    def __init__(
        self,
        credentials: Credentials,
        client: Client,
        release: Release,
        run: str,
        *,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        self._credentials = credentials
        self._client = client
        self._release = release
        self._run = run
        self._patience: float = patience
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self.judged = 0
        self.placed = 0
        self.left_out = 0
        self.refused: list[str] = []

    async def compare(self, seed: int, numbers: Sequence[int]) -> list[Disagreement]:
        """Play worlds by their numbers; those with a disagreement twice, since a busy scheduler may see things late."""
        found: list[Disagreement] = []
        for start in range(0, len(numbers), _TOGETHER):
            some = numbers[start : start + _TOGETHER]
            worlds = {number: self._world(seed, number) for number in some}
            doubtful = {each.pod.partition("/")[0] for each in await self.play(list(worlds.values()))}
            again = [self._world(seed, number, "again") for number in some if worlds[number].name in doubtful]
            found += await self.play(again) if again else []
        return found

    def _world(self, seed: int, number: int, suffix: str = "") -> StillWorld:
        return still_world(seed, number, f"{self._run}{number}{suffix}", self._release)

    async def play(self, worlds: Sequence[StillWorld]) -> list[Disagreement]:
        """Create the worlds and then their pods, the first of all worlds at once, then the second, and so on."""
        await self._create([world.namespace for world in worlds])
        await self._have_service_accounts({world.name for world in worlds})
        await self._create([document for world in worlds for document in world.shared])
        await self._create((), worlds)
        await self._quiet()
        found: list[Disagreement] = []
        for number in range(max(len(world.pods) for world in worlds)):
            found += await self._round([world for world in worlds if number < len(world.pods)], number)
        found += await self._left(worlds)
        await self._remove(worlds)
        return found

    async def _remove(self, worlds: Sequence[StillWorld]) -> None:
        """Remove the pods, which a scheduler would try again and again, and what all nodes and drivers share."""

        async def remove(document: Document) -> None:
            async with self._gate:
                with suppress(NotFound):  # one that was refused
                    await self._client.delete(_RESOURCES[document["kind"]], document["metadata"]["name"])

        for world in worlds:
            await self._client.delete_collection(PODS, world.name)
        await asyncio.gather(*(remove(document) for world in worlds for document in world.shared))

    async def _create(self, documents: Iterable[Document], worlds: Sequence[StillWorld] = ()) -> None:
        """Create objects; the API server may refuse some, which then are in no world."""
        made = [(document, "") for document in documents]
        made += [(document, world.name) for world in worlds for document in world.own]

        async def create(document: Document, namespace: str) -> None:
            async with self._gate:
                try:
                    await self._client.create(_RESOURCES[document["kind"]], document, namespace or None)
                except Invalid as error:
                    self.refused.append(str(error))

        await asyncio.gather(*(create(*each) for each in made))

    async def _have_service_accounts(self, namespaces: set[str]) -> None:
        """Wait for the service accounts without which no pod can be created."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while True:
                items = (await self._client.list(SERVICE_ACCOUNTS)).items
                if namespaces <= {item["metadata"]["namespace"] for item in items}:
                    return
                await asyncio.sleep(_LOOK_SECONDS)

    async def _quiet(self, created: Mapping[tuple[str, str], str] = MappingProxyType({})) -> None:
        """Wait until nothing is decided any more, and the scheduler has decided on all pods that were created.

        It never decides on a pod that waits for a claim, and has longer for the first sign that it does. At the end of
        its time, a pod that it should have decided on counts as undecided.

        Args:
            created: what ``explain`` says of each of these pods.

        Raises:
            TimeoutError: things still change long after that time.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + self._patience
        async with asyncio.timeout(self._patience + _PATIENCE_SECONDS):
            before: object = None
            quiet = 0.0
            waiting = True
            while quiet < _QUIET_SECONDS or waiting:
                await asyncio.sleep(_LOOK_SECONDS)
                pods, claims = await asyncio.gather(self._client.list(PODS), self._client.list(RESOURCE_CLAIMS))
                fates = {_key(pod): _fate(pod) for pod in pods.items}
                states = {_key(claim): _allocated(claim) for claim in claims.items}
                now = {key: fate.node if fate else None for key, fate in fates.items()}, states
                late = clock() > end
                undecided = {outcome for key, outcome in created.items() if fates.get(key, _GONE) is None}
                waiting = not late and not undecided <= _WAITING
                slowly = undecided and not late
                quiet = quiet + _LOOK_SECONDS / (4 if slowly else 1) if now == before else 0.0
                before = now

    async def _round(self, worlds: Sequence[StillWorld], number: int) -> list[Disagreement]:
        """Ask ``explain`` about the next pod of each world, create it, and compare."""
        before = await self._read()
        explained = {world.name: _explained(before, world, world.pods[number]) for world in worlds}
        ending = [world for world in worlds if _ends_scheduler(explained[world.name][0])]
        self.left_out += len(ending)
        worlds = [world for world in worlds if world not in ending]

        async def create(world: StillWorld) -> None:
            async with self._gate:
                await self._client.create(PODS, world.pods[number], world.name)

        await asyncio.gather(*map(create, worlds))
        names = {
            (world.name, world.pods[number]["metadata"]["name"]): explained[world.name][0].outcome for world in worlds
        }
        await self._quiet(names)
        fates = {_key(pod): _fate(pod) for pod in (await self._client.list(PODS)).items if _key(pod) in names}
        found = []
        for world in worlds:
            explanation, documents = explained[world.name]
            fate = fates.get((world.name, world.pods[number]["metadata"]["name"]), _GONE) or _UNDECIDED
            self.judged += 1
            self.placed += bool(fate.node)
            if not _agree(explanation, fate, documents):
                found.append(Disagreement(explanation.name, explanation, fate.text, documents))
        return found

    async def _left(self, worlds: Sequence[StillWorld]) -> list[Disagreement]:
        """Ask ``explain`` about the pods that have no node in the end."""
        after = await self._read()
        found = []
        for world in worlds:
            for pod in _only(after, world).documents["Pod"]:
                if not pod["spec"].get("nodeName"):
                    explanation, documents = _explained(after, world, pod)
                    self.judged += 1
                    fate = _fate(pod) or _UNDECIDED
                    if not _agree(explanation, fate, documents):
                        found.append(Disagreement(explanation.name, explanation, fate.text, documents))
        return found

    async def _read(self) -> ClusterDocuments:
        alpha = self._release == Release.alpha(self._release.version)
        return await read_live(self._credentials, ReadScope("default"), alpha=alpha)


def _only(found: ClusterDocuments, world: StillWorld) -> ClusterDocuments:
    """Return the objects of one world; the scheduler has nothing else for its pods."""
    documents = {kind: [item for item in items if world.owns(item)] for kind, items in found.documents.items()}
    return structs.replace(found, documents=documents)


def _explained(found: ClusterDocuments, world: StillWorld, pod: Any) -> tuple[PodExplanation, ClusterDocuments]:
    documents = _only(found, world)
    metadata = {**pod["metadata"], "namespace": world.name}
    return explain_pod(ClaimExplainer(documents.cluster()), {**pod, "metadata": metadata}), documents


def _ends_scheduler(explained: PodExplanation) -> bool:
    return explained.outcome == "error" and "ends with a panic" in str(explained)


def _agree(explained: PodExplanation, fate: _Fate, documents: ClusterDocuments) -> bool:
    """Return whether the scheduler did with a pod what could be expected from its explanation.

    A pod that fits several nodes, and is evicted on some of them, may be evicted.
    """
    if fate is _GONE:
        known = (claim.explanation for claim in explained.claims if claim.explanation is not None)
        cluster = documents.cluster()
        return any(evicts(cluster, outcome) for each in known for outcome in each.fitting_nodes)
    if fate.node:
        return explained.outcome not in {"error", "waits", "evicted"} and fate.node in explained.fitting
    return explained.outcome in (_WAITING if fate is _UNDECIDED else _UNPLACED | _WAITING)


def _key(pod: ObjectView) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def _allocated(claim: ObjectView) -> tuple[object, object]:
    status = claim.get("status") or {}
    return status.get("allocation"), status.get("reservedFor")


def _fate(pod: ObjectView) -> _Fate | None:
    """Return what became of a pod; None if the scheduler has not decided."""
    if node := pod["spec"].get("nodeName"):
        return _Fate(node, f"took {node}")
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return _Fate("", f"reports {condition.get('reason')}: {condition.get('message')}")
    return None
