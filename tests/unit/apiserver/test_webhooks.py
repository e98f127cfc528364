"""Admission webhooks, with a webhook over HTTPS that answers as told."""

from __future__ import annotations

import base64
import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trustme
from aiohttp import web

from dra_kit.apiserver import ApiServer
from dra_kit.errors import KubeError
from dra_kit.kube.client import Client
from dra_kit.kube.resources import NAMESPACES, RESOURCE_CLAIMS, VALIDATING_WEBHOOK_CONFIGURATIONS
from tests.unit.apiserver.conftest import Http, claim


class Webhook:
    def __init__(self, url: str, bundle: bytes) -> None:
        self.url, self.bundle = url, bundle
        self.asked: list[dict[str, Any]] = []
        self.answer: dict[str, Any] = {"allowed": True}

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        review = await request.json()
        self.asked.append(review["request"])
        answer = {"uid": review["request"]["uid"], **self.answer}
        return web.json_response({"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": answer})

    def configuration(self, **more: Any) -> dict[str, Any]:
        config = {"url": self.url, "caBundle": base64.b64encode(self.bundle).decode()}
        rule = {"apiGroups": ["resource.k8s.io"], "apiVersions": ["v1"], "resources": ["resourceclaims"],
                "operations": ["CREATE", "UPDATE"]}  # fmt: skip
        webhook = {
            "name": "check.example.com", "clientConfig": config, "rules": [rule], "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }  # fmt: skip
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "check"},
            "webhooks": [webhook | more],
        }


@pytest.fixture
async def webhook() -> AsyncIterator[Webhook]:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    hook = Webhook("", authority.cert_pem.bytes())
    runner = web.ServerRunner(web.Server(hook))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    hook.url = f"https://127.0.0.1:{runner.addresses[0][1]}/check"
    yield hook
    await runner.cleanup()


async def test_a_webhook_sees_the_object_as_it_will_be_stored(client: Client, webhook: Webhook) -> None:
    await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.configuration())

    await client.create(RESOURCE_CLAIMS, claim())

    [asked] = webhook.asked
    assert (asked["operation"], asked["name"], asked["namespace"]) == ("CREATE", "claim-1", "default")
    assert asked["resource"] == {"group": "resource.k8s.io", "version": "v1", "resource": "resourceclaims"}
    assert asked["object"]["spec"]["devices"]["requests"][0]["exactly"]["count"] == 1
    assert asked["oldObject"] is None


async def test_a_denial_reaches_the_client(client: Client, webhook: Webhook) -> None:
    await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.configuration())
    webhook.answer = {"allowed": False, "status": {"code": 403, "message": "no olives"}}

    with pytest.raises(KubeError, match="denied the request: no olives") as caught:
        await client.create(RESOURCE_CLAIMS, claim())
    assert caught.value.status == 403
    assert (await client.list(RESOURCE_CLAIMS)).items == []


async def test_warnings_of_a_webhook_reach_the_client(http: Http, client: Client, webhook: Webhook) -> None:
    await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.configuration())
    webhook.answer = {"allowed": True, "warnings": ["olives are scarce"]}

    _, _, warnings = await http("POST", RESOURCE_CLAIMS.path("default"), claim())

    assert warnings == ['299 - "olives are scarce"']


async def test_another_version_is_converted_to_that_of_the_rule(http: Http, client: Client, webhook: Webhook) -> None:
    await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.configuration())
    body = claim() | {"apiVersion": "resource.k8s.io/v1beta1"}
    body["spec"]["devices"]["requests"] = [{"name": "gpu", "deviceClassName": "gpu.example.com"}]

    status, _, _ = await http("POST", RESOURCE_CLAIMS.path("default").replace("v1", "v1beta1"), body)

    assert status == 201
    assert webhook.asked[0]["object"]["spec"]["devices"]["requests"][0]["exactly"]["allocationMode"] == "ExactCount"
    assert webhook.asked[0]["requestKind"]["version"] == "v1beta1"


async def test_only_selected_namespaces_are_asked_about(client: Client, webhook: Webhook) -> None:
    selector = {"namespaceSelector": {"matchLabels": {"check": "yes"}}}
    await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.configuration(**selector))
    team = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": {"check": "yes"}}}
    await client.create(NAMESPACES, team)

    await client.create(RESOURCE_CLAIMS, claim())
    await client.create(RESOURCE_CLAIMS, claim() | {"metadata": {"name": "c", "namespace": "team"}})

    assert [asked["namespace"] for asked in webhook.asked] == ["team"]


@pytest.mark.parametrize(("policy", "stored"), [("Fail", 0), ("Ignore", 1)])
async def test_a_webhook_that_is_not_there_fails_closed_unless_told_otherwise(
    http: Http, client: Client, webhook: Webhook, policy: str, stored: int
) -> None:
    service = {"clientConfig": {"service": {"namespace": "default", "name": "absent"}}, "failurePolicy": policy}
    await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.configuration(**service))

    status, answer, _ = await http("POST", RESOURCE_CLAIMS.path("default"), claim())

    assert len((await client.list(RESOURCE_CLAIMS)).items) == stored
    assert (status == 201) is bool(stored)
    if not stored:
        assert 'failed calling webhook "check.example.com"' in answer["message"]


async def test_services_are_found_where_they_are_routed(server: ApiServer, client: Client, webhook: Webhook) -> None:
    server.route_services(lambda namespace, name, port: webhook.url.removesuffix("/check"))
    bundle = base64.b64encode(webhook.bundle).decode()
    service = {"service": {"namespace": "default", "name": "there", "path": "/check"}, "caBundle": bundle}
    await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.configuration(clientConfig=service))

    await client.create(RESOURCE_CLAIMS, claim())

    assert len(webhook.asked) == 1
