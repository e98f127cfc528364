"""Watches of a node: the object or objects that a policy receives, and the labels of the Node."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from dra_kit.author.context import NodeInfo
from dra_kit.author.device_policy import WatchedObject
from dra_kit.client.api import Client
from dra_kit.client.informer import Informer
from dra_kit.client.resources import NODES, Resource
from dra_kit.errors import KubeError, NotFound
from dra_kit.kubernetes.resource.matching import Node, node_selector_matches, parse_label_selector
from dra_kit.kubernetes.resource.v1 import NodeSelector

logger: logging.Logger = logging.getLogger(__name__)
Object: TypeAlias = Mapping[str, Any]
WATCH_AGAIN: Final = (1.0, 2.0, 5.0, 15.0, 60.0)
"""Seconds until a kind that does not exist, or cannot be read, is requested again; the last one repeats."""


class ObjectFollower:
    """Follows objects of one kind, and what ``choose`` makes of them, in the order of namespace and name.

    It calls ``changed`` when that is known for the first time, and whenever it changes. ``failed`` is the message in
    the log if they cannot be followed.

    Attributes:
        known: whether the objects were read, or their kind is known not to exist.
        object: what ``choose`` made of the current objects.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        choose: Callable[[Sequence[Object]], Object | None],
        changed: Callable[[], None],
        *,
        namespace: str | None = None,
        name: str = "",
        failed: str,
        again: Sequence[float] = WATCH_AGAIN,
    ) -> None:
        self._client = client
        self._resource = resource
        self._choose = choose
        self._changed = changed
        self._namespace = namespace
        self._name = name
        self._failed = failed
        self._again = again
        self._informer: Informer | None = None
        self._reported = ""
        self.known: bool = False
        self.object: Object | None = None

    @property
    def problem(self) -> str:
        """Why the objects cannot be followed; empty while they can."""
        return self._reported

    async def follow(self) -> None:
        """Follow the objects until cancelled."""
        selector = f"metadata.name={self._name}" if self._name else ""
        for attempt in itertools.count():
            informer = Informer(self._client, self._resource, self._namespace, field_selector=selector)
            synced = asyncio.ensure_future(self._when_synced(informer))
            try:
                async for _ in informer.changes():
                    self.look_again()
            except NotFound:
                self._report("the kind does not exist in the cluster", "create its CustomResourceDefinition")
                self._set(self._choose([]))
            except KubeError as error:
                self._report(
                    str(error), "install the chart with the values that dra-kit chart TARGET --values FILE writes"
                )
            finally:
                synced.cancel()
            await asyncio.sleep(self._again[min(attempt, len(self._again) - 1)])

    def look_again(self) -> None:
        """Choose again: an object, or what the choice depends on, has changed."""
        informer = self._informer
        if informer is not None:
            self._set(self._choose([found for _, found in sorted(informer.objects.items())]))

    async def _when_synced(self, informer: Informer) -> None:
        await informer.synced.wait()
        self._reported = ""
        self._informer = informer
        self.look_again()

    def _set(self, found: Object | None) -> None:
        if self.known and found == self.object:
            return
        self.known, self.object = True, found
        self._changed()

    def _report(self, error: str, remedy: str) -> None:
        if error != self._reported:
            where = "/".join(filter(None, (self._namespace, self._name)))
            title = " ".join(filter(None, (self._resource.full_name, where)))
            logger.warning(self._failed, extra={"object": title, "error": error, "remedy": remedy})
        self._reported = error


def watched_object_follower(
    client: Client,
    what: WatchedObject,
    node: Callable[[], NodeInfo],
    changed: Callable[[], None],
    *,
    settings: Any = None,
    again: Sequence[float] = WATCH_AGAIN,
) -> ObjectFollower:
    """Return the follower of what a policy watches, on the node that ``node`` returns."""
    namespace = what.namespace_for(settings)
    # the API server sends the kind with every object
    resource = Resource(what.group, what.version, what.plural, what.plural, namespaced=namespace is not None)
    selects = what.node_selector is not None

    def choose(objects: Sequence[Object]) -> Object | None:
        if selects:
            return {"items": [found for found in objects if _selects(what, found, node())]}
        return objects[0] if objects else None

    return ObjectFollower(
        client, resource, choose, changed,
        namespace=namespace, name="" if selects else what.name_on(node().name),
        failed="object of the policy cannot be watched", again=again,
    )  # fmt: skip


def _selects(what: WatchedObject, found: Object, node: NodeInfo) -> bool:
    """Return whether the node selector in an object selects the node; a missing or empty one selects all nodes."""
    selector: Any = found
    for key in (what.node_selector or "").split("."):
        selector = selector.get(key) if isinstance(selector, Mapping) else None
    if not selector:
        return True
    labels = {"metadata": {"labels": node.labels}}
    try:
        if "nodeSelectorTerms" in selector:
            return node_selector_matches(NodeSelector.model_validate(selector), Node(node.name, node.labels))
        if selector.keys() <= {"matchLabels", "matchExpressions"}:
            return parse_label_selector(selector).matches(labels)
        return parse_label_selector({"matchLabels": selector}).matches(labels)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        metadata = found["metadata"]
        title = "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))
        text = " ".join(str(error).split())
        logger.warning(
            "object of the policy selects no node: its node selector is invalid",
            extra={"object": f"{what.plural} {title}", "field": what.node_selector, "error": text,
                   "remedy": "correct the object"},
        )  # fmt: skip
        return False


class NodeFollower:
    """A part of the node process that follows the labels of the Node; ready when they were read.

    ``changed`` gets the Node's data each time its labels have changed.
    """

    name = "node"

    def __init__(self, client: Client, node_name: str, changed: Callable[[NodeInfo], None]) -> None:
        self._node_name = node_name
        self._changed = changed
        self._news = asyncio.Event()
        self._labels = ObjectFollower(
            client, NODES, _labels, self._news.set, name=node_name, failed="labels of the Node are not followed"
        )

    def waits_for(self) -> str:
        """Return why the labels cannot be read; empty if that is not known."""
        return self._labels.problem

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._labels.follow(), name="labels of the Node")
            while True:
                await self._news.wait()
                self._news.clear()
                if self._labels.object is not None:  # while the Node does not exist, its last labels remain
                    self._changed(NodeInfo(self._node_name, self._labels.object))
                ready.set()


def _labels(objects: Sequence[Object]) -> Object | None:
    return dict(objects[0]["metadata"].get("labels") or {}) if objects else None
