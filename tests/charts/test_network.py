"""Connections to the pods: only ports with clients are open."""

from __future__ import annotations

from typing import Any

import pytest

from tests.charts.rendering import ALL_ROLES, RELEASE, Helm, Manifests, Refused

ROLES = ["node", "controller", "webhook"]


def deployed(helm: Helm, **values: dict[str, Any]) -> Manifests:
    return helm.render({**ALL_ROLES, **values, "webhook": {**ALL_ROLES["webhook"], **values.get("webhook", {})}})


def policy(manifests: Manifests, role: str) -> Any:
    return manifests.named("NetworkPolicy", f"{RELEASE}-{role}")["spec"]


@pytest.mark.parametrize("role", ROLES)
def test_it_is_about_the_pods_of_the_role(role: str, helm: Helm) -> None:
    manifests = deployed(helm)

    workload = manifests.named("DaemonSet" if role == "node" else "Deployment", f"{RELEASE}-{role}")
    assert policy(manifests, role)["podSelector"] == workload["spec"]["selector"]


@pytest.mark.parametrize("role", ROLES)
def test_what_the_container_names_is_open_and_nothing_else(role: str, helm: Helm) -> None:
    manifests = deployed(helm, webhook={"port": 10443, "probePort": 9000})

    ports = [item["containerPort"] for item in manifests.container(role)["ports"]]
    assert policy(manifests, role)["ingress"] == [{"ports": [{"port": port}]} for port in ports]


def test_the_webhook_is_open_to_the_api_servers_only_where_these_are_known(helm: Helm) -> None:
    cidrs = ["10.0.0.4/32", "fd00::/8"]
    given, plain = deployed(helm, networkPolicy={"apiServerCIDRs": cidrs}), deployed(helm)

    webhook = {"from": [{"ipBlock": {"cidr": cidr}} for cidr in cidrs], "ports": [{"port": 9443}]}
    probes = [rule for rule in policy(plain, "webhook")["ingress"] if rule["ports"] != [{"port": 9443}]]
    assert probes
    assert policy(given, "webhook")["ingress"] == [webhook, *probes]
    for role in ("node", "controller"):
        assert policy(given, role) == policy(plain, role)


@pytest.mark.parametrize("cidr", ["10.0.0.4", "api.example", "10.0.0.4/"])
def test_an_api_servers_address_must_be_a_network(cidr: str, helm: Helm) -> None:
    with pytest.raises(Refused, match="apiServerCIDRs"):
        deployed(helm, networkPolicy={"apiServerCIDRs": [cidr]})


def test_a_webhook_that_makes_its_certificate_is_as_closed(helm: Helm) -> None:
    given, made = deployed(helm), deployed(helm, webhook={"certificate": {"selfMade": True}})

    assert policy(made, "webhook") == policy(given, "webhook")


def test_ports_without_clients_are_closed(helm: Helm) -> None:
    spec = policy(deployed(helm, node={"probePort": 0}), "node")

    assert spec["policyTypes"] == ["Ingress"]
    assert not spec["ingress"]


@pytest.mark.parametrize("role", ROLES)
def test_a_driver_may_have_ports_of_its_own(role: str, helm: Helm) -> None:
    rule = {"from": [{"namespaceSelector": {}}], "ports": [{"port": 9400}]}

    spec = policy(deployed(helm, **{role: {"networkPolicy": {"ingress": [rule]}}}), role)

    assert rule in spec["ingress"]


@pytest.mark.parametrize("role", ROLES)
def test_what_goes_out_is_limited_by_choice(role: str, helm: Helm) -> None:
    rule = {"to": [{"ipBlock": {"cidr": "10.96.0.1/32"}}], "ports": [{"port": 443}]}

    free = policy(deployed(helm), role)
    limited = policy(deployed(helm, **{role: {"networkPolicy": {"egress": [rule]}}}), role)

    assert (free["policyTypes"], "egress" in free) == (["Ingress"], False)
    assert (limited["policyTypes"], limited["egress"]) == (["Ingress", "Egress"], [rule])


def test_the_network_of_the_host_is_left_alone(helm: Helm) -> None:
    manifests = deployed(helm, node={"hostNetwork": True})

    names = {item["metadata"]["name"] for item in manifests.objects if item["kind"] == "NetworkPolicy"}
    assert names == {f"{RELEASE}-controller", f"{RELEASE}-webhook"}


@pytest.mark.parametrize("values", [{"networkPolicy": {"enabled": False}}, {"image": {}}], ids=["disabled", "no-image"])
def test_there_may_be_none(values: dict[str, Any], helm: Helm) -> None:
    assert "NetworkPolicy" not in deployed(helm, **values).kinds()


@pytest.mark.parametrize("role", ["controller", "webhook"])
def test_a_role_that_is_not_deployed_has_none(role: str, helm: Helm) -> None:
    manifests = deployed(helm, **{role: {"enabled": False}})

    names = {item["metadata"]["name"] for item in manifests.objects if item["kind"] == "NetworkPolicy"}
    assert names == {f"{RELEASE}-{other}" for other in ROLES if other != role}
