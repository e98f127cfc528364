"""Nodes and what they publish."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from hypothesis import strategies as st

from tests.cluster.worlds.requests import CORE, RESOURCE, Request, create, merge_patch

DRIVER: Final = "gpu.example.com"
_COUNTERS: Final = [{"name": "card", "counters": {"units": {"value": "3"}}}]
_TIME: Final = "2024-01-02T03:04:05Z"
_SIZE: Final = {"cpu": "8", "memory": "16Gi", "pods": "110"}


@dataclass
class Stock:
    """The hardware of a world.

    Attributes:
        nodes: names.
        published: slices by name, in the order in which they are created.
        slices: names of those that can be edited: they have devices, and were not withdrawn.
        admin_access: whether the namespace allows it.
    """

    nodes: list[str]
    published: dict[str, dict[str, Any]]
    admin_access: bool
    slices: list[str] = field(default_factory=list)

    def requests(self) -> list[Request]:
        """Everything, made."""
        labels = {"resource.kubernetes.io/admin-access": "true" if self.admin_access else None}
        made = [merge_patch("namespaces", "default", {"metadata": {"labels": labels}})]
        for name in self.nodes:
            # admission taints a new node until a controller finds it ready
            made += [create("nodes", _node(name)), merge_patch("nodes", name, {"spec": {"taints": None}})]
        return made + [create("resourceslices", item) for item in self.published.values()]

    def patched(self, name: str, **fields: Any) -> Request:
        """A change of the first device of a slice."""
        devices: list[dict[str, Any]] = self.published[name]["spec"]["devices"]
        return self.replaced(name, [devices[0] | fields, *devices[1:]] if devices else [])

    def replaced(self, name: str, devices: list[dict[str, Any]]) -> Request:
        """Other devices in a slice."""
        self.published[name]["spec"]["devices"] = devices
        return merge_patch("resourceslices", name, {"spec": {"devices": devices or None}})


@st.composite
def stocks(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Stock:
    """One or two nodes, each with a pool of its own, and perhaps a pool of the network."""
    nodes = [f"node-{number}" for number in range(1, draw(st.integers(1, 2)) + 1)]
    stock = Stock(nodes, {}, draw(st.booleans()))
    for node in nodes:
        if draw(st.integers(0, 7)) == 0:
            continue
        counted = draw(st.integers(0, 3)) == 0
        # a pool that says it has one slice more than there are is incomplete
        count = 1 + counted + (draw(st.integers(0, 9)) == 0)
        pool = {"name": node, "generation": 1, "resourceSliceCount": count}
        if counted:
            _publish(stock, f"{node}-counters", {"pool": pool, "nodeName": node, "sharedCounters": _COUNTERS})
        devices = draw(device_lists(counted=counted))
        _publish(stock, node, {"pool": pool, "nodeName": node, "devices": devices})
        stock.slices.append(node)
    if draw(st.integers(0, 3)) == 0:
        pool = {"name": "network", "generation": 1, "resourceSliceCount": 1}
        selector = {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]}]}]}  # fmt: skip
        scope = draw(st.sampled_from(({"allNodes": True}, {"nodeSelector": selector})))
        _publish(stock, "network", {"pool": pool, **scope, "devices": draw(device_lists())})
        stock.slices.append("network")
    return stock


@st.composite
def device_lists(draw: Callable[[st.SearchStrategy[Any]], Any], *, counted: bool = False) -> list[dict[str, Any]]:
    """Up to four devices of a slice."""
    return [_device(draw, index, counted=counted) for index in range(draw(st.integers(0, 4)))]


def _device(draw: Callable[[st.SearchStrategy[Any]], Any], index: int, *, counted: bool) -> dict[str, Any]:
    device: dict[str, Any] = {"name": f"gpu-{index}", "attributes": {"index": {"int": index}}}
    if model := draw(st.sampled_from(("large", "large", "small", ""))):
        device["attributes"]["model"] = {"string": model}
    if draw(st.booleans()):
        device["attributes"]["numa"] = {"int": draw(st.integers(0, 1))}
    memory: dict[str, Any] = {"value": draw(st.sampled_from(("8Gi", "16Gi")))}
    if draw(st.integers(0, 3)) == 0:
        device["allowMultipleAllocations"] = True
        memory["requestPolicy"] = {"default": "4Gi", "validRange": {"min": "2Gi", "step": "2Gi"}}
    device["capacity"] = {"memory": memory}
    if counted:
        units = str(draw(st.integers(1, 3)))
        device["consumesCounters"] = [{"counterSet": "card", "counters": {"units": {"value": units}}}]
    if draw(st.integers(0, 7)) == 0:
        effect = draw(st.sampled_from(("NoSchedule", "NoExecute")))
        device["taints"] = [{"key": "example.com/broken", "value": "yes", "effect": effect, "timeAdded": _TIME}]
    return device


def _publish(stock: Stock, name: str, spec: dict[str, Any]) -> None:
    body = {"apiVersion": RESOURCE, "kind": "ResourceSlice", "metadata": {"name": name}}
    stock.published[name] = {**body, "spec": {"driver": DRIVER, **spec}}


def _node(name: str) -> dict[str, Any]:
    ready = {
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready",
        "lastHeartbeatTime": _TIME, "lastTransitionTime": _TIME,
    }  # fmt: skip
    return {
        "apiVersion": CORE, "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"conditions": [ready], "capacity": _SIZE, "allocatable": _SIZE},
    }  # fmt: skip
