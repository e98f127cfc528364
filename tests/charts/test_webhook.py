"""The webhook in the chart: the same configuration as the webhook role itself writes down."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from dra_kit.admission.certificates import self_made_secret
from dra_kit.admission.review import WEBHOOK_PATH, validating_webhook_configuration
from dra_kit.client.api import APPLY, JSON_PATCH
from dra_kit.client.resources import DEVICE_CLASSES, NAMESPACES, SECRETS, VALIDATING_WEBHOOK_CONFIGURATIONS
from dra_kit.errors import Forbidden, KubeError
from dra_kit.sandbox.drivers.accounts import RoleAccounts, create_accounts
from tests.charts.clients import Served, serving
from tests.charts.options import ROWS
from tests.charts.rendering import DEPLOYED, DRIVER, NAMESPACE, RELEASE, Helm, Manifests, Refused

PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def values(**certificate: str) -> dict[str, Any]:
    return {**DEPLOYED, "webhook": {"certificate": {"secretName": "webhook-tls", **certificate}}}


def test_without_a_certificate_there_is_none(helm: Helm) -> None:
    kinds = helm.render(DEPLOYED).kinds()

    assert not kinds & {"ValidatingWebhookConfiguration", "Service"}


@pytest.mark.parametrize("ca_bundle", [PEM, ""], ids=["with-authority", "authority-comes-later"])
def test_the_configuration_is_the_one_that_the_role_serves(ca_bundle: str, helm: Helm) -> None:
    rendered = helm.render(values(caBundle=ca_bundle)).named("ValidatingWebhookConfiguration")

    expected = validating_webhook_configuration(DRIVER, url="https://webhook:443")
    service = {"namespace": NAMESPACE, "name": f"{RELEASE}-webhook", "port": 443, "path": WEBHOOK_PATH}
    client = {"service": service} | ({"caBundle": base64.b64encode(ca_bundle.encode()).decode()} if ca_bundle else {})
    assert rendered["webhooks"] == [{**webhook, "clientConfig": client} for webhook in expected["webhooks"]]
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

    async with serving() as served:
        client = served.admin
        # where nothing listens
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


def test_zero_port_disables_liveness_probe(helm: Helm) -> None:
    chart_values = values()
    chart_values["webhook"]["probePort"] = 0

    container = helm.render(chart_values).container("webhook")
    assert [item["name"] for item in container["ports"]] == ["https"]
    assert "livenessProbe" not in container
    assert "readinessProbe" in container


SELF_MADE: dict[str, Any] = {**DEPLOYED, "webhook": {"certificate": {"selfMade": True}}}
SECRET = f"{RELEASE}-webhook-self-made"
JOB = f"{RELEASE}-webhook-certificate"


def test_a_webhook_that_makes_its_certificate_reads_no_files(helm: Helm) -> None:
    manifests = helm.render(SELF_MADE)

    environment = manifests.environment("webhook")
    assert environment["DRA_WEBHOOK_OWN_CERTIFICATE"] == manifests.named("Service")["metadata"]["name"]
    assert not {"DRA_WEBHOOK_CERT", "DRA_WEBHOOK_KEY"} & set(environment)
    assert not {"volumes", "volumeMounts"} & {*manifests.pod("webhook"), *manifests.container("webhook")}


def test_the_webhook_may_write_its_own_secret_and_nothing_else(helm: Helm) -> None:
    manifests = helm.render(SELF_MADE)

    name = f"{RELEASE}-webhook"
    assert self_made_secret(name) == SECRET
    assert "data" not in manifests.named("Secret", SECRET)
    assert manifests.named("Role", name)["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["secrets"],
            "resourceNames": [SECRET],
            "verbs": ["get", "update", "create", "patch"],
        }
    ]
    assert name not in manifests.names("ClusterRole")


def secret(name: str, kind: str = "Opaque", **annotations: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": NAMESPACE, "annotations": annotations},
        "type": kind,
    }


async def installed(manifests: Manifests, served: Served) -> None:
    """Create what decides about rights."""
    kinds = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    kinds |= {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ValidatingWebhookConfiguration"}
    objects = [item for item in manifests.objects if item["kind"] in kinds]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    await served.admin.create(NAMESPACES, namespace)
    accounts = RoleAccounts(namespace=NAMESPACE, node="", controller="", webhook="", objects=objects)
    await create_accounts(accounts, served.server, served.admin)


async def test_the_webhook_creates_its_secret_by_apply_under_no_other_name_or_type(helm: Helm) -> None:
    async with serving() as served:
        await installed(helm.render(SELF_MADE), served)
        webhook = await served.client(served.server.token(NAMESPACE, f"{RELEASE}-webhook"))

        async def apply(body: dict[str, Any]) -> None:
            name = body["metadata"]["name"]
            await webhook.patch(SECRETS, name, body, NAMESPACE, content_type=APPLY, field_manager="me", force=True)

        with pytest.raises(Forbidden):
            await webhook.create(SECRETS, secret(SECRET))
        with pytest.raises(Forbidden):
            await apply(secret("other"))
        # it would get the token of another account
        account = {"kubernetes.io/service-account.name": f"{RELEASE}-controller"}
        with pytest.raises(Forbidden, match=f"may write only Secret {SECRET}, of type Opaque"):
            await apply(secret(SECRET, "kubernetes.io/service-account-token", **account))
        await apply(secret(SECRET))


@pytest.mark.parametrize("row", ROWS)
def test_no_account_that_lasts_may_change_a_webhook_configuration(row: str, helm: Helm) -> None:
    """Who may can have the API server send it every object that is written, such as all Secrets."""
    rules = [
        rule
        for item in helm.render(ROWS[row]).objects
        if item["kind"] in {"ClusterRole", "Role"} and "helm.sh/hook" not in annotations_of(item)
        for rule in item["rules"]
    ]
    assert rules
    assert not {group for rule in rules for group in rule["apiGroups"]} & {"admissionregistration.k8s.io", "*"}


def annotations_of(item: Any) -> Mapping[str, str]:
    annotations: Mapping[str, str] = item["metadata"].get("annotations") or {}
    return annotations


async def test_the_webhook_cannot_have_secrets_sent_to_it(helm: Helm) -> None:
    spy = {
        "name": f"spy.opaque-config.{DRIVER}",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "clientConfig": {"url": "https://127.0.0.1:28443/"},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["secrets"]}],
    }
    manifests = helm.render(SELF_MADE)
    lasting = manifests.names("ServiceAccount") - {JOB, f"{RELEASE}-drain-guard"}
    patch = [{"op": "add", "path": "/webhooks/-", "value": spy}]
    async with serving() as served:
        await installed(manifests, served)
        for account in lasting:
            attacker = await served.client(served.server.token(NAMESPACE, account))
            with pytest.raises(Forbidden):
                await attacker.patch(
                    VALIDATING_WEBHOOK_CONFIGURATIONS, f"opaque-config.{DRIVER}", patch, content_type=JSON_PATCH
                )
    assert lasting == {f"{RELEASE}-{role}" for role in ("node", "controller", "webhook")}


def hooks(manifests: Manifests) -> list[Any]:
    """The objects of the Job that establishes trust."""
    return [
        item
        for item in manifests.objects
        if item["metadata"]["labels"].get("app.kubernetes.io/component") == "webhook-certificate"
    ]


def test_who_establishes_trust_exists_during_a_hook_only(helm: Helm) -> None:
    found = hooks(helm.render(SELF_MADE))

    kinds = [item["kind"] for item in found]
    assert sorted(kinds) == ["ClusterRole", "ClusterRoleBinding", "Job", "Role", "RoleBinding", "ServiceAccount"]
    for item in found:
        annotations = annotations_of(item)
        # also after a rollback, which may take the authority of another certificate away
        assert annotations["helm.sh/hook"] == "post-install,post-upgrade,post-rollback"
        policy = annotations["helm.sh/hook-delete-policy"]
        assert policy == "before-hook-creation,hook-succeeded,hook-failed"
        assert annotations.get("helm.sh/hook-weight") == (None if item["kind"] == "Job" else "-1")


def test_the_job_names_what_the_chart_installs(helm: Helm) -> None:
    manifests = helm.render(SELF_MADE)

    job = next(item for item in hooks(manifests) if item["kind"] == "Job")["spec"]["template"]["spec"]
    [container] = job["containers"]
    assert job["serviceAccountName"] == JOB
    assert container["args"] == [
        "webhook-certificate",
        f"--driver={DRIVER}",
        f"--service={manifests.named('Service')['metadata']['name']}",
        f"--namespace={NAMESPACE}",
        f"--drop-bindings={JOB}",
    ]
    assert manifests.named("ClusterRoleBinding", JOB)["roleRef"]["name"] == JOB
    configuration = manifests.named("ValidatingWebhookConfiguration")["metadata"]["name"]
    [rule, _] = manifests.named("ClusterRole", JOB)["rules"]
    assert (rule["resourceNames"], rule["verbs"]) == ([configuration], ["get", "patch"])


def test_the_job_runs_as_an_ordinary_user_where_values_say(helm: Helm) -> None:
    where = {"nodeSelector": {"kitchen": "true"}, "tolerations": [{"operator": "Exists"}], "resources": {}}
    certificate = {"selfMade": True, "job": where}

    found = hooks(helm.render({**DEPLOYED, "webhook": {"certificate": certificate}}))

    pod = next(item for item in found if item["kind"] == "Job")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert (pod["nodeSelector"], pod["tolerations"]) == (where["nodeSelector"], where["tolerations"])
    assert container["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def job_name(helm: Helm, **values: Any) -> str:
    [name] = [item["metadata"]["name"] for item in hooks(helm.render({**SELF_MADE, **values})) if item["kind"] == "Job"]
    return str(name)


def test_a_job_that_changes_is_another_job_for_kubectl_apply(helm: Helm) -> None:
    image = {**DEPLOYED["image"], "tag": "9.9.9"}

    assert job_name(helm, image=image) != job_name(helm)


@pytest.mark.parametrize("length", [1, 34, 35, 50, 53])
def test_the_name_of_the_job_fits_a_label(length: int, helm: Helm) -> None:
    assert len(job_name(helm, fullnameOverride="p" * length)) <= 63


def test_values_of_before_the_job_are_rendered(helm: Helm) -> None:
    """As ``helm upgrade --reuse-values`` has them, of a chart that had no such value."""
    rendered = helm.render({**DEPLOYED, "webhook": {"certificate": {"selfMade": True, "job": None}}})

    assert len(hooks(rendered)) == 6


@pytest.mark.parametrize("certificate", [{"secretName": "webhook-tls"}, {}], ids=["given", "none"])
def test_job_needs_a_self_made_certificate(certificate: dict[str, str], helm: Helm) -> None:
    manifests = helm.render({**DEPLOYED, "webhook": {"certificate": certificate}})

    assert hooks(manifests) == []
    assert "Secret" not in manifests.kinds()
    assert f"{RELEASE}-webhook" not in {*manifests.names("Role"), *manifests.names("ValidatingAdmissionPolicy")}


def test_an_upgrade_takes_no_trust_away(helm: Helm) -> None:
    for webhook in helm.render(SELF_MADE).named("ValidatingWebhookConfiguration")["webhooks"]:
        assert "caBundle" not in webhook["clientConfig"]


@pytest.mark.parametrize("given", [{"secretName": "webhook"}, {"caBundle": PEM}], ids=lambda given: next(iter(given)))
def test_it_makes_its_certificate_or_is_given_one(given: dict[str, str], helm: Helm) -> None:
    with pytest.raises(Refused, match=r"selfMade cannot be combined with .* set selfMade=false"):
        helm.render({**DEPLOYED, "webhook": {"certificate": {"selfMade": True, **given}}})


def test_the_name_of_the_self_made_secret_is_refused_for_one_of_the_administrator(helm: Helm) -> None:
    with pytest.raises(Refused, match=f"secretName is {SECRET}, the Secret of selfMade.* under another name"):
        helm.render({**DEPLOYED, "webhook": {"certificate": {"secretName": SECRET}}})
