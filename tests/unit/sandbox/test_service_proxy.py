"""Services that lead to local pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from dra_kit.client.resources import ENDPOINT_SLICES, EVENTS, PODS, SERVICES
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.kubelet.environment import service_variables
from dra_kit.sandbox.service_proxy import ServiceEndpoint, ServiceListener, ServiceRoute, service_routes
from tests.unit.sandbox.cluster.kubelet.polling import until

Object = dict[str, Any]
SERVER = """
import os, socket, sys, time
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    connection, _ = server.accept()
    data = b""
    while part := connection.recv(100_000):
        data += part
    connection.sendall(os.environ["HOSTNAME"].encode() + b" " + data[::-1])
    connection.close()
"""


def service(name: str = "web", **spec: Any) -> Object:
    ports = [{"name": "http", "port": 80, "protocol": "TCP"}]
    return {
        "metadata": {"namespace": "default", "name": name},
        "spec": {"clusterIP": "127.96.1.2", "ports": ports, **spec},
    }


def endpoints(*addresses: str, service: str = "web", ready: bool | None = None, name: str = "http") -> Object:
    conditions = {} if ready is None else {"ready": ready}
    return {
        "metadata": {"namespace": "default", "labels": {"kubernetes.io/service-name": service}},
        "endpoints": [{"addresses": [address], "conditions": conditions} for address in addresses],
        "ports": [{"name": name, "port": 8080}],
    }


LISTENER = ServiceListener("127.96.1.2", 80)


def route(*addresses: str) -> ServiceRoute:
    return ServiceRoute(("default", "web"), tuple(ServiceEndpoint(address, 8080) for address in addresses))


def test_port_leads_to_ready_endpoints_of_its_name() -> None:
    slices = [
        endpoints("10.0.0.1", ready=True), endpoints("10.0.0.2"), endpoints("10.0.0.3", ready=False),
        endpoints("10.0.0.4", name="metrics"), endpoints("10.0.0.5", service="other"),
    ]  # fmt: skip

    assert service_routes([service()], slices) == {LISTENER: route("10.0.0.1", "10.0.0.2")}


@pytest.mark.parametrize(
    "found",
    [
        service("other"),
        service(type="ExternalName"),
        service(clusterIP="None"),
        service(ports=[{"name": "http", "port": 80, "protocol": "UDP"}]),
        service("kubernetes"),
    ],
)
def test_other_services_lead_nowhere(found: Object) -> None:
    slices = [endpoints("10.0.0.1"), endpoints("10.0.0.1", service="kubernetes")]

    assert service_routes([found], slices) == {}


def test_endpoint_slices_that_say_little_are_passed_over() -> None:
    vague = endpoints("10.0.0.1")
    vague["ports"] = [{"name": "http"}]
    empty = endpoints("10.0.0.2")
    empty["endpoints"] = [{"addresses": []}, {"addresses": ["10.0.0.3"], "targetRef": {"kind": "Pod", "name": "p"}}]
    assert service_routes([service()], [vague, empty]) == {LISTENER: route("10.0.0.3")}


def test_node_port_is_at_the_address_of_the_node() -> None:
    ports = [{"name": "http", "port": 80, "nodePort": 30080}]

    found = service_routes([service(ports=ports)], [endpoints("10.0.0.1")])

    assert found == {LISTENER: route("10.0.0.1"), ServiceListener("127.0.0.1", 30080): route("10.0.0.1")}


def test_variables_are_those_of_a_kubelet() -> None:
    ports = [{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "other-port", "port": 81, "protocol": "UDP"}]

    assert service_variables(service("web-svc", clusterIP="10.96.36.25", ports=ports)) == {
        "WEB_SVC_SERVICE_HOST": "10.96.36.25",
        "WEB_SVC_SERVICE_PORT": "80",
        "WEB_SVC_SERVICE_PORT_HTTP": "80",
        "WEB_SVC_SERVICE_PORT_OTHER_PORT": "81",
        "WEB_SVC_PORT": "tcp://10.96.36.25:80",
        "WEB_SVC_PORT_80_TCP": "tcp://10.96.36.25:80",
        "WEB_SVC_PORT_80_TCP_PROTO": "tcp",
        "WEB_SVC_PORT_80_TCP_PORT": "80",
        "WEB_SVC_PORT_80_TCP_ADDR": "10.96.36.25",
        "WEB_SVC_PORT_81_UDP": "udp://10.96.36.25:81",
        "WEB_SVC_PORT_81_UDP_PROTO": "udp",
        "WEB_SVC_PORT_81_UDP_PORT": "81",
        "WEB_SVC_PORT_81_UDP_ADDR": "10.96.36.25",
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox((), SandboxSettings(time_scale=100, webhook=False, controller=False)) as running:
        yield running


async def create(sandbox: Sandbox, name: str, *command: str, **container: Any) -> None:
    main = {"name": "main", "image": "x", "command": list(command), **container}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [main]}
    metadata = {"name": name, "namespace": "default", "labels": {"app": name}}
    await sandbox.client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


async def ask(address: str, port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(address, port)
    writer.write(data)
    writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def refused(address: str, port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await ask(address, port, b"")
            except ConnectionRefusedError:
                return
            except ConnectionResetError:
                pass  # it was in the queue of the socket that closes
            await asyncio.sleep(0.01)


@pytest.mark.processes
@pytest.mark.asyncio(loop_scope="module")
class TestSandbox:
    async def test_service_leads_to_its_pod_while_there_is_one(self, sandbox: Sandbox) -> None:
        await create(sandbox, "oven", "python3", "-c", SERVER)
        await until(lambda: sandbox.nodes[0].runtime.reports("default", "oven"))
        report = sandbox.nodes[0].runtime.reports("default", "oven")[0]
        await until(lambda: report.log.text.endswith("\n"))
        spec = {"selector": {"app": "oven"}, "ports": [{"port": 8080, "targetPort": int(report.log.text)}]}
        made = await sandbox.client.create(
            SERVICES, {"metadata": {"name": "oven", "namespace": "default"}, "spec": spec}
        )
        address = made["spec"]["clusterIP"]
        await until(
            lambda: any(
                item["endpoints"] and item["endpoints"][0]["conditions"]["ready"]
                for item in sandbox.informers.objects(ENDPOINT_SLICES).values()
                if item["metadata"]["name"].startswith("oven-")
            )
        )
        async with asyncio.timeout(60):
            while True:
                try:
                    answers = [await ask(address, 8080, b"ab" * 100_000) for _ in range(3)]
                    break
                except ConnectionRefusedError:
                    await asyncio.sleep(0.01)

        await sandbox.client.delete(PODS, "oven", "default")

        assert answers == [b"oven " + b"ba" * 100_000] * 3
        assert address.startswith("127.96.")
        await refused(address, 8080)

    async def test_pods_get_the_variables_of_services(self, sandbox: Sandbox) -> None:
        metadata = {"name": "hot-oven", "namespace": "default"}
        spec = {"ports": [{"port": 9}], "clusterIP": "127.96.255.255"}
        await sandbox.client.create(SERVICES, {"metadata": metadata, "spec": spec})
        await create(sandbox, "guest", "sh", "-c", "echo $HOT_OVEN_SERVICE_HOST:$HOT_OVEN_SERVICE_PORT")
        await until(lambda: sandbox.nodes[0].runtime.reports("default", "guest"))
        report = sandbox.nodes[0].runtime.reports("default", "guest")[0]

        await until(lambda: report.log.text.endswith("\n"))

        assert report.log.text == "127.96.255.255:9\n"
        assert report.environment["KUBERNETES_SERVICE_HOST"] == "127.0.0.1"

    @pytest.mark.parametrize(("name", "address"), [("far", "198.51.100.9"), ("all", "0.0.0.0")])
    async def test_foreign_address_is_reported(self, sandbox: Sandbox, name: str, address: str) -> None:
        await create(sandbox, name, "sleep", "3600")
        spec = {"selector": {"app": name}, "ports": [{"port": 80}], "clusterIP": address}
        await sandbox.client.create(SERVICES, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})

        async with asyncio.timeout(60):
            while True:
                events = (await sandbox.client.list(EVENTS, "default")).items
                notes = [item["note"] for item in events if item["reason"] == "FailedToListen"]
                if found := [note for note in notes if address in note]:
                    break
                await asyncio.sleep(0.02)

        cause = "it is not an address of the loopback network of this machine"
        begin = f"Service does not lead to its pods at {address}:80: {cause}"
        assert found == [f"{begin}; leave out spec.clusterIP; use kubectl port-forward -n default service/{name}"]
