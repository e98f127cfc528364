"""What is known of the pods and claims of a story at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dra_kit.errors import NotFound
from dra_kit.kube.client import Client
from dra_kit.kube.resources import EVENTS, PODS, RESOURCE_CLAIMS


class Cluster(Protocol):
    """Where a story runs: an API server, and a node that can be looked into."""

    @property
    def client(self) -> Client:
        """A client that may do everything."""
        ...

    @property
    def driver(self) -> str:
        """Name of the driver that the story is about."""
        ...

    async def environment(self, namespace: str, pod: str, container: str) -> Mapping[str, str]:
        """The container's environment; empty while it has not started."""
        ...

    async def output(self, namespace: str, pod: str, container: str) -> str:
        """What the container wrote; empty while it has not started."""
        ...

    async def node_state(self) -> Iterable[str]:
        """What the node keeps for claims, one text for each thing: CDI files, records of the driver, hardware."""
        ...

    async def replace_file(self, setting: str, text: str) -> str:
        """Replace the file that the driver's setting names, atomically; gives the text it had."""
        ...


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """A container: how it ended (None: it did not yet), its environment and what it wrote."""

    exit_code: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    output: str = ""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod: its phase, its containers, and its events, conditions and container states as texts."""

    phase: str
    containers: Mapping[str, ContainerFacts] = field(default_factory=dict)
    messages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """A claim: names of the devices it has, and of its consumers."""

    devices: tuple[str, ...] = ()
    reserved_for: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """All pods and claims that were looked at; an object that does not exist is missing."""

    pods: Mapping[str, PodFacts] = field(default_factory=dict)
    claims: Mapping[str, ClaimFacts] = field(default_factory=dict)


async def gather(cluster: Cluster, namespace: str, pods: Iterable[str], claims: Iterable[str]) -> Facts:
    """Look at pods and claims."""
    events = (await cluster.client.list(EVENTS, namespace)).items
    found_pods = {name: await _pod(cluster, namespace, name, events) for name in pods}
    found_claims = {name: await _claim(cluster, namespace, name, events) for name in claims}
    return Facts(
        {name: facts for name, facts in found_pods.items() if facts is not None},
        {name: facts for name, facts in found_claims.items() if facts is not None},
    )


async def _pod(cluster: Cluster, namespace: str, name: str, events: Iterable[Mapping[str, Any]]) -> PodFacts | None:
    try:
        pod = await cluster.client.get(PODS, name, namespace)
    except NotFound:
        return None
    status = pod.get("status", {})
    states = {item["name"]: item.get("state", {}) for item in status.get("containerStatuses", [])}
    containers = {}
    for container in (item["name"] for item in pod["spec"]["containers"]):
        state = states.get(container, {})
        if "running" in state or "terminated" in state:
            containers[container] = ContainerFacts(
                exit_code=state.get("terminated", {}).get("exitCode"),
                environment=await cluster.environment(namespace, name, container),
                output=await cluster.output(namespace, name, container),
            )
    conditions = [
        f"condition {item['type']}={item['status']} {item.get('reason', '')}: {item.get('message', '')}"
        for item in status.get("conditions", [])
        if item.get("message")
    ]
    waiting = [
        f"container {container} waits: {state['waiting'].get('reason', '')}: {state['waiting']['message']}"
        for container, state in states.items()
        if state.get("waiting", {}).get("message")
    ]
    return PodFacts(status.get("phase", ""), containers, (*conditions, *waiting, *_of(events, "Pod", name)))


async def _claim(cluster: Cluster, namespace: str, name: str, events: Iterable[Mapping[str, Any]]) -> ClaimFacts | None:
    try:
        claim = await cluster.client.get(RESOURCE_CLAIMS, name, namespace)
    except NotFound:
        return None
    status = claim.get("status", {})
    results = status.get("allocation", {}).get("devices", {}).get("results", [])
    return ClaimFacts(
        devices=tuple(sorted(item["device"] for item in results)),
        reserved_for=tuple(sorted(item["name"] for item in status.get("reservedFor", []))),
        messages=_of(events, "ResourceClaim", name),
    )


def _of(events: Iterable[Mapping[str, Any]], kind: str, name: str) -> tuple[str, ...]:
    """The events on one object, as texts, each once."""
    texts = [
        f"event {event.get('type', '')} {event.get('reason', '')}: {event.get('note', '')}"
        for event in events
        if (event.get("regarding", {}).get("kind"), event.get("regarding", {}).get("name")) == (kind, name)
    ]
    return tuple(dict.fromkeys(texts))
