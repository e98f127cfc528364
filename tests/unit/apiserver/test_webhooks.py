"""Admission webhooks, with a webhook over HTTPS that answers as told."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import trustme
from aiohttp import web

from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.resources import (
    ENDPOINT_SLICES,
    NAMESPACES,
    RESOURCE_CLAIMS,
    SERVICES,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from dra_kit.errors import KubeError
from tests.unit.apiserver.conftest import Http, claim, namespace

MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
RULE = {"apiGroups": ["resource.k8s.io"], "apiVersions": ["v1"], "resources": ["resourceclaims"],
        "operations": ["CREATE", "UPDATE"]}  # fmt: skip


class Webhook:
    def __init__(self, url: str, bundle: bytes) -> None:
        self.url, self.bundle = url, bundle
        self.asked: list[dict[str, Any]] = []
        self.answer: dict[str, Any] = {"allowed": True}
        self.queries: list[str] = []
        self.late = False

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        review = await request.json()
        self.asked.append(review["request"])
        self.queries.append(request.query_string)
        if self.late:
            await asyncio.Event().wait()
        answer = {"uid": review["request"]["uid"], **self.answer}
        return web.json_response({"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": answer})

    def patch(self, *operations: dict[str, Any]) -> None:
        """Answers with a patch from now on."""
        patch = base64.b64encode(json.dumps(operations).encode()).decode()
        self.answer = {"allowed": True, "patchType": "JSONPatch", "patch": patch}

    def configuration(self, **more: Any) -> dict[str, Any]:
        config = {"url": self.url, "caBundle": base64.b64encode(self.bundle).decode()}
        webhook = {
            "name": "check.example.com", "clientConfig": config, "rules": [RULE], "sideEffects": "None",
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
    authority.issue_cert("127.0.0.1", "there.default.svc").configure_cert(context)
    hook = Webhook("", authority.cert_pem.bytes())
    runner = web.ServerRunner(web.Server(hook), shutdown_timeout=0.1)
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


async def test_a_webhook_sees_the_options_of_the_request(http: Http, client: Client, webhook: Webhook) -> None:
    await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.configuration())
    path = RESOURCE_CLAIMS.path("default")

    await http("POST", f"{path}?dryRun=All&fieldManager=chef&fieldValidation=Strict", claim())

    [asked] = webhook.asked
    assert asked["options"] == {
        "kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "dryRun": ["All"], "fieldManager": "chef",
        "fieldValidation": "Strict",
    }  # fmt: skip


async def test_the_options_of_a_deletion_contain_no_field_manager(http: Http, client: Client, webhook: Webhook) -> None:
    await client.create(RESOURCE_CLAIMS, claim())
    rule = RULE | {"operations": ["DELETE"]}
    await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.configuration(rules=[rule]))
    path = RESOURCE_CLAIMS.path("default", claim()["metadata"]["name"])

    await http("DELETE", f"{path}?dryRun=All&fieldManager=chef&fieldValidation=Strict")

    [asked] = webhook.asked
    assert asked["options"] == {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "dryRun": ["All"]}


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


BETA = RESOURCE_CLAIMS.path("default").replace("v1", "v1beta1")


def beta_claim() -> dict[str, Any]:
    body = claim() | {"apiVersion": "resource.k8s.io/v1beta1"}
    body["spec"]["devices"]["requests"] = [{"name": "gpu", "deviceClassName": "gpu.example.com"}]
    return body


async def test_another_version_is_converted_to_that_of_the_rule(http: Http, client: Client, webhook: Webhook) -> None:
    await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.configuration())
    assert (await http("POST", BETA, beta_claim()))[0] == 201

    assert webhook.asked[0]["object"]["spec"]["devices"]["requests"][0]["exactly"]["allocationMode"] == "ExactCount"
    assert webhook.asked[0]["requestKind"]["version"] == "v1beta1"


async def test_only_selected_namespaces_are_asked_about(client: Client, webhook: Webhook) -> None:
    selector = {"namespaceSelector": {"matchLabels": {"check": "yes"}}}
    await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.configuration(**selector))
    await client.create(NAMESPACES, namespace("team", labels={"check": "yes"}))

    await client.create(RESOURCE_CLAIMS, claim())
    await client.create(RESOURCE_CLAIMS, claim() | {"metadata": {"name": "c", "namespace": "team"}})

    assert [asked["namespace"] for asked in webhook.asked] == ["team"]


@pytest.mark.parametrize(("policy", "stored"), [("Fail", 0), ("Ignore", 1)])
async def test_unreachable_webhook_fails_closed_unless_it_may_be_ignored(
    http: Http, client: Client, webhook: Webhook, policy: str, stored: int
) -> None:
    service = {"clientConfig": {"service": {"namespace": "default", "name": "absent"}}, "failurePolicy": policy}
    await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.configuration(**service))

    status, answer, _ = await http("POST", RESOURCE_CLAIMS.path("default"), claim())

    assert len((await client.list(RESOURCE_CLAIMS)).items) == stored
    assert (status == 201) is bool(stored)
    if not stored:
        assert 'failed calling webhook "check.example.com"' in answer["message"]


async def serve(client: Client, webhook: Webhook, **changes: Any) -> None:
    """Create a Service with an endpoint at the webhook, and a configuration that names the Service."""
    bundle = base64.b64encode(webhook.bundle).decode()
    service = {"namespace": "default", "name": "there", "path": "/check"}
    config = {"clientConfig": {"service": service, "caBundle": bundle}}
    await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.configuration(**config))
    port = {"name": "https", "port": 443, "targetPort": "named"}
    await client.create(SERVICES, {"metadata": {"name": "there"}, "spec": {"ports": [port]}}, "default")
    number = int(webhook.url.rpartition(":")[2].partition("/")[0])
    endpoint = {"addresses": ["127.0.0.1"], "conditions": {"ready": True}}
    found = {
        "metadata": {"name": "there-1", "labels": {"kubernetes.io/service-name": "there"}}, "addressType": "IPv4",
        "endpoints": [endpoint], "ports": [{"name": "https", "port": number}],
    }  # fmt: skip
    await client.create(ENDPOINT_SLICES, found | changes, "default")


async def test_service_of_a_webhook_is_reached_at_its_endpoint(client: Client, webhook: Webhook) -> None:
    await serve(client, webhook)

    await client.create(RESOURCE_CLAIMS, claim())

    assert len(webhook.asked) == 1


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": False}}]}, "no endpoints available"),
        ({"ports": [{"name": "metrics", "port": 1}]}, "no endpoints available"),
        ({"ports": [{"name": "https"}]}, "no endpoints available"),
        ({"endpoints": [{"addresses": []}]}, "no endpoints available"),
        (
            {"metadata": {"name": "there-1", "labels": {"kubernetes.io/service-name": "other"}}},
            "no endpoints available",
        ),
    ],
)
async def test_service_without_ready_endpoint_fails_the_call(
    http: Http, client: Client, webhook: Webhook, changes: dict[str, Any], cause: str
) -> None:
    await serve(client, webhook, **changes)

    _, answer, _ = await http("POST", RESOURCE_CLAIMS.path("default"), claim())

    failed = 'failed to call webhook: Post "https://there.default.svc:443/check?timeout=10s"'
    assert answer["message"].endswith(f'{failed}: {cause} for service "there"')


async def test_late_webhook_gets_the_timeout_and_is_named_in_the_error(
    http: Http, client: Client, webhook: Webhook
) -> None:
    await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.configuration(timeoutSeconds=30))
    await client.create(RESOURCE_CLAIMS, claim("in-time"))
    assert webhook.queries == ["timeout=30s"]

    webhook.late = True
    hasty = {"webhooks": webhook.configuration(timeoutSeconds=1)["webhooks"]}
    await client.patch(VALIDATING_WEBHOOK_CONFIGURATIONS, "check", hasty)
    status, answer, _ = await http("POST", RESOURCE_CLAIMS.path("default"), claim())

    failed = f'failed to call webhook: Post "{webhook.url}?timeout=1s": context deadline exceeded'
    assert status == 500
    assert answer["message"] == f'Internal error occurred: failed calling webhook "check.example.com": {failed}'


async def mutating(http: Http, webhook: Webhook, **more: Any) -> None:
    configuration = webhook.configuration(**more) | {"kind": "MutatingWebhookConfiguration"}
    assert (await http("POST", MUTATING, configuration))[0] == 201


async def test_a_mutating_webhook_changes_the_object_before_others_see_it(
    http: Http, client: Client, webhook: Webhook
) -> None:
    await mutating(http, webhook)
    webhook.patch({"op": "add", "path": "/metadata/labels", "value": {"oven": "hot"}})

    created = await client.create(RESOURCE_CLAIMS, claim())
    webhook.patch({"op": "replace", "path": "/metadata/labels/oven", "value": "cold"})
    changed = await client.patch(RESOURCE_CLAIMS, "claim-1", {"metadata": {"annotations": {"a": "b"}}}, "default")

    assert created["metadata"]["labels"] == {"oven": "hot"}
    assert changed["metadata"]["labels"] == {"oven": "cold"}
    assert changed["metadata"]["uid"] == created["metadata"]["uid"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/spec/devices/config/0/opaque/parameters/size", r'{"note":"a \u0026 b","size":2}'),
        ("/metadata/labels", r'{"size":1.0,"note":"a \u0026 b"}'),
    ],
)
async def test_mutating_webhook_patches_the_text_of_parameters(
    server: ApiServer, http: Http, webhook: Webhook, path: str, text: str
) -> None:
    await mutating(http, webhook)
    webhook.patch({"op": "add", "path": path, "value": 2 if "opaque" in path else {"a": "b"}})
    sent = json.dumps(claim()).removesuffix("}}}")
    config = '{"opaque": {"driver": "a.example.com", "parameters": {"size": 1.0, "note": "a & b"}}}'

    async with aiohttp.ClientSession() as session:
        url, headers = server.url + RESOURCE_CLAIMS.path("default"), {"Content-Type": "application/json"}
        async with session.post(url, data=f'{sent}, "config": [{config}]}}}}}}', headers=headers) as answer:
            stored = await answer.text()

    assert f'"parameters":{text}}}' in stored


@pytest.mark.parametrize("named", [{"name": "claim-1"}, {"generateName": "claim-"}], ids=["named", "generated-name"])
async def test_object_from_a_mutating_webhook_is_validated_and_rejected_by_its_name(
    http: Http, webhook: Webhook, named: dict[str, str]
) -> None:
    await mutating(http, webhook)
    webhook.patch({"op": "replace", "path": "/spec/devices/requests/0/name", "value": "A_"})

    body = claim() | {"metadata": {**named, "namespace": "default"}}
    status, answer, _ = await http("POST", RESOURCE_CLAIMS.path("default"), body)

    assert (status, answer["details"]["causes"][0]["field"]) == (422, "spec.devices.requests[0].name")
    assert answer["details"]["name"].startswith("claim-")


@pytest.mark.parametrize(
    ("field", "value", "refusal"),
    [
        ("resourceVersion", "7", (500, "resourceVersion should not be set on objects to be created")),
        ("namespace", "kube-system",
         (400, "the namespace of the provided object does not match the namespace sent on the request")),
    ],
)  # fmt: skip
async def test_mutating_webhook_cannot_set_version_or_namespace_of_a_new_object(
    http: Http, client: Client, webhook: Webhook, *, field: str, value: str, refusal: tuple[int, str]
) -> None:
    await mutating(http, webhook)
    webhook.patch({"op": "add", "path": f"/metadata/{field}", "value": value})

    status, answer, _ = await http("POST", RESOURCE_CLAIMS.path("default"), claim())

    assert (status, answer["message"]) == refusal
    assert (await client.list(RESOURCE_CLAIMS)).items == []


async def test_a_mutating_webhook_sees_and_patches_its_own_version(
    http: Http, client: Client, webhook: Webhook
) -> None:
    await mutating(http, webhook, matchPolicy="Exact", rules=[RULE | {"apiVersions": ["v1beta1"]}])
    webhook.patch({"op": "add", "path": "/spec/devices/requests/0/count", "value": 3})

    await http("POST", BETA, beta_claim())

    [stored] = (await client.list(RESOURCE_CLAIMS)).items
    assert stored["spec"]["devices"]["requests"][0]["exactly"]["count"] == 3


async def test_a_deletion_can_be_denied_and_not_patched(http: Http, client: Client, webhook: Webhook) -> None:
    await client.create(RESOURCE_CLAIMS, claim())
    await mutating(http, webhook, rules=[RULE | {"operations": ["DELETE"]}])
    webhook.patch({"op": "add", "path": "/metadata/labels", "value": {}})

    with pytest.raises(KubeError, match="attempted to modify the object"):
        await client.delete(RESOURCE_CLAIMS, "claim-1", "default")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"patchType": "JSONPatch"}, "response.patchType but not response.patch"),
        ({"patch": "W10="}, "response.patch but not response.patchType"),
        ({"patchType": "Merge", "patch": "W10="}, 'unsupported patch type "Merge"'),
        ({"uid": "other"}, 'got "other"'),
    ],
)
async def test_invalid_webhook_response_is_a_failed_call(
    http: Http, webhook: Webhook, answer: dict[str, str], told: str
) -> None:
    await mutating(http, webhook)
    webhook.answer |= answer

    status, refusal, _ = await http("POST", RESOURCE_CLAIMS.path("default"), claim())

    assert status == 500
    assert told in refusal["message"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"sideEffects": "Some"}, "sideEffects"),
        ({"sideEffects": None}, "sideEffects"),
        ({"timeoutSeconds": 60}, "timeoutSeconds"),
        ({"admissionReviewVersions": ["v2"]}, "admissionReviewVersions"),
        ({"name": "check"}, "name"),
        ({"failurePolicy": "Maybe"}, "failurePolicy"),
        ({"clientConfig": {"url": "http://example.com"}}, "clientConfig.url"),
        ({"clientConfig": {}}, "clientConfig"),
        ({"clientConfig": {"service": {"namespace": "a", "name": "b", "path": "c"}}}, "clientConfig.service.path"),
        ({"rules": [RULE | {"operations": ["EAT"]}]}, "rules[0].operations[0]"),
        ({"rules": [RULE | {"resources": ["*", "a"]}]}, "rules[0].resources"),
    ],
)  # fmt: skip
async def test_invalid_webhook_configuration_is_rejected(
    http: Http, webhook: Webhook, change: dict[str, Any], field: str
) -> None:
    status, answer, _ = await http("POST", MUTATING, webhook.configuration(**change) | {
        "kind": "MutatingWebhookConfiguration"})  # fmt: skip

    assert status == 422
    assert field in [cause["field"].removeprefix("webhooks[0].") for cause in answer["details"]["causes"]]


def conditions(*expressions: str, **more: Any) -> dict[str, Any]:
    """Match conditions, each with a name."""
    found = [{"name": f"condition-{i}", "expression": text} for i, text in enumerate(expressions)]
    return {"matchConditions": found, **more}


@pytest.mark.parametrize(
    ("expressions", "asked"),
    [
        (["object.metadata.name == 'claim-1'"], True),
        (["object.metadata.name == 'claim-2'"], False),
        (["request.operation == 'CREATE'", "oldObject == null"], True),
        (["request.operation == 'CREATE'", "oldObject != null"], False),
        (["authorizer.group('').resource('pods').check('get').allowed()"], True),
        # one that is false decides, whatever goes wrong in another
        (["object.metadata.labels.oven == 'left'", "object.metadata.name == 'claim-2'"], False),
    ],
)
async def test_a_webhook_is_asked_only_where_its_conditions_hold(
    expressions: list[str], asked: bool, client: Client, webhook: Webhook
) -> None:
    await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.configuration(**conditions(*expressions)))

    await client.create(RESOURCE_CLAIMS, claim())

    assert bool(webhook.asked) is asked


async def test_failing_match_conditions_fail_closed_unless_they_may_be_ignored(
    client: Client, webhook: Webhook
) -> None:
    fails = conditions("object.metadata.labels.oven == 'left'")
    await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.configuration(**fails))
    with pytest.raises(KubeError) as refused:
        await client.create(RESOURCE_CLAIMS, claim())
    await client.delete(VALIDATING_WEBHOOK_CONFIGURATIONS, "check")
    await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.configuration(**fails, failurePolicy="Ignore"))
    await client.create(RESOURCE_CLAIMS, claim())

    assert refused.value.status == 403
    text = "expression 'object.metadata.labels.oven == 'left'' resulted in error: no such key: labels"
    assert f'resourceclaims.resource.k8s.io "claim-1" is forbidden: {text}' in str(refused.value)
    assert webhook.asked == []


async def test_match_conditions_see_the_result_of_the_previous_webhook(
    http: Http, client: Client, webhook: Webhook
) -> None:
    await mutating(http, webhook, **conditions("!has(object.metadata.labels)"))
    webhook.patch({"op": "add", "path": "/metadata/labels", "value": {"oven": "left"}})
    await client.create(RESOURCE_CLAIMS, claim())
    made = await client.get(RESOURCE_CLAIMS, "claim-1", "default")
    assert made["metadata"]["labels"] == {"oven": "left"}
    await client.update(RESOURCE_CLAIMS, made)
    assert len(webhook.asked) == 1


async def test_conditions_that_do_not_compile_are_refused(client: Client, webhook: Webhook) -> None:
    bad = webhook.configuration(**conditions("object.metadata.name ==", "'text'", ""))
    with pytest.raises(KubeError) as refused:
        await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, bad)
    told = str(refused.value)
    assert "webhooks[0].matchConditions[0].expression: Invalid value" in told
    assert "webhooks[0].matchConditions[1].expression: Invalid value: \"'text'\": must evaluate to bool" in told
    assert "webhooks[0].matchConditions[2].expression: Required value]" in told
