"""Which pods the scheduler has placed and the informer does not know it yet: it must not place them again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dra_kit.scheduler.pods import Key
from dra_kit.values.json import ObjectView


class AssumedPods:
    """Nodes that pods are about to get, laid over what the informer has.

    Args:
        pods: of an informer.
    """

    def __init__(self, pods: Mapping[Key, ObjectView]) -> None:
        self._pods = pods
        self._nodes: dict[str, str] = {}  # by pod UID

    def assume(self, pod: ObjectView, node: str) -> None:
        """Take it for true that a pod has a node, before that is written."""
        self._nodes[pod["metadata"]["uid"]] = node

    def forget(self, pod: ObjectView) -> None:
        """Forget a pod: it did not get its node, or the informer has it, or it is gone."""
        self._nodes.pop(pod["metadata"]["uid"], None)

    def is_placed(self, pod: ObjectView) -> bool:
        """Whether a placement of the pod is under way."""
        return pod["metadata"]["uid"] in self._nodes

    def placed(self) -> Iterator[tuple[str, ObjectView]]:
        """Every pod that has a node, or will have, with the node's name."""
        for pod in self._pods.values():
            node = self._nodes.get(pod["metadata"]["uid"]) or pod["spec"].get("nodeName")
            if node:
                yield node, pod
