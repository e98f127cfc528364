"""Services that lead to local pods: the sandbox listens at their addresses, and connects with a ready endpoint.

The addresses are of the loopback network, so that every process of this machine reaches them, and none of another
machine. A Service without a ready endpoint refuses connections, as kube-proxy does. UDP is not forwarded.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, Final, Protocol, Self

from msgspec import Struct

from dra_kit.apiserver.pod_streams import PodStreamUnavailable
from dra_kit.client.api import Client
from dra_kit.client.events import EventRecorder, ObjectReference
from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import ENDPOINT_SLICES, SERVICES
from dra_kit.kubernetes.resource.objects import ObjectKey, object_key
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.process.connections import relay, wait_until_readable
from dra_kit.sandbox.controllers.endpoints import SERVICE_NAME
from dra_kit.sandbox.informers import SharedInformers, WorkQueue
from dra_kit.sandbox.kubelet.environment import OWN_SERVICE

COMPONENT: Final = "kube-proxy"
"""What the proxy calls itself in Events."""
NODE_ADDRESS: Final = "127.0.0.1"
"""Where node ports are."""
_BACKLOG: Final = 128
_RETRY_SECONDS: Final = 0.1
_FIRST_UNPRIVILEGED: Final = 1024


class ServiceEndpoint(Struct, frozen=True):
    """Where a connection may go.

    Attributes:
        pod: namespace, name and UID of the pod; None for an endpoint that is not a pod.
    """

    address: str
    port: int
    pod: tuple[str, str, str] | None = None


class ServiceListener(Struct, frozen=True):
    """Where the proxy listens for one port of a Service."""

    address: str
    port: int


class ServiceRoute(Struct, frozen=True):
    """What is behind a listener: the ready endpoints of a port of a Service."""

    service: ObjectKey
    endpoints: tuple[ServiceEndpoint, ...]


def service_routes(services: Iterable[ObjectView], slices: Iterable[ObjectView]) -> dict[ServiceListener, ServiceRoute]:
    """Return where to listen, and where connections go; ports without ready endpoints are left out."""
    by_service: dict[ObjectKey, list[ObjectView]] = {}
    for item in slices:
        name = (item["metadata"].get("labels") or {}).get(SERVICE_NAME, "")
        by_service.setdefault((item["metadata"]["namespace"], name), []).append(item)
    routes: dict[ServiceListener, ServiceRoute] = {}
    for service in services:
        key, spec = object_key(service), service["spec"]
        address = spec.get("clusterIP") or "None"
        if key == OWN_SERVICE or spec.get("type") == "ExternalName":
            continue
        for port in spec.get("ports") or ():
            if port.get("protocol", "TCP") != "TCP":
                continue
            ready = tuple(_ready(by_service.get(key, ()), port.get("name", "")))
            if not ready:
                continue
            if address != "None":
                routes[ServiceListener(address, port["port"])] = ServiceRoute(key, ready)
            if number := port.get("nodePort"):
                routes[ServiceListener(NODE_ADDRESS, number)] = ServiceRoute(key, ready)
    return routes


def _ready(slices: Iterable[ObjectView], port_name: str) -> Iterable[ServiceEndpoint]:
    for item in slices:
        ports = item.get("ports") or ()
        numbers = [port["port"] for port in ports if port.get("port") and port.get("name", "") == port_name]
        for endpoint in item.get("endpoints") or ():
            addresses = endpoint.get("addresses")
            if not addresses or (endpoint.get("conditions") or {}).get("ready") is False:
                continue
            target = endpoint.get("targetRef") or {}
            pod = None
            if target.get("kind") == "Pod" and {"namespace", "name", "uid"} <= target.keys():
                pod = target["namespace"], target["name"], target["uid"]
            for number in numbers:
                yield ServiceEndpoint(addresses[0], number, pod)


class PodDialer(Protocol):
    """Connects to ports of pods."""

    async def dial(self, pod: dict[str, Any], port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a port of a pod.

        Raises:
            OSError: the connection is refused.
            PodStreamUnavailable: the pod does not run.
        """
        ...


class ServiceProxy:
    """Listens at the addresses of Services; an asynchronous context manager.

    Args:
        pods: connects to their endpoints.
    """

    def __init__(self, client: Client, informers: SharedInformers, pods: PodDialer) -> None:
        self._informers, self._pods = informers, pods
        self._recorder = EventRecorder(client, controller=COMPONENT, instance=COMPONENT)
        self._queue: WorkQueue[None] = WorkQueue("services", self._sync)
        self._routes: Mapping[ServiceListener, ServiceRoute] = {}
        self._listening: dict[ServiceListener, asyncio.Task[None]] = {}
        self._failed: dict[ServiceListener, ObjectKey] = {}
        self._turns: dict[ServiceListener, int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        for resource in (SERVICES, ENDPOINT_SLICES):
            informers.listen(resource, self._changed)

    async def __aenter__(self) -> Self:
        for work in (self._queue.run(), self._recorder.run(asyncio.Event())):
            self._begin(work)
        self._queue.add(None)
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _changed(self, _: ObjectChange) -> None:
        self._queue.add(None)

    async def _sync(self, _: None) -> None:
        """Listen where there are ready endpoints, and nowhere else."""
        services = list(self._informers.objects(SERVICES).values())
        self._routes = routes = service_routes(services, self._informers.objects(ENDPOINT_SLICES).values())
        for listener in self._listening.keys() - routes.keys():
            self._listening.pop(listener).cancel()
        for listener in self._failed.keys() - routes.keys():
            del self._failed[listener]
        for listener, route in routes.items():
            if listener not in self._listening and self._failed.get(listener) != route.service:
                self._listen(listener, route.service)

    def _listen(self, listener: ServiceListener, service: ObjectKey) -> None:
        try:
            listening = _listening_socket(listener)
        except OSError as error:
            self._failed[listener] = service
            self._report(listener, service, error)
            return
        listening.setblocking(False)
        self._listening[listener] = self._begin(self._accept(listener, listening))

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name="service proxy")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listener: ServiceListener, listening: socket.socket) -> None:
        with listening:
            while True:
                await wait_until_readable(listening)
                try:
                    accepted, _ = listening.accept()
                except OSError:  # the client is gone, or there are too many open files
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                self._begin(self._serve(listener, accepted))

    async def _serve(self, listener: ServiceListener, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        try:
            reader, writer = await asyncio.open_connection(sock=accepted)
        except BaseException:
            accepted.close()
            raise
        try:
            await self._forward(listener, reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()  # a client that does not read would keep the connection open
            raise
        finally:
            writer.close()

    def _report(self, listener: ServiceListener, service: ObjectKey, error: OSError) -> None:
        where, cause = f"{listener.address}:{listener.port}", (error.strerror or str(error)).lower()
        if error.errno == errno.EACCES and listener.port < _FIRST_UNPRIVILEGED:
            cause = "your user may not listen at ports below 1024"
        elif error.errno == errno.EADDRNOTAVAIL:
            cause = "it is not an address of the loopback network of this machine; leave out spec.clusterIP"
        remedy = f"use kubectl port-forward -n {service[0]} service/{service[1]}"
        note = f"Service does not lead to its pods at {where}: {cause}; {remedy}"
        found = self._informers.objects(SERVICES).get(service)
        if found is not None:
            reference = ObjectReference.to(found)
            self._recorder.record(reference, "Warning", reason="FailedToListen", action="Listen", note=note)

    async def _forward(
        self, listener: ServiceListener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        route = self._routes.get(listener)
        found = await self._connect(listener, route.endpoints) if route else None
        if found is None:
            return
        try:
            await relay((reader, writer), found)
        finally:
            found[1].close()

    async def _connect(
        self, listener: ServiceListener, endpoints: Sequence[ServiceEndpoint]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Connect with the endpoint whose turn it is, or with the next one that accepts."""
        turn = self._turns[listener] = self._turns.get(listener, -1) + 1
        for offset in range(len(endpoints)):
            endpoint = endpoints[(turn + offset) % len(endpoints)]
            with suppress(OSError, PodStreamUnavailable):
                if endpoint.pod is None:
                    return await asyncio.open_connection(endpoint.address, endpoint.port)
                namespace, name, uid = endpoint.pod
                pod = {"metadata": {"namespace": namespace, "name": name, "uid": uid}}
                return await self._pods.dial(pod, endpoint.port)
        return None


def _listening_socket(listener: ServiceListener) -> socket.socket:
    """Return a socket that listens, at an address that other machines do not reach.

    Raises:
        OSError: the port is in use, or the address is not one of the loopback network.
    """
    is_loopback = False
    with suppress(ValueError):  # a host name
        is_loopback = ip_address(listener.address).is_loopback
    if not is_loopback:
        raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    return socket.create_server((listener.address, listener.port), backlog=_BACKLOG)
