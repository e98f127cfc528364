"""Certificates of cert-manager: renewal, lost Secrets, and authorities in definitions and webhooks."""

from __future__ import annotations

import base64
import datetime as dt
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dra_kit.client.api import Client
from dra_kit.client.resources import CUSTOM_RESOURCE_DEFINITIONS, SECRETS, VALIDATING_WEBHOOK_CONFIGURATIONS
from dra_kit.sandbox.control_plane import ControlPlane
from dra_kit.sandbox.controllers.certificates import (
    CERTIFICATES,
    ISSUERS,
    Validity,
    serve_certificate_kinds,
)
from tests.unit.sandbox.cluster.kubelet.polling import until

pytestmark = pytest.mark.processes  # several clusters: too slow for the default tests
NOW = dt.datetime(2026, 1, 1, 12, 0, 0, 500, tzinfo=dt.UTC)


class Issued:
    """A cluster with an issuer, and its certificates."""

    def __init__(self, plane: ControlPlane, client: Client) -> None:
        self.client = client
        self.api = plane.server.api

    async def create(self, name: str = "oven", **spec: Any) -> None:
        given = {"secretName": "oven-tls", "dnsNames": ["oven.default.svc"], "issuerRef": {"name": "own"}, **spec}
        body = {"apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": {"name": name}, "spec": given}
        await self.client.create(CERTIFICATES, body, "default")

    def secret(self) -> dict[str, str]:
        found = self.api.lookup("secrets", "default/oven-tls") or {}
        return dict(found.get("data") or {})

    def status(self, name: str = "oven") -> dict[str, Any]:
        found = self.api.lookup("certificates.cert-manager.io", f"default/{name}") or {}
        return dict(found.get("status") or {})

    def ready(self, name: str = "oven") -> dict[str, Any]:
        return dict((self.status(name).get("conditions") or [{}])[0])


@pytest.fixture
async def issued() -> AsyncIterator[Issued]:
    async with ControlPlane() as plane:
        client = await plane.connect("test")
        await serve_certificate_kinds(client)
        issuer = {"apiVersion": "cert-manager.io/v1", "kind": "Issuer", "metadata": {"name": "own"}, "spec": {}}
        await client.create(ISSUERS, issuer, "default")
        yield Issued(plane, client)


@pytest.mark.parametrize(
    ("spec", "length", "before"),
    [
        ({}, dt.timedelta(days=90), dt.timedelta(days=30)),
        ({"duration": "3h"}, dt.timedelta(hours=3), dt.timedelta(hours=1)),
        ({"duration": "2160h0m0s", "renewBefore": "360h"}, dt.timedelta(days=90), dt.timedelta(days=15)),
        ({"duration": "10h", "renewBeforePercentage": 50}, dt.timedelta(hours=10), dt.timedelta(hours=5)),
        ({"duration": "1h", "renewBefore": "59m59.9s"}, dt.timedelta(hours=1), dt.timedelta(seconds=3599)),
    ],
)
def test_certificates_are_due_before_they_end(spec: dict[str, Any], length: Any, before: Any) -> None:
    found = Validity.of(spec, NOW)
    assert found.begin == NOW.replace(microsecond=0)
    assert found.end - found.begin == length
    assert found.end - found.renewal == before


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"duration": "59m"}, "spec.duration must be at least 1h, got 59m"),
        ({"duration": "soon"}, "spec.duration must be a duration such as 2160h, got 'soon'"),
        ({"duration": ["1h"]}, "spec.duration must be a duration such as 2160h"),
        ({"duration": "999999999h"}, "spec.duration must be at most 2562047h, got 999999999h"),
        ({"renewBefore": "1m"}, "spec.renewBefore must be at least 5m and below the duration, got 1m"),
        ({"duration": "1h", "renewBefore": "1h"}, "below the duration, got 1h"),
        ({"renewBeforePercentage": 100}, "spec.renewBeforePercentage must be between 0 and 100, got 100"),
    ],
)
def test_invalid_durations_are_reported(spec: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Validity.of(spec, NOW)


async def test_certificate_is_valid_for_its_duration(issued: Issued, tmp_path: Path) -> None:
    await issued.create(duration="5h", renewBefore="1h")
    await until(lambda: issued.ready().get("status") == "True")

    status = issued.status()
    begin, end, renewal = (dt.datetime.fromisoformat(status[name]) for name in ("notBefore", "notAfter", "renewalTime"))
    assert (end - begin, end - renewal) == (dt.timedelta(hours=5), dt.timedelta(hours=1))
    assert status["revision"] == 1
    (tmp_path / "tls.crt").write_bytes(base64.b64decode(issued.secret()["tls.crt"]))
    decoded = ssl._ssl._test_decode_cert(str(tmp_path / "tls.crt"))  # type: ignore[attr-defined]
    assert ssl.cert_time_to_seconds(decoded["notAfter"]) == end.timestamp()


async def test_certificate_that_is_due_is_issued_again(issued: Issued) -> None:
    await issued.create(duration="1h", renewBefore="59m59s")
    await until(lambda: issued.status().get("revision") == 1)
    first = issued.secret()

    await until(lambda: issued.status().get("revision", 0) >= 2)

    assert issued.secret()["tls.crt"] != first["tls.crt"]
    assert issued.secret()["ca.crt"] == first["ca.crt"]


async def test_other_duration_needs_another_certificate(issued: Issued) -> None:
    await issued.create()
    await until(lambda: issued.ready().get("status") == "True")
    first = issued.secret()

    await issued.client.patch(CERTIFICATES, "oven", {"spec": {"duration": "2h"}}, "default")

    await until(lambda: issued.secret().get("tls.crt") != first["tls.crt"])


async def test_deleted_secret_is_written_again(issued: Issued) -> None:
    await issued.create()
    await until(lambda: issued.ready().get("status") == "True")
    first = issued.secret()

    await issued.client.delete(SECRETS, "oven-tls", "default")

    await until(lambda: issued.secret().get("tls.crt") not in {None, first["tls.crt"]})


async def test_emptied_secret_is_written_again(issued: Issued) -> None:
    await issued.create()
    await until(lambda: issued.ready().get("status") == "True")

    await issued.client.patch(SECRETS, "oven-tls", {"metadata": {"annotations": None}}, "default")

    await until(lambda: issued.status().get("revision", 0) >= 2)


async def test_only_the_oldest_of_two_certificates_gets_a_secret(issued: Issued) -> None:
    await issued.create("a")
    await until(lambda: issued.ready("a").get("status") == "True")
    first = issued.secret()
    await issued.create("b", dnsNames=["grill.default.svc"])

    await until(lambda: issued.ready("b").get("reason") == "DuplicateSecretName")
    assert issued.secret() == first


async def test_invalid_certificate_is_not_ready(issued: Issued) -> None:
    await issued.create(duration="1m")

    await until(lambda: issued.ready().get("reason") == "Invalid")

    assert issued.ready()["message"] == "spec.duration must be at least 1h, got 1m"
    assert not issued.secret()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "missing required field `spec`"),
        ({"spec": "own"}, "Expected `object`, got `str` - at `$.spec`"),
        ({"spec": {"issuerRef": {"name": "own"}}}, "missing required field `secretName` - at `$.spec`"),
        ({"spec": {"issuerRef": {}, "secretName": "a"}}, "missing required field `name` - at `$.spec.issuerRef`"),
        ({"spec": {"issuerRef": "own", "secretName": "a"}}, "got `str` - at `$.spec.issuerRef`"),
        ({"spec": {"issuerRef": {"name": "own"}, "secretName": 5}}, "got `int` - at `$.spec.secretName`"),
        ({"spec": {"issuerRef": {"name": "own"}, "secretName": "a", "dnsNames": "b"}}, "at `$.spec.dnsNames`"),
    ],
)
async def test_certificate_of_other_types_is_not_ready_and_ends_nothing(
    issued: Issued, given: dict[str, Any], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    odd = {"apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": {"name": "odd"}, **given}
    await issued.client.create(CERTIFICATES, odd, "default")
    await until(lambda: issued.ready("odd").get("reason") == "Invalid")

    await issued.create()  # its Secret is compared with that of each certificate

    await until(lambda: issued.ready().get("status") == "True")
    assert problem in issued.ready("odd")["message"]
    assert "has failed" not in caplog.text


async def test_authority_is_written_into_definitions_and_webhooks(issued: Issued) -> None:
    service = {"service": {"namespace": "default", "name": "oven"}}
    webhook = {"conversionReviewVersions": ["v1"], "clientConfig": service}
    schema = {"openAPIV3Schema": {"type": "object"}}
    for plural, conversion in (
        ("ovens", {"strategy": "Webhook", "webhook": webhook}),
        ("grills", {"strategy": "None"}),
    ):
        spec = {
            "group": "kitchen.example", "scope": "Namespaced", "conversion": conversion,
            "names": {"kind": plural.title(), "plural": plural},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        }  # fmt: skip
        metadata = {
            "name": f"{plural}.kitchen.example",
            "annotations": {"cert-manager.io/inject-ca-from": "default/oven"},
        }
        await issued.client.create(CUSTOM_RESOURCE_DEFINITIONS, {"metadata": metadata, "spec": spec})
    rule = {"apiGroups": ["x.example"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["x"]}
    hook = {"name": "oven.example.com", "rules": [rule], "sideEffects": "None", "admissionReviewVersions": ["v1"]}
    metadata = {"name": "oven", "annotations": {"cert-manager.io/inject-ca-from-secret": "default/oven-tls"}}
    body = {"metadata": metadata, "webhooks": [{**hook, "clientConfig": service}]}
    await issued.client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, body)
    await issued.create()
    await until(issued.secret)
    bundle = issued.secret()["ca.crt"]

    def written(resource: str, name: str, *path: str | int) -> Any:
        found: Any = issued.api.lookup(resource, name)
        for step in path:
            found = found.get(step, {}) if isinstance(found, dict) else found[step]
        return found

    definitions = CUSTOM_RESOURCE_DEFINITIONS.full_name
    oven = (definitions, "ovens.kitchen.example", "spec", "conversion", "webhook", "clientConfig", "caBundle")
    await until(lambda: written(*oven) == bundle)
    hooks = VALIDATING_WEBHOOK_CONFIGURATIONS.full_name
    await until(lambda: written(hooks, "oven", "webhooks", 0, "clientConfig", "caBundle") == bundle)
    assert written(definitions, "grills.kitchen.example", "spec", "conversion") == {"strategy": "None"}
