"""Certificates of cert-manager: ``Certificate``, ``Issuer`` and ``ClusterIssuer``, and authorities in webhooks.

One authority, which exists as long as the sandbox, issues all certificates, whatever the issuer's type. They are issued
again when they are due, and when their Secret is deleted.

Source: cert-manager 1.18 ``pkg/apis/certmanager/v1``, ``pkg/controller/certificates``, ``pkg/controller/cainjector``,
``internal/pki/renewaltime.go``, ``internal/apis/certmanager/validation/certificate.go``.

The authority of the API server is in a ConfigMap of each namespace. Source: Kubernetes 1.37
``pkg/controller/certificates/rootcacertpublisher``.
"""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from msgspec import Meta, Struct, ValidationError, convert, field

from dra_kit.client.api import MERGE_PATCH, Client
from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
    SECRETS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Resource,
)
from dra_kit.errors import Conflict, Forbidden, NotFound
from dra_kit.kubernetes.resource.objects import ObjectKey, format_time, object_key
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.informers import SharedInformers, WorkQueue

if TYPE_CHECKING:
    import trustme

GROUP: Final = "cert-manager.io"
CERTIFICATES: Final = Resource(GROUP, "v1", "certificates", "Certificate", namespaced=True)
ISSUERS: Final = Resource(GROUP, "v1", "issuers", "Issuer", namespaced=True)
CLUSTER_ISSUERS: Final = Resource(GROUP, "v1", "clusterissuers", "ClusterIssuer", namespaced=False)
MUTATING_WEBHOOK_CONFIGURATIONS: Final = Resource(
    "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration",
    namespaced=False,
)  # fmt: skip
_INJECTED: Final = (
    VALIDATING_WEBHOOK_CONFIGURATIONS, MUTATING_WEBHOOK_CONFIGURATIONS, CUSTOM_RESOURCE_DEFINITIONS,
)  # fmt: skip
"""What authorities are written into."""
FOLLOWED: Final = (CERTIFICATES, ISSUERS, CLUSTER_ISSUERS, SECRETS, *_INJECTED)
"""What the controller follows."""
_DURATION: Final = dt.timedelta(days=90)
_DURATION_MIN: Final = dt.timedelta(hours=1)
_RENEW_BEFORE_MIN: Final = dt.timedelta(minutes=5)
_GO_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
_GO_PART: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|[hms])")
_GO_DURATION: Final = re.compile(rf"(?:{_GO_PART.pattern}){{1,8}}", re.ASCII)
_GO_SECONDS_MAX: Final = 2_562_047 * 3600  # 64 bits of nanoseconds
_PAUSE: Final = dt.timedelta(seconds=1)  # between two certificates for one Secret
_INJECT_FROM: Final = "cert-manager.io/inject-ca-from"
_INJECT_FROM_SECRET: Final = "cert-manager.io/inject-ca-from-secret"  # noqa: S105 - the name of an annotation
_CERTIFICATE_NAME: Final = "cert-manager.io/certificate-name"
_ALT_NAMES: Final = "cert-manager.io/alt-names"
_IP_SANS: Final = "cert-manager.io/ip-sans"


def new_authority() -> trustme.CA:
    """Return a certificate authority of its own."""
    import trustme  # slow to import: only clusters with certificates need it

    return trustme.CA()


def certificate_kinds() -> list[dict[str, Any]]:
    """Return CustomResourceDefinitions of the kinds, with any fields."""
    return [_definition(resource) for resource in (CERTIFICATES, ISSUERS, CLUSTER_ISSUERS)]


async def serve_certificate_kinds(client: Client) -> None:
    """Have the API server serve the kinds, unless it does.

    Raises:
        KubeError: the API server does not answer.
    """
    for definition in certificate_kinds():
        with suppress(Conflict):
            await client.create(CUSTOM_RESOURCE_DEFINITIONS, definition)


def _definition(resource: Resource) -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    condition = '.status.conditions[?(@.type == "Ready")]'
    return {
        "apiVersion": CUSTOM_RESOURCE_DEFINITIONS.api_version,
        "kind": CUSTOM_RESOURCE_DEFINITIONS.kind,
        "metadata": {"name": f"{resource.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {"kind": resource.kind, "plural": resource.plural, "singular": resource.kind.lower()},
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": schema, "status": schema}}},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": "Ready", "type": "string", "jsonPath": f"{condition}.status"},
                        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                    ],
                }
            ],
        },
    }


class Validity(Struct, frozen=True):
    """How long a certificate is valid, and when the next one is due."""

    begin: dt.datetime
    end: dt.datetime
    renewal: dt.datetime
    revision: int = 1

    @classmethod
    def of(cls, spec: Mapping[str, Any], now: dt.datetime, revision: int = 1) -> Self:
        """Return that of a certificate that is issued now, for the spec of a Certificate, as its n-th one.

        Raises:
            ValueError: a duration in it is invalid.
        """
        length = _duration(spec, "duration") or _DURATION
        before, percentage = _duration(spec, "renewBefore"), spec.get("renewBeforePercentage")
        if length < _DURATION_MIN:
            raise ValueError(f"spec.duration must be at least 1h, got {spec['duration']}")
        if before is not None and not _RENEW_BEFORE_MIN <= before < length:
            raise ValueError(f"spec.renewBefore must be at least 5m and below the duration, got {spec['renewBefore']}")
        if before is None and percentage is not None:
            if type(percentage) is not int or not 0 < percentage < 100:
                raise ValueError(f"spec.renewBeforePercentage must be between 0 and 100, got {percentage}")
            before = length * percentage / 100
        begin = now.replace(microsecond=0)
        end = begin + length
        return cls(begin, end, max(end - (before or length / 3), begin + _PAUSE).replace(microsecond=0), revision)

    @property
    def status(self) -> dict[str, Any]:
        """The fields of the status of a Certificate."""
        fields = {"notBefore": self.begin, "notAfter": self.end, "renewalTime": self.renewal}
        return {"revision": self.revision, **{name: format_time(moment) for name, moment in fields.items()}}


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _duration(spec: Mapping[str, Any], field: str) -> dt.timedelta | None:
    """Return a duration in Go's notation; None if there is none.

    Raises:
        ValueError: it is not a duration.
    """
    text = spec.get(field)
    if text is None:
        return None
    if not isinstance(text, str) or not _GO_DURATION.fullmatch(text):
        raise ValueError(f"spec.{field} must be a duration such as 2160h, got {text!r}")
    seconds = sum(float(number) * _GO_UNITS[unit] for number, unit in _GO_PART.findall(text))
    if seconds > _GO_SECONDS_MAX:
        raise ValueError(f"spec.{field} must be at most 2562047h, got {text}")
    return dt.timedelta(seconds=seconds)


class CertificateController:
    """Writes the Secret of each Certificate, and authorities into webhooks and definitions that ask for them."""

    def __init__(self, client: Client, informers: SharedInformers) -> None:
        self._client = client
        self._informers = informers
        self._authority: trustme.CA | None = None
        self._issued: dict[ObjectKey, Validity] = {}  # by Certificate
        self._timers: dict[ObjectKey, asyncio.TimerHandle] = {}
        self._queue: WorkQueue[tuple[Resource, ObjectKey]] = WorkQueue("certificates", self._sync)
        for resource in FOLLOWED:
            informers.listen(resource, self._listener(resource))

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            await self._queue.run()
        finally:
            for timer in self._timers.values():
                timer.cancel()

    def _listener(self, resource: Resource) -> Any:
        def changed(change: ObjectChange) -> None:
            key = object_key(change.object)
            if resource is SECRETS:
                self._secret_changed(*key)
            elif change.type != "DELETED":
                self._queue.add((resource, key))
            elif resource is CERTIFICATES:
                self._forget(key)
            if resource in {ISSUERS, CLUSTER_ISSUERS}:  # certificates may have waited for it
                for certificate in self._informers.objects(CERTIFICATES):
                    self._queue.add((CERTIFICATES, certificate))

        return changed

    def _secret_changed(self, namespace: str, name: str) -> None:
        """Look again at the certificates whose Secret it is, and at what an authority of it is written into."""
        for key, certificate in self._informers.objects(CERTIFICATES).items():
            if key[0] == namespace and _secret_name(certificate) == name:
                self._queue.add((CERTIFICATES, key))
        for resource in _INJECTED:
            for key, item in self._informers.objects(resource).items():
                if (item["metadata"].get("annotations") or {}).get(_INJECT_FROM_SECRET) == f"{namespace}/{name}":
                    self._queue.add((resource, key))

    def _forget(self, key: ObjectKey) -> None:
        self._issued.pop(key, None)
        if timer := self._timers.pop(key, None):
            timer.cancel()

    async def _sync(self, item: tuple[Resource, ObjectKey]) -> None:
        resource, key = item
        found = self._informers.objects(resource).get(key)
        if found is None:
            return
        with suppress(NotFound):  # deleted meanwhile
            if resource is CERTIFICATES:
                await self._certificate(key, found)
            elif resource in {ISSUERS, CLUSTER_ISSUERS}:
                await self._set_ready(resource, found, ready=True, reason="IsReady", message="Signing CA verified")
            else:
                await self._inject(resource, found)

    async def _certificate(self, key: ObjectKey, certificate: ObjectView) -> None:
        try:
            convert(certificate, _Certificate)
        except ValidationError as error:  # cert-manager's schema rejects it; no schema is enforced here
            message = f"The Certificate is invalid: {error}"
            await self._set_ready(CERTIFICATES, certificate, ready=False, reason="Invalid", message=message)
            return
        spec = certificate["spec"]
        reference = spec["issuerRef"]
        kind = reference.get("kind") or ISSUERS.kind
        issuers = CLUSTER_ISSUERS if kind == CLUSTER_ISSUERS.kind else ISSUERS
        issuer = (key[0] if issuers.namespaced else "", reference["name"])
        if issuer not in self._informers.objects(issuers):
            message = f'Referenced "{kind}" not found: {kind.lower()}.{GROUP} "{issuer[1]}" not found'
            await self._set_ready(CERTIFICATES, certificate, ready=False, reason="IssuerNotFound", message=message)
            return
        if key != self._owner(key[0], spec["secretName"]):
            message = "Another Certificate has the same secretName"
            await self._set_ready(CERTIFICATES, certificate, ready=False, reason="DuplicateSecretName", message=message)
            return
        former = self._issued.get(key)
        try:
            # what the informer knows of the status may be older
            validity = (
                Validity.of(spec, former.begin, former.revision)
                if former is not None
                else Validity.of(spec, _now(), int((certificate.get("status") or {}).get("revision") or 0))
            )
        except ValueError as error:
            await self._set_ready(CERTIFICATES, certificate, ready=False, reason="Invalid", message=str(error))
            return
        is_due = former is not None and (_now() >= validity.renewal or validity.end != former.end)
        with suppress(Forbidden):  # the namespace is just being deleted
            if is_due or not await self._has_secret(certificate):
                validity = Validity.of(spec, _now(), validity.revision + 1)
                await self._write_secret(certificate, validity)
                self._await_renewal(key, validity)
            elif former is not None:  # it was not issued by another sandbox
                self._await_renewal(key, validity)
        message = "Certificate is up to date and has not expired"
        await self._set_ready(CERTIFICATES, certificate, ready=True, reason="Ready", message=message)
        for resource in _INJECTED:
            for name in self._informers.objects(resource):
                self._queue.add((resource, name))

    def _owner(self, namespace: str, secret: str) -> ObjectKey:
        """Return the oldest Certificate with a Secret; two would overwrite it in turn."""
        found = self._informers.objects(CERTIFICATES).items()
        return min(
            (item["metadata"]["creationTimestamp"], key)
            for key, item in found
            if key[0] == namespace and _secret_name(item) == secret
        )[1]

    def _await_renewal(self, key: ObjectKey, validity: Validity) -> None:
        self._forget(key)
        self._issued[key] = validity
        seconds = (validity.renewal - _now()).total_seconds()
        self._timers[key] = asyncio.get_running_loop().call_later(seconds, self._queue.add, (CERTIFICATES, key))

    async def _has_secret(self, certificate: ObjectView) -> bool:
        """Return whether there is a Secret for the names of a certificate."""
        try:
            known = await self._client.get(
                SECRETS, certificate["spec"]["secretName"], certificate["metadata"]["namespace"]
            )
        except NotFound:
            return False
        had, wanted = known["metadata"].get("annotations") or {}, _annotations(certificate)
        return all(had.get(name) == text for name, text in wanted.items()) and "tls.crt" in (known.get("data") or {})

    async def _write_secret(self, certificate: ObjectView, validity: Validity) -> None:
        """Write the Secret of a certificate."""
        spec, namespace = certificate["spec"], certificate["metadata"]["namespace"]
        labels = {
            **((spec.get("secretTemplate") or {}).get("labels") or {}),
            "controller.cert-manager.io/fao": "true",
        }
        metadata = {"annotations": _annotations(certificate), "labels": labels}
        data = {key: base64.b64encode(text).decode() for key, text in self._issue(spec, validity).items()}
        secret = {"metadata": {"name": spec["secretName"], **metadata}, "type": "kubernetes.io/tls", "data": data}
        try:
            await self._client.create(SECRETS, secret, namespace)
        except Conflict:
            change = {"metadata": metadata, "data": data}
            await self._client.patch(SECRETS, spec["secretName"], change, namespace, content_type=MERGE_PATCH)

    def _issue(self, spec: Mapping[str, Any], validity: Validity) -> dict[str, bytes]:
        """Return the files of a certificate; that of an authority itself has no end."""
        if self._authority is None:
            self._authority = new_authority()
        root = self._authority.cert_pem.bytes()
        if spec.get("isCA"):
            child = self._authority.create_child_ca()
            return {"tls.crt": child.cert_pem.bytes(), "tls.key": child.private_key_pem.bytes(), "ca.crt": root}
        names: Sequence[str] = [*(spec.get("dnsNames") or ()), *(spec.get("ipAddresses") or ())]
        common = spec.get("commonName")
        issued = self._authority.issue_cert(
            *(names or [common or "localhost"]),
            common_name=common,
            not_before=validity.begin,
            not_after=validity.end,
        )
        chain = b"".join(item.bytes() for item in issued.cert_chain_pems)
        return {"tls.crt": chain, "tls.key": issued.private_key_pem.bytes(), "ca.crt": root}

    async def _set_ready(
        self, resource: Resource, found: ObjectView, *, ready: bool, reason: str, message: str
    ) -> None:
        namespace, name = object_key(found)
        wanted = {
            "type": "Ready",
            "status": "True" if ready else "False",
            "reason": reason,
            "message": message,
            "observedGeneration": found["metadata"].get("generation", 1),
        }
        validity = self._issued.get((namespace, name)) if resource is CERTIFICATES else None
        status = found.get("status") or {}
        fields = validity.status if validity is not None else {}
        new: dict[str, Any] = {} if fields.items() <= status.items() else dict(fields)
        if not any(wanted.items() <= condition.items() for condition in status.get("conditions") or []):
            new["conditions"] = [{**wanted, "lastTransitionTime": format_time()}]
        if new:
            await self._client.patch(
                resource, name, {"status": new}, namespace or None, content_type=MERGE_PATCH, subresource="status"
            )

    async def _inject(self, resource: Resource, found: ObjectView) -> None:
        """Write the authority that an object asks for into its webhooks, or into the one that converts its kind."""
        annotations = found["metadata"].get("annotations") or {}
        if place := annotations.get(_INJECT_FROM):
            namespace, _, name = place.partition("/")
            certificate = self._informers.objects(CERTIFICATES).get((namespace, name))
            secret = _secret_name(certificate or {})
            if not secret:
                return  # it comes back when there is one
        elif place := annotations.get(_INJECT_FROM_SECRET):
            namespace, _, secret = place.partition("/")
        else:
            return
        data = (await self._client.get(SECRETS, secret, namespace)).get("data") or {}
        bundle = data.get("ca.crt")
        changed = _with_authority(resource, found, bundle) if bundle else found
        if changed != found:
            await self._client.update(resource, changed)


class _IssuerReference(Struct):
    name: str
    kind: str | None = None


class _SecretTemplate(Struct):
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class _Spec(Struct, rename="camel"):
    secret_name: Annotated[str, Meta(min_length=1)]
    issuer_ref: _IssuerReference
    common_name: str | None = None
    dns_names: list[str] | None = None
    ip_addresses: list[str] | None = None
    is_ca: bool | None = field(name="isCA", default=None)
    secret_template: _SecretTemplate | None = None


class _Certificate(Struct):
    """The types of what is read of a Certificate, but for what :class:`Validity` checks."""

    spec: _Spec


def _secret_name(certificate: ObjectView) -> str:
    """Return the name of a certificate's Secret; empty if it has none, whatever there is instead."""
    spec = certificate.get("spec")
    name = spec.get("secretName") if isinstance(spec, Mapping) else None
    return name if isinstance(name, str) else ""


def _annotations(certificate: ObjectView) -> dict[str, str]:
    """Return the annotations of a certificate's Secret."""
    spec = certificate["spec"]
    return {
        **((spec.get("secretTemplate") or {}).get("annotations") or {}),
        _CERTIFICATE_NAME: certificate["metadata"]["name"],
        _ALT_NAMES: ",".join(spec.get("dnsNames") or ()),
        _IP_SANS: ",".join(spec.get("ipAddresses") or ()),
    }


def _with_authority(resource: Resource, found: ObjectView, bundle: str) -> ObjectView:
    """Return an object whose webhooks have an authority."""
    if resource is not CUSTOM_RESOURCE_DEFINITIONS:
        webhooks = found.get("webhooks") or []
        return {
            **found,
            "webhooks": [{**item, "clientConfig": {**item["clientConfig"], "caBundle": bundle}} for item in webhooks],
        }
    conversion = found["spec"].get("conversion") or {}
    if conversion.get("strategy") != "Webhook":
        return found
    webhook = conversion.get("webhook") or {}
    webhook = {**webhook, "clientConfig": {**(webhook.get("clientConfig") or {}), "caBundle": bundle}}
    return {**found, "spec": {**found["spec"], "conversion": {**conversion, "webhook": webhook}}}


NAME: Final = "kube-root-ca.crt"
_DESCRIPTION: Final = "kubernetes.io/description"
_TEXT: Final = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the "
    "internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes "
    "clusters."
)


class RootCertificatePublisher:
    """Creates the ConfigMap, and restores it when it is changed or deleted.

    Args:
        authority: certificates as PEM.
    """

    def __init__(self, client: Client, informers: SharedInformers, authority: str) -> None:
        self._client = client
        self._data = {"ca.crt": authority}
        self._namespaces: Mapping[ObjectKey, Any] = informers.objects(NAMESPACES)
        self._known: Mapping[ObjectKey, Any] = informers.objects(CONFIG_MAPS)
        self._queue: WorkQueue[str] = WorkQueue("root certificates", self._sync)
        informers.listen(NAMESPACES, self._namespace_changed)
        informers.listen(CONFIG_MAPS, self._config_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._queue.run()

    def _namespace_changed(self, change: ObjectChange) -> None:
        if change.type != "DELETED":
            self._queue.add(change.object["metadata"]["name"])

    def _config_changed(self, change: ObjectChange) -> None:
        if change.object["metadata"]["name"] == NAME:
            self._queue.add(change.object["metadata"]["namespace"])

    async def _sync(self, namespace: str) -> None:
        home = self._namespaces.get(("", namespace))
        if home is None or "deletionTimestamp" in home["metadata"]:
            return
        found = self._known.get((namespace, NAME))
        if found is None:
            metadata = {"name": NAME, "annotations": {_DESCRIPTION: _TEXT}}
            # the namespace is just being deleted, or the informer does not know of the ConfigMap yet
            with suppress(NotFound, Forbidden, Conflict):
                await self._client.create(CONFIG_MAPS, {"metadata": metadata, "data": self._data}, namespace)
            return
        annotations = found["metadata"].get("annotations") or {}
        if found.get("data") == self._data and annotations.get(_DESCRIPTION):
            return
        metadata = {**found["metadata"], "annotations": {**annotations, _DESCRIPTION: _TEXT}}
        await self._client.update(CONFIG_MAPS, {**found, "metadata": metadata, "data": self._data})
