"""Certificates of cert-manager: ``Certificate``, ``Issuer`` and ``ClusterIssuer``, and authorities in webhooks.

One authority, which exists as long as the sandbox, issues all certificates, whatever the issuer's type.

Source: cert-manager 1.18 ``pkg/apis/certmanager/v1``, ``pkg/controller/certificates``, ``pkg/controller/cainjector``.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from dra_kit.client.api import MERGE_PATCH, Client
from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    SECRETS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Resource,
)
from dra_kit.errors import Conflict, NotFound
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
FOLLOWED: Final = (
    CERTIFICATES, ISSUERS, CLUSTER_ISSUERS, VALIDATING_WEBHOOK_CONFIGURATIONS, MUTATING_WEBHOOK_CONFIGURATIONS,
)  # fmt: skip
"""What the controller follows."""
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


class CertificateController:
    """Writes the Secret of each Certificate, and authorities into webhook configurations that ask for them."""

    def __init__(self, client: Client, informers: SharedInformers) -> None:
        self._client = client
        self._informers = informers
        self._authority: trustme.CA | None = None
        self._queue: WorkQueue[tuple[Resource, ObjectKey]] = WorkQueue("certificates", self._sync)
        for resource in FOLLOWED:
            informers.listen(resource, self._listener(resource))

    async def run(self) -> None:
        """Work until cancelled."""
        await self._queue.run()

    def _listener(self, resource: Resource) -> Any:
        def changed(change: ObjectChange) -> None:
            if change.type != "DELETED":
                self._queue.add((resource, object_key(change.object)))
            if resource in {ISSUERS, CLUSTER_ISSUERS}:  # certificates may have waited for it
                for key in self._informers.objects(CERTIFICATES):
                    self._queue.add((CERTIFICATES, key))

        return changed

    async def _sync(self, item: tuple[Resource, ObjectKey]) -> None:
        resource, key = item
        found = self._informers.objects(resource).get(key)
        if found is None:
            return
        with suppress(NotFound):  # deleted meanwhile
            if resource is CERTIFICATES:
                await self._certificate(found)
            elif resource in {ISSUERS, CLUSTER_ISSUERS}:
                await self._set_ready(resource, found, ready=True, reason="IsReady", message="Signing CA verified")
            else:
                await self._inject(resource, found)

    async def _certificate(self, certificate: ObjectView) -> None:
        reference = certificate["spec"].get("issuerRef") or {}
        kind = reference.get("kind") or ISSUERS.kind
        issuers = CLUSTER_ISSUERS if kind == CLUSTER_ISSUERS.kind else ISSUERS
        namespace = certificate["metadata"]["namespace"]
        key = (namespace if issuers.namespaced else "", reference.get("name", ""))
        if key not in self._informers.objects(issuers):
            message = f'Referenced "{kind}" not found: {kind.lower()}.{GROUP} "{key[1]}" not found'
            await self._set_ready(CERTIFICATES, certificate, ready=False, reason="IssuerNotFound", message=message)
            return
        await self._write_secret(certificate)
        message = "Certificate is up to date and has not expired"
        await self._set_ready(CERTIFICATES, certificate, ready=True, reason="Ready", message=message)
        for resource in (VALIDATING_WEBHOOK_CONFIGURATIONS, MUTATING_WEBHOOK_CONFIGURATIONS):
            for name in self._informers.objects(resource):
                self._queue.add((resource, name))

    async def _write_secret(self, certificate: ObjectView) -> None:
        """Write the Secret of a certificate, unless it has one for these names."""
        spec, metadata = certificate["spec"], certificate["metadata"]
        namespace, name = metadata["namespace"], spec["secretName"]
        template = spec.get("secretTemplate") or {}
        annotations = {
            **(template.get("annotations") or {}),
            _CERTIFICATE_NAME: metadata["name"],
            _ALT_NAMES: ",".join(spec.get("dnsNames") or ()),
            _IP_SANS: ",".join(spec.get("ipAddresses") or ()),
        }
        try:
            known = await self._client.get(SECRETS, name, namespace)
        except NotFound:
            known = None
        if known is not None:
            had = known["metadata"].get("annotations") or {}
            if all(had.get(key) == text for key, text in annotations.items()) and "tls.crt" in (
                known.get("data") or {}
            ):
                return
        data = {key: base64.b64encode(text).decode() for key, text in self._issue(spec).items()}
        labels = {**(template.get("labels") or {}), "controller.cert-manager.io/fao": "true"}
        secret = {
            "metadata": {"name": name, "annotations": annotations, "labels": labels},
            "type": "kubernetes.io/tls",
            "data": data,
        }
        if known is None:
            await self._client.create(SECRETS, secret, namespace)
        else:
            change = {"metadata": {"annotations": annotations, "labels": labels}, "data": data}
            await self._client.patch(SECRETS, name, change, namespace, content_type=MERGE_PATCH)

    def _issue(self, spec: Mapping[str, Any]) -> dict[str, bytes]:
        """Return the files of a certificate."""
        if self._authority is None:
            self._authority = new_authority()
        root = self._authority.cert_pem.bytes()
        if spec.get("isCA"):
            child = self._authority.create_child_ca()
            return {"tls.crt": child.cert_pem.bytes(), "tls.key": child.private_key_pem.bytes(), "ca.crt": root}
        names: Sequence[str] = [*(spec.get("dnsNames") or ()), *(spec.get("ipAddresses") or ())]
        common = spec.get("commonName")
        issued = self._authority.issue_cert(*(names or [common or "localhost"]), common_name=common)
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
        conditions = (found.get("status") or {}).get("conditions") or []
        if any(wanted.items() <= condition.items() for condition in conditions):
            return
        status = {"status": {"conditions": [{**wanted, "lastTransitionTime": format_time()}]}}
        await self._client.patch(
            resource, name, status, namespace or None, content_type=MERGE_PATCH, subresource="status"
        )

    async def _inject(self, resource: Resource, configuration: ObjectView) -> None:
        """Write the authority that a configuration asks for into its webhooks."""
        annotations = configuration["metadata"].get("annotations") or {}
        if place := annotations.get(_INJECT_FROM):
            namespace, _, name = place.partition("/")
            certificate = self._informers.objects(CERTIFICATES).get((namespace, name))
            if certificate is None:
                return  # it comes back when there is one
            secret = certificate["spec"]["secretName"]
        elif place := annotations.get(_INJECT_FROM_SECRET):
            namespace, _, secret = place.partition("/")
        else:
            return
        data = (await self._client.get(SECRETS, secret, namespace)).get("data") or {}
        bundle = data.get("ca.crt")
        webhooks = configuration.get("webhooks") or []
        if not bundle or all(item["clientConfig"].get("caBundle") == bundle for item in webhooks):
            return
        changed = [{**item, "clientConfig": {**item["clientConfig"], "caBundle": bundle}} for item in webhooks]
        await self._client.update(resource, {**configuration, "webhooks": changed})
