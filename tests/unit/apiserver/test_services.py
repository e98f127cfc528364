"""Services: defaults, addresses and node ports. The verdicts were measured on kube-apiserver 1.37.1."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.apiserver.conftest import Http, Object

PATH = "/api/v1/namespaces/default/services"
PORTS = [{"port": 80}]
NODE_PORT = "spec.ports[0].nodePort:"
RANGE = "The range of valid ports is 30000-32767"


def service(name: str = "one", **spec: Any) -> Object:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


async def made(http: Http, **spec: Any) -> Object:
    code, answer, _ = await http("POST", PATH, service(**spec))
    assert code == 201, answer["message"]
    return dict(answer)


async def changed(http: Http, obj: Object, **spec: Any) -> Object:
    """The spec after a PUT with these values; None removes one."""
    wanted = {name: value for name, value in {**obj["spec"], **spec}.items() if value is not None}
    code, answer, _ = await http("PUT", f"{PATH}/one", {**obj, "spec": wanted})
    assert code == 200, answer["message"]
    found: Object = answer["spec"]
    return found


async def refusal(http: Http, **spec: Any) -> str:
    code, answer, _ = await http("POST", PATH, service("two", **spec))
    assert code == 422
    return str(answer["message"])


async def test_load_balancer_gets_node_ports_and_a_traffic_policy(http: Http) -> None:
    spec = (await made(http, type="LoadBalancer", ports=PORTS))["spec"]

    assert 30000 <= spec["ports"][0].pop("nodePort") <= 32767
    assert spec["ports"] == [{"protocol": "TCP", "port": 80, "targetPort": 80}]
    assert (spec["externalTrafficPolicy"], spec["allocateLoadBalancerNodePorts"]) == ("Cluster", True)
    assert spec["internalTrafficPolicy"] == "Cluster"


async def test_load_balancer_without_node_ports_gets_none(http: Http) -> None:
    spec = (await made(http, type="LoadBalancer", ports=PORTS, allocateLoadBalancerNodePorts=False))["spec"]

    assert spec["ports"] == [{"protocol": "TCP", "port": 80, "targetPort": 80}]


async def test_local_traffic_of_a_load_balancer_needs_a_port_for_health_checks(http: Http) -> None:
    local = await made(http, type="LoadBalancer", ports=PORTS, externalTrafficPolicy="Local")
    spec = await changed(http, local, externalTrafficPolicy="Cluster")

    assert local["spec"]["healthCheckNodePort"] >= 30000
    assert "healthCheckNodePort" not in spec


async def test_type_cluster_ip_takes_node_ports_away(http: Http) -> None:
    exposed = await made(http, type="LoadBalancer", ports=PORTS)
    spec = await changed(http, exposed, type="ClusterIP")

    assert spec["ports"] == [{"protocol": "TCP", "port": 80, "targetPort": 80}]
    assert not {"externalTrafficPolicy", "allocateLoadBalancerNodePorts"} & spec.keys()
    assert spec["clusterIP"] == exposed["spec"]["clusterIP"]


async def test_type_node_port_adds_node_ports(http: Http) -> None:
    spec = await changed(http, await made(http, ports=PORTS), type="NodePort")

    assert spec["ports"][0]["nodePort"] >= 30000
    assert spec["externalTrafficPolicy"] == "Cluster"


async def test_node_port_stays_when_a_client_does_not_mention_it(http: Http) -> None:
    exposed = await made(http, type="NodePort", ports=PORTS)
    spec = await changed(http, exposed, ports=PORTS)

    assert spec["ports"] == exposed["spec"]["ports"]


async def test_ports_of_one_number_share_a_node_port(http: Http) -> None:
    ports = [{"name": "t", "port": 80}, {"name": "u", "port": 80, "protocol": "UDP"}]
    first, second = (await made(http, type="NodePort", ports=ports))["spec"]["ports"]

    assert first["nodePort"] == second["nodePort"]


async def test_session_affinity_has_a_timeout(http: Http) -> None:
    sticky = await made(http, ports=PORTS, sessionAffinity="ClientIP")
    spec = await changed(http, sticky, sessionAffinity="None")

    assert sticky["spec"]["sessionAffinityConfig"] == {"clientIP": {"timeoutSeconds": 10800}}
    assert "sessionAffinityConfig" not in spec


async def test_external_name_has_no_address(http: Http) -> None:
    named = await made(http, type="ExternalName", externalName="a.example.com")
    spec = await changed(http, named, type="ClusterIP", ports=PORTS)

    assert named["spec"] == {"type": "ExternalName", "sessionAffinity": "None", "externalName": "a.example.com"}
    assert spec["clusterIP"]


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        (
            {"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]},
            f"{NODE_PORT} Invalid value: 80: provided port is not in the valid range. {RANGE}",
        ),
        (
            {"ports": [{"port": 80, "nodePort": 30100}]},
            f"{NODE_PORT} Forbidden: may not be used when `type` is 'ClusterIP'",
        ),
        ({}, "spec.ports: Required value"),
        (
            {"ports": [{"port": 1, "name": "a"}, {"port": 2}]},
            "spec.ports[1].name: Required value",
        ),
    ],
)
async def test_ports_are_checked(http: Http, spec: Object, cause: str) -> None:
    assert await refusal(http, **spec) == f'Service "two" is invalid: {cause}'


async def test_node_port_of_another_service_is_refused(http: Http) -> None:
    ports = (await made(http, type="NodePort", ports=PORTS))["spec"]["ports"]
    number = ports[0]["nodePort"]

    cause = f"spec.ports[0].nodePort: Invalid value: {number}: provided port is already allocated"
    assert await refusal(http, type="NodePort", ports=ports) == f'Service "two" is invalid: {cause}'


async def test_service_with_more_ports_than_there_are_node_ports_is_refused(http: Http) -> None:
    ports = [{"name": f"p{number}", "port": number} for number in range(1, 2770)]
    code, answer, _ = await http("POST", PATH, service(type="NodePort", ports=ports))

    cause = "failed to allocate a nodePort: range is full"
    assert (code, answer["message"]) == (500, f"Internal error occurred: {cause}")
