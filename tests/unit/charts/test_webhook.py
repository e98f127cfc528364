"""The webhook in the chart: the same configuration as the webhook role itself writes down."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import yaml

from dra_kit.apiserver.server import ApiServer
from dra_kit.errors import KubeError
from dra_kit.kube.client import Client
from dra_kit.kube.connection.connection import Connection
from dra_kit.kube.connection.credentials import Credentials
from dra_kit.kube.resources import DEVICE_CLASSES, VALIDATING_WEBHOOK_CONFIGURATIONS
from dra_kit.webhook.configuration import ServiceReference, validating_webhook_configuration
from tests.unit.charts.rendering import DEPLOYED, DRIVER, NAMESPACE, RELEASE, Helm, Refused

PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def values(**certificate: str) -> dict[str, Any]:
    return {**DEPLOYED, "webhook": {"certificate": {"secretName": "webhook-tls", **certificate}}}


def test_without_a_certificate_there_is_none(helm: Helm) -> None:
    kinds = helm.render(DEPLOYED).kinds()

    assert not kinds & {"ValidatingWebhookConfiguration", "Service"}


@pytest.mark.parametrize("ca_bundle", [PEM, ""], ids=["with-authority", "authority-comes-later"])
def test_the_configuration_is_the_one_that_the_role_serves(ca_bundle: str, helm: Helm) -> None:
    rendered = helm.render(values(caBundle=ca_bundle)).named("ValidatingWebhookConfiguration")

    expected = validating_webhook_configuration(
        DRIVER,
        service=ServiceReference(NAMESPACE, f"{RELEASE}-webhook"),
        ca_bundle=ca_bundle.encode() if ca_bundle else None,
    )
    assert rendered["webhooks"] == expected["webhooks"]
    assert rendered["metadata"]["name"] == expected["metadata"]["name"]


def device_class(name: str, driver: str) -> str:
    config = [{"opaque": {"driver": driver, "parameters": {"apiVersion": f"{driver}/v1", "kind": "PizzaConfig"}}}]
    return yaml.safe_dump(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": name},
            "spec": {"config": config if driver else []},
        }
    )


@pytest.mark.parametrize("spec", ["", "{config: }", "{config: [{}, {opaque: }]}"])
def test_a_class_with_fields_that_are_left_empty_is_rendered(spec: str, helm: Helm) -> None:
    text = f"apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {{name: plain}}\nspec: {spec}\n"

    rendered = helm.render({**values(), "deviceClasses": text}).named("ValidatingWebhookConfiguration")

    assert len(rendered["webhooks"]) == len(helm.render(values()).named("ValidatingWebhookConfiguration")["webhooks"])


async def test_a_first_install_makes_its_classes_though_the_webhook_does_not_answer_yet(helm: Helm) -> None:
    classes = "---\n".join([device_class("hot", DRIVER), device_class("cold", ""), device_class("far", "a.example")])
    rendered = helm.render({**values(), "deviceClasses": classes}).named("ValidatingWebhookConfiguration")

    async with ApiServer() as server, Client(Credentials(Connection(server.url)), user_agent="tests/1") as client:
        # where nobody listens
        local = [{**item, "clientConfig": {"url": "https://127.0.0.1:1/review"}} for item in rendered["webhooks"]]
        await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, {**rendered, "webhooks": local})
        for text in classes.split("---\n"):
            await client.create(DEVICE_CLASSES, yaml.safe_load(text))
        with pytest.raises(KubeError, match="failed calling webhook"):
            await client.create(DEVICE_CLASSES, yaml.safe_load(device_class("warm", DRIVER)))
        made = await client.get(DEVICE_CLASSES, "hot")
        made["spec"]["config"][0]["opaque"]["parameters"]["kind"] = "Pasta"
        with pytest.raises(KubeError, match="failed calling webhook"):
            await client.update(DEVICE_CLASSES, made)


async def test_once_the_webhook_answers_it_is_asked_of_every_class(helm: Helm) -> None:
    rendered = helm.render({**values(), "deviceClasses": device_class("hot", DRIVER)})
    asked = [
        (item["name"], item["failurePolicy"], item["matchConditions"][1:])
        for item in rendered.named("ValidatingWebhookConfiguration")["webhooks"]
        if "deviceclasses" in item["name"]
    ]

    made = 'request.operation == "CREATE" && object.?metadata.?name.orValue("") in ["hot"]'
    assert asked == [
        (f"deviceclasses.opaque-config.{DRIVER}", "Fail", [
            {"name": "not-made-with-the-release", "expression": f"!({made})"}
        ]),
        (f"own-deviceclasses.opaque-config.{DRIVER}", "Ignore", [
            {"name": "made-with-the-release", "expression": made}
        ]),
    ]  # fmt: skip


def test_the_authority_is_encoded_once(helm: Helm) -> None:
    (first, *_) = helm.render(values(caBundle=PEM)).named("ValidatingWebhookConfiguration")["webhooks"]

    assert base64.b64decode(first["clientConfig"]["caBundle"]).decode() == PEM


def test_something_else_may_fill_in_the_authority(helm: Helm) -> None:
    chart_values = values()
    chart_values["webhook"]["configurationAnnotations"] = {"injector.example/from": "pizza-system/webhook"}

    rendered = helm.render(chart_values).named("ValidatingWebhookConfiguration")

    assert rendered["metadata"]["annotations"] == {"injector.example/from": "pizza-system/webhook"}


def test_the_service_leads_to_the_port_where_the_role_listens(helm: Helm) -> None:
    chart_values = values()
    chart_values["webhook"]["port"] = 10443

    manifests = helm.render(chart_values)

    (port,) = manifests.named("Service")["spec"]["ports"]
    (container_port,) = [item for item in manifests.container("webhook")["ports"] if item["name"] == "https"]
    labels = manifests.named("Deployment", f"{RELEASE}-webhook")["spec"]["template"]["metadata"]["labels"]
    assert (port["port"], port["targetPort"]) == (443, container_port["name"])
    assert container_port["containerPort"] == 10443
    assert manifests.environment("webhook")["DRA_WEBHOOK_PORT"] == "10443"
    assert manifests.named("Service")["spec"]["selector"].items() <= labels.items()


def test_certificate_and_key_are_where_the_role_looks_for_them(helm: Helm) -> None:
    manifests = helm.render(values())
    environment = manifests.environment("webhook")

    (mount,) = manifests.container("webhook")["volumeMounts"]
    (volume,) = manifests.pod("webhook")["volumes"]
    assert volume["secret"]["secretName"] == "webhook-tls"
    assert mount["name"] == volume["name"]
    # the names of the keys of a Secret of type kubernetes.io/tls
    assert environment["DRA_WEBHOOK_CERT"] == f"{mount['mountPath']}/tls.crt"
    assert environment["DRA_WEBHOOK_KEY"] == f"{mount['mountPath']}/tls.key"


def test_a_replica_is_asked_when_it_can_answer(helm: Helm) -> None:
    container = helm.render(values()).container("webhook")

    probe = container["readinessProbe"]["httpGet"]
    assert (probe["scheme"], probe["path"]) == ("HTTPS", "/readyz")
    assert probe["port"] == container["ports"][0]["name"]


def test_liveness_is_asked_where_the_process_answers(helm: Helm) -> None:
    manifests = helm.render(values())

    container = manifests.container("webhook")
    [port] = [item["containerPort"] for item in container["ports"] if item["name"] == "probes"]
    assert manifests.environment("webhook")["DRA_PROBE_ADDRESS"] == f":{port}"
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "probes"}


def test_without_a_port_there_is_no_liveness_probe(helm: Helm) -> None:
    chart_values = values()
    chart_values["webhook"]["probePort"] = 0

    container = helm.render(chart_values).container("webhook")
    assert [item["name"] for item in container["ports"]] == ["https"]
    assert "livenessProbe" not in container
    assert "readinessProbe" in container


def spread(helm: Helm, **webhook: Any) -> Any:
    chart_values = values()
    chart_values["webhook"] |= webhook
    return helm.render(chart_values).pod("webhook")["topologySpreadConstraints"]


def test_replicas_are_on_different_nodes_where_that_is_possible(helm: Helm) -> None:
    (constraint,) = spread(helm)

    selector = helm.render(values()).named("Deployment", f"{RELEASE}-webhook")["spec"]["selector"]
    assert (constraint["topologyKey"], constraint["maxSkew"]) == ("kubernetes.io/hostname", 1)
    # a cluster may have one node only
    assert constraint["whenUnsatisfiable"] == "ScheduleAnyway"
    assert constraint["labelSelector"] == selector


def test_they_are_spread_otherwise_where_a_value_says_so(helm: Helm) -> None:
    zones = {"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}

    assert spread(helm, topologySpreadConstraints=[zones]) == [zones]


def test_no_more_than_one_replica_is_evicted_at_a_time(helm: Helm) -> None:
    manifests = helm.render(values())

    budget = manifests.named("PodDisruptionBudget", f"{RELEASE}-webhook")["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"] == manifests.named("Deployment", f"{RELEASE}-webhook")["spec"]["selector"]


@pytest.mark.parametrize("webhook", [{"replicas": 1}, {"podDisruptionBudget": False}], ids=["one-replica", "disabled"])
def test_an_only_replica_can_be_evicted(webhook: dict[str, Any], helm: Helm) -> None:
    chart_values = values()
    chart_values["webhook"] |= webhook

    assert f"{RELEASE}-webhook" not in helm.render(chart_values).names("PodDisruptionBudget")


SELF_MADE: dict[str, Any] = {**DEPLOYED, "webhook": {"certificate": {"selfMade": True}}}


def test_a_webhook_that_makes_its_certificate_reads_no_files(helm: Helm) -> None:
    manifests = helm.render(SELF_MADE)

    environment = manifests.environment("webhook")
    assert environment["DRA_WEBHOOK_OWN_CERTIFICATE"] == manifests.named("Service")["metadata"]["name"]
    assert not {"DRA_WEBHOOK_CERT", "DRA_WEBHOOK_KEY"} & set(environment)
    assert not {"volumes", "volumeMounts"} & {*manifests.pod("webhook"), *manifests.container("webhook")}


def test_it_may_write_its_own_secret_and_have_it_trusted_and_nothing_else(helm: Helm) -> None:
    manifests = helm.render(SELF_MADE)

    name = f"{RELEASE}-webhook"
    assert "data" not in manifests.named("Secret")
    assert manifests.named("Secret")["metadata"]["name"] == name
    assert manifests.named("Role", name)["rules"] == [
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [name], "verbs": ["get", "update"]}
    ]
    configuration = manifests.named("ValidatingWebhookConfiguration")["metadata"]["name"]
    assert manifests.named("ClusterRole", name)["rules"] == [
        {
            "apiGroups": ["admissionregistration.k8s.io"],
            "resources": ["validatingwebhookconfigurations"],
            "resourceNames": [configuration],
            "verbs": ["get", "patch"],
        }
    ]


def test_an_upgrade_takes_no_trust_away(helm: Helm) -> None:
    for webhook in helm.render(SELF_MADE).named("ValidatingWebhookConfiguration")["webhooks"]:
        assert "caBundle" not in webhook["clientConfig"]


@pytest.mark.parametrize("given", [{"secretName": "webhook"}, {"caBundle": PEM}], ids=lambda given: next(iter(given)))
def test_it_makes_its_certificate_or_is_given_one(given: dict[str, str], helm: Helm) -> None:
    with pytest.raises(Refused, match="selfMade goes together with neither"):
        helm.render({**DEPLOYED, "webhook": {"certificate": {"selfMade": True, **given}}})
