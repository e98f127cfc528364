"""Defaults of workloads and definitions, and rules of Secrets. The verdicts were measured on kube-apiserver 1.37.1."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.apiserver.conftest import Http, Object, definition, pod

WEBHOOK = {"conversionReviewVersions": ["v1"], "clientConfig": {"service": {"namespace": "a", "name": "b"}}}
ROLLING = {"maxUnavailable": 1, "maxSurge": 0}
QUARTER = {"maxUnavailable": "25%", "maxSurge": "25%"}
ORDERED = {"partition": 0, "maxUnavailable": 1}
TYPE: Object = {"type": "RollingUpdate"}


async def workload(http: Http, kind: str, **spec: Any) -> tuple[int, Object]:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod()["spec"]}
    whole = {"selector": {"matchLabels": {"a": "b"}}, "template": template, **spec}
    body = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "one"}, "spec": whole}
    code, answer, _ = await http("POST", f"/apis/apps/v1/namespaces/default/{kind.lower()}s", body)
    return code, answer


@pytest.mark.parametrize(
    ("kind", "field", "given", "expected"),
    [
        ("DaemonSet", "updateStrategy", None, TYPE | {"rollingUpdate": ROLLING}),
        ("DaemonSet", "updateStrategy", {}, TYPE | {"rollingUpdate": ROLLING}),
        ("DaemonSet", "updateStrategy", TYPE, TYPE | {"rollingUpdate": ROLLING}),
        ("DaemonSet", "updateStrategy", {"rollingUpdate": {"maxUnavailable": 1}}, TYPE | {"rollingUpdate": ROLLING}),
        ("DaemonSet", "updateStrategy", {"type": "OnDelete"}, {"type": "OnDelete"}),
        ("Deployment", "strategy", {}, TYPE | {"rollingUpdate": QUARTER}),
        ("Deployment", "strategy", TYPE, TYPE | {"rollingUpdate": QUARTER}),
        ("Deployment", "strategy", {"type": "Recreate"}, {"type": "Recreate"}),
        ("StatefulSet", "updateStrategy", {}, TYPE | {"rollingUpdate": ORDERED}),
        ("StatefulSet", "updateStrategy", TYPE, TYPE),
        ("StatefulSet", "updateStrategy", TYPE | {"rollingUpdate": {}}, TYPE | {"rollingUpdate": ORDERED}),
        ("StatefulSet", "updateStrategy", {"type": "OnDelete"}, {"type": "OnDelete"}),
    ],
)
async def test_rolling_update_is_filled_in(http: Http, kind: str, field: str, given: Any, expected: Object) -> None:
    code, answer = await workload(http, kind, **({} if given is None else {field: given}))

    assert (code, answer["spec"][field]) == (201, expected)


@pytest.mark.parametrize(
    ("rolling", "cause"),
    [
        ({"maxSurge": 1}, "maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero"),
        ({"maxUnavailable": 0}, "maxUnavailable: Required value: cannot be 0 when maxSurge is 0"),
    ],
)
async def test_rolling_update_of_a_daemon_set_goes_one_of_two_ways(http: Http, rolling: Object, cause: str) -> None:
    code, answer = await workload(http, "DaemonSet", updateStrategy={"rollingUpdate": rolling})

    path = "spec.updateStrategy.rollingUpdate"
    assert (code, answer["message"]) == (422, f'DaemonSet.apps "one" is invalid: {path}.{cause}')


async def oven(http: Http, conversion: Object) -> tuple[int, Object]:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    body = definition("Oven", version)
    body["spec"]["conversion"] = conversion
    code, answer, _ = await http("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
    return code, answer


CLIENT, REVIEWED = "spec.conversion.webhookClientConfig", "spec.conversion.conversionReviewVersions"
UNWANTED = "Forbidden: should not be set when strategy is not set to Webhook"


@pytest.mark.parametrize(
    ("conversion", "cause"),
    [
        ({}, "spec.conversion.strategy: Required value"),
        (
            {"strategy": "A"},
            'spec.conversion.strategy: Unsupported value: "A": supported values: "None", "Webhook"',
        ),
        (
            {"strategy": "Webhook"},
            f"[{CLIENT}: Required value: required when strategy is set to Webhook, {REVIEWED}: Required value]",
        ),
        ({"strategy": "None", "webhook": WEBHOOK}, f"[{CLIENT}: {UNWANTED}, {REVIEWED}: {UNWANTED}]"),
    ],
)
async def test_conversion_of_a_definition_is_checked(http: Http, conversion: Object, cause: str) -> None:
    name = "ovens.kitchen.example.com"
    code, answer = await oven(http, conversion)

    assert code == 422
    assert answer["message"] == f'CustomResourceDefinition.apiextensions.k8s.io "{name}" is invalid: {cause}'


async def test_conversion_webhook_of_a_definition_has_a_port(http: Http) -> None:
    code, answer = await oven(http, {"strategy": "Webhook", "webhook": WEBHOOK})

    assert code == 201
    assert answer["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["port"] == 443


def secret(**fields: Any) -> Object:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "one"}, **fields}


SYNTAX = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  "
    "or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"stringData": {"a/b": "x"}}, f'data[a/b]: Invalid value: "a/b": {SYNTAX}'),
        ({"data": {"..": ""}}, "data[..]: Invalid value: \"..\": must not be '..'"),
        ({"type": "kubernetes.io/ssh-auth"}, "data[ssh-privatekey]: Required value"),
    ],
)
async def test_keys_of_a_secret_are_checked(http: Http, fields: Object, cause: str) -> None:
    code, answer, _ = await http("POST", "/api/v1/namespaces/default/secrets", secret(**fields))

    assert (code, answer["message"]) == (422, f'Secret "one" is invalid: {cause}')


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"stringData": {"a": "y"}, "immutable": True}, "data: Forbidden: field is immutable when `immutable` is set"),
        ({"stringData": {"a": "x"}}, "immutable: Forbidden: field is immutable when `immutable` is set"),
        (
            {"stringData": {"a": "x"}, "immutable": True, "type": "b"},
            'type: Invalid value: "b": field is immutable',
        ),
    ],
)
async def test_immutable_secret_does_not_change(http: Http, fields: Object, cause: str) -> None:
    path = "/api/v1/namespaces/default/secrets"
    await http("POST", path, secret(stringData={"a": "x"}, immutable=True))
    code, answer, _ = await http("PUT", f"{path}/one", secret(**fields))

    assert (code, answer["message"]) == (422, f'Secret "one" is invalid: {cause}')


@pytest.mark.parametrize(
    ("plural", "kind", "field"), [("secrets", "Secret", "data"), ("configmaps", "ConfigMap", "binaryData")]
)
async def test_null_in_bytes_means_empty_bytes(http: Http, plural: str, kind: str, field: str) -> None:
    body = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "one"}, field: {"a": None}}
    code, answer, _ = await http("POST", f"/api/v1/namespaces/default/{plural}", body)

    assert (code, answer.get(field)) == (201, {"a": ""})
