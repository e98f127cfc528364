"""Watches of a node: the object or objects that a policy receives, and the labels of the Node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from dra_kit.author.context import NodeInfo
from dra_kit.author.provider import WatchedObject
from dra_kit.client.api import Client
from dra_kit.client.informer import Informer
from dra_kit.client.resources import NODES, Resource
from dra_kit.errors import KubeError, NotFound
from dra_kit.kubernetes.resource.matching import Node, node_selector_matches, parse_label_selector
from dra_kit.kubernetes.resource.v1 import NodeSelector
from dra_kit.kubernetes.resource.validation.fields import label_selector_errors

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
        self._failures = 0
        self._looks_soon = False
        self.known: bool = False
        self.object: Object | None = None

    @property
    def problem(self) -> str:
        """Why the objects cannot be followed; empty while they can."""
        return self._reported

    async def follow(self) -> None:
        """Follow the objects until cancelled."""
        selector = f"metadata.name={self._name}" if self._name else ""
        while True:
            informer = Informer(self._client, self._resource, self._namespace, field_selector=selector)
            synced = asyncio.ensure_future(self._when_synced(informer))
            try:
                async for _ in informer.changes():
                    self._look_soon()
            except NotFound:
                self._report("the kind does not exist in the cluster", "create its CustomResourceDefinition")
                self._informer = None  # its objects are gone with the kind
                self._set(self._choose([]))
            except KubeError as error:
                self._report(
                    str(error), "install the chart with the values that dra-kit chart TARGET --values FILE writes"
                )
            finally:
                synced.cancel()
            seconds = self._again[min(self._failures, len(self._again) - 1)]
            self._failures += 1
            await asyncio.sleep(seconds)

    def look_again(self) -> None:
        """Choose again: an object, or what the choice depends on, has changed."""
        self._looks_soon = False
        informer = self._informer
        if informer is not None:
            self._set(self._choose([found for _, found in sorted(informer.objects.items())]))

    def _look_soon(self) -> None:
        """Choose again, once for all changes that arrived together: each choice goes through all objects."""
        if not self._looks_soon:
            self._looks_soon = True
            asyncio.get_running_loop().call_soon(self.look_again)

    async def _when_synced(self, informer: Informer) -> None:
        await informer.synced.wait()
        self._reported, self._failures = "", 0
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
    selection = None if what.node_selector is None else _NodeSelection(what)

    def choose(objects: Sequence[Object]) -> Object | None:
        if selection is not None:
            return {"items": selection.of(objects, node())}
        return objects[0] if objects else None

    return ObjectFollower(
        client, resource, choose, changed,
        namespace=namespace, name="" if selection is not None else what.name_on(node().name),
        failed="object of the policy cannot be watched", again=again,
    )  # fmt: skip


class _NodeSelection:
    """Chooses the objects whose node selector selects a node, and reports each invalid one once."""

    def __init__(self, what: WatchedObject) -> None:
        self._plural = what.plural
        self._field = what.node_selector or ""
        self._reported: dict[str, str] = {}

    def of(self, objects: Sequence[Object], node: NodeInfo) -> list[Object]:
        """Return the objects for a node."""
        problems: dict[str, str] = {}
        chosen = []
        for found in objects:
            try:
                if _selects(self._selector(found), node):
                    chosen.append(found)
            except (ValueError, TypeError, KeyError, AttributeError) as error:  # any client may have written it
                metadata = found["metadata"]
                title = "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))
                problems[title] = " ".join(str(error).split())
        for title, text in problems.items():
            if self._reported.get(title) != text:
                logger.warning(
                    "object of the policy selects no node: its node selector is invalid",
                    extra={"object": f"{self._plural} {title}", "field": self._field, "error": text,
                           "remedy": "correct the object"},
                )  # fmt: skip
        self._reported = problems
        return chosen

    def _selector(self, found: Object) -> Any:
        selector: Any = found
        for key in self._field.split("."):
            selector = selector.get(key) if isinstance(selector, Mapping) else None
        return selector


def _selects(selector: Any, node: NodeInfo) -> bool:
    """Return whether the node selector of an object selects the node; a missing or empty one selects all nodes.

    Raises:
        ValueError: it is not valid; also TypeError, KeyError or AttributeError.
    """
    if not selector:
        return True
    if "nodeSelectorTerms" in selector:
        return node_selector_matches(NodeSelector.model_validate(selector), Node(node.name, node.labels))
    if not selector.keys() <= {"matchLabels", "matchExpressions"}:
        selector = {"matchLabels": selector}
    selector = {key: value for key, value in selector.items() if value is not None}
    for error in label_selector_errors(selector, ""):
        raise ValueError(str(error).lstrip("."))
    return parse_label_selector(selector).matches({"metadata": {"labels": node.labels}})


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

    @property
    def known(self) -> bool:
        """Whether the labels were read; then they are newer than those of any other request."""
        return self._labels.object is not None

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
