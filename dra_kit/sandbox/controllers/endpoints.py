"""The pods behind a Service, as EndpointSlices and as Endpoints.

One EndpointSlice holds all pods of a Service for which its ports lead to the same numbers.

Sources: k8s.io/endpointslice 0.37; Kubernetes 1.37 ``pkg/controller/endpointslice`` and ``pkg/controller/endpoint``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from dra_kit.client.api import Client
from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import ENDPOINT_SLICES, ENDPOINTS, PODS, SERVICES, Resource
from dra_kit.errors import Conflict, Forbidden, NotFound
from dra_kit.kubernetes.resource.objects import ObjectKey, init_containers, is_sidecar, is_terminal, object_key
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.controllers.workload_plans import is_ready, template_hash
from dra_kit.sandbox.informers import SharedInformers, WorkQueue

SERVICE_NAME: Final = "kubernetes.io/service-name"
_MANAGED: Final = "endpointslice.kubernetes.io/managed-by"
_SLICE_MANAGER: Final = "endpointslice-controller.k8s.io"
_ENDPOINTS_MANAGED: Final = "endpoints.kubernetes.io/managed-by"
_ENDPOINTS_MANAGER: Final = "endpoint-controller"
_HEADLESS: Final = "service.kubernetes.io/headless"
_Ports: TypeAlias = tuple[tuple[str, str, int], ...]  # name, protocol and number of each


class EndpointController:
    """Keeps EndpointSlices and Endpoints of Services that have a selector."""

    def __init__(self, client: Client, informers: SharedInformers) -> None:
        self._client = client
        self._informers = informers
        self._queue: WorkQueue[ObjectKey] = WorkQueue("endpoints", self._sync)
        informers.listen(SERVICES, self._service_changed)
        informers.listen(PODS, self._pod_changed)
        informers.listen(ENDPOINT_SLICES, self._slice_changed)
        informers.listen(ENDPOINTS, self._service_changed)  # they have the name of their Service

    async def run(self) -> None:
        """Work until cancelled."""
        await self._queue.run()

    def _service_changed(self, change: ObjectChange) -> None:
        self._queue.add(object_key(change.object))

    def _slice_changed(self, change: ObjectChange) -> None:
        metadata = change.object["metadata"]
        if name := (metadata.get("labels") or {}).get(SERVICE_NAME):
            self._queue.add((metadata["namespace"], name))

    def _pod_changed(self, change: ObjectChange) -> None:
        states = [change.object, *([change.previous] if change.previous else [])]
        for key, service in self._informers.objects(SERVICES).items():
            if key[0] == change.object["metadata"]["namespace"] and any(_selects(service, pod) for pod in states):
                self._queue.add(key)

    async def _sync(self, key: ObjectKey) -> None:
        service = self._informers.objects(SERVICES).get(key)
        if service is None:
            # the slices are the garbage collector's; Endpoints have no owner
            found = self._informers.objects(ENDPOINTS).get(key)
            if found and (found["metadata"].get("labels") or {}).get(_ENDPOINTS_MANAGED):
                with suppress(NotFound):
                    await self._client.delete(ENDPOINTS, key[1], key[0], uid=found["metadata"]["uid"])
            return
        if not service["spec"].get("selector") or service["spec"].get("type") == "ExternalName":
            return
        pods = [
            pod
            for (namespace, _), pod in sorted(self._informers.objects(PODS).items())
            if namespace == key[0] and _selects(service, pod) and not is_terminal(pod) and _address(pod)
        ]
        await self._write_slices(service, endpoint_slices(service, pods))
        await self._write(ENDPOINTS, endpoints(service, pods), self._informers.objects(ENDPOINTS).get(key))

    async def _write_slices(self, service: ObjectView, wanted: Sequence[Mapping[str, Any]]) -> None:
        known = {
            item["metadata"]["name"]: item
            for item in self._informers.objects(ENDPOINT_SLICES).values()
            if item["metadata"]["namespace"] == service["metadata"]["namespace"]
            and (item["metadata"].get("labels") or {}).get(SERVICE_NAME) == service["metadata"]["name"]
            and (item["metadata"].get("labels") or {}).get(_MANAGED) == _SLICE_MANAGER
        }
        for item in wanted:
            await self._write(ENDPOINT_SLICES, item, known.pop(item["metadata"]["name"], None))
        for name, item in known.items():
            with suppress(NotFound):
                await self._client.delete(ENDPOINT_SLICES, name, item["metadata"]["namespace"])

    async def _write(self, resource: Resource, wanted: Mapping[str, Any], known: ObjectView | None) -> None:
        """Create an object, or update one that is not as it should be."""
        if known is None:
            with suppress(NotFound, Forbidden, Conflict):  # its namespace goes, or the informer does not know of it yet
                await self._client.create(resource, wanted, wanted["metadata"]["namespace"])
            return
        metadata = known["metadata"]
        content = {name: value for name, value in wanted.items() if name != "metadata"}
        labels = wanted["metadata"]["labels"]
        if labels == (metadata.get("labels") or {}) and all(
            (known.get(name) or []) == value
            for name, value in content.items()  # empty lists are not stored
        ):
            return
        with suppress(NotFound, Conflict):
            await self._client.update(resource, {**known, **content, "metadata": {**metadata, "labels": labels}})


def endpoint_slices(service: ObjectView, pods: Sequence[ObjectView]) -> list[dict[str, Any]]:
    """Return the EndpointSlices of a Service for pods with addresses; one without endpoints if no pod is given."""
    by_ports: dict[_Ports, list[ObjectView]] = {}
    for pod in pods:
        by_ports.setdefault(_ports(service, pod), []).append(pod)
    metadata = service["metadata"]
    owner = {
        "apiVersion": "v1", "kind": "Service", "name": metadata["name"], "uid": metadata["uid"],
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    labels = _labels(service, {SERVICE_NAME: metadata["name"], _MANAGED: _SLICE_MANAGER})
    return [
        {
            "metadata": {
                "name": f"{metadata['name']}-{template_hash(metadata['uid'], ports)}",
                "namespace": metadata["namespace"], "labels": labels, "ownerReferences": [owner],
            },
            "addressType": "IPv4",
            "endpoints": [_endpoint(service, pod) for pod in members],
            "ports": _port_list(ports, service),
        }
        for ports, members in (by_ports or {(): []}).items()
    ]  # fmt: skip


def endpoints(service: ObjectView, pods: Sequence[ObjectView]) -> dict[str, Any]:
    """Return the Endpoints of a Service for pods with addresses."""
    unready_too = service["spec"].get("publishNotReadyAddresses", False)
    by_ports: dict[_Ports, list[ObjectView]] = {}
    for pod in pods:
        if unready_too or "deletionTimestamp" not in pod["metadata"]:
            by_ports.setdefault(_ports(service, pod), []).append(pod)
    subsets = []
    for ports, members in sorted(by_ports.items()):
        subset: dict[str, Any] = {}
        for pod in members:
            ready = unready_too or is_ready(pod)
            address = {"ip": _address(pod), "nodeName": pod["spec"].get("nodeName", ""), "targetRef": _reference(pod)}
            subset.setdefault("addresses" if ready else "notReadyAddresses", []).append(address)
        listed = _port_list(ports, service)
        subsets.append({**subset, **({"ports": listed} if listed else {})})
    metadata = service["metadata"]
    labels = _labels(service, {_ENDPOINTS_MANAGED: _ENDPOINTS_MANAGER})
    named = {"name": metadata["name"], "namespace": metadata["namespace"], "labels": labels}
    return {"metadata": named, "subsets": subsets}


def _labels(service: ObjectView, own: Mapping[str, str]) -> dict[str, str]:
    headless = {_HEADLESS: ""} if service["spec"].get("clusterIP") == "None" else {}
    labels = service["metadata"].get("labels") or {}
    return {**{key: value for key, value in labels.items() if key != _HEADLESS}, **headless, **own}


def _ports(service: ObjectView, pod: ObjectView) -> _Ports:
    """Return where the ports of a Service lead in a pod; a name that the pod does not have leads nowhere."""
    found = []
    for port in service["spec"].get("ports") or ():
        target, protocol = port.get("targetPort", port["port"]), port.get("protocol", "TCP")
        if isinstance(target, str):
            containers = [*pod["spec"]["containers"], *filter(is_sidecar, init_containers(pod))]
            named = [item for container in containers for item in container.get("ports") or ()]
            target = next(
                (
                    item["containerPort"]
                    for item in named
                    if (item.get("name"), item.get("protocol", "TCP")) == (target, protocol)
                ),
                None,
            )
        if target is not None:
            found.append((port.get("name", ""), protocol, target))
    return tuple(found)


def _port_list(ports: _Ports, service: ObjectView) -> list[dict[str, Any]]:
    protocols = {item.get("name", ""): item.get("appProtocol") for item in service["spec"].get("ports") or ()}
    return [
        {
            "name": name, "protocol": protocol, "port": number,
            **({"appProtocol": protocols[name]} if protocols.get(name) else {}),
        }
        for name, protocol, number in ports
    ]  # fmt: skip


def _endpoint(service: ObjectView, pod: ObjectView) -> dict[str, Any]:
    serving, terminating = is_ready(pod), "deletionTimestamp" in pod["metadata"]
    ready = bool(service["spec"].get("publishNotReadyAddresses")) or (serving and not terminating)
    return {
        "addresses": [_address(pod)],
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "nodeName": pod["spec"].get("nodeName", ""),
        "targetRef": _reference(pod),
    }


def _reference(pod: ObjectView) -> dict[str, str]:
    metadata = pod["metadata"]
    return {"kind": "Pod", "namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]}


def _address(pod: ObjectView) -> str:
    return str((pod.get("status") or {}).get("podIP") or "")


def _selects(service: ObjectView, pod: ObjectView) -> bool:
    selector = service["spec"].get("selector") or {}
    labels = pod["metadata"].get("labels") or {}
    return bool(selector) and all(labels.get(key) == value for key, value in selector.items())
