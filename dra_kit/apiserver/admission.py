"""Admission webhooks: calls to whoever a ValidatingWebhookConfiguration names.

Source: k8s.io/api 0.37 ``admission/v1`` and k8s.io/apiserver 0.37 ``pkg/admission/plugin/webhook``. Match conditions
count as fulfilled, so that a webhook may see more than it asked for, never less.
"""

from __future__ import annotations

import base64
import json
import ssl
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import aiohttp

from dra_kit.apiserver.answers import Refusal
from dra_kit.apiserver.kinds.strategy import Object
from dra_kit.apiserver.selectors import labels

if TYPE_CHECKING:
    from dra_kit.apiserver.verbs.write import Write

ServiceAddress: TypeAlias = Callable[[str, str, int], str]
"""The base URL of a Service: called with its namespace, name and port."""

_CONFIGURATIONS: Final = "validatingwebhookconfigurations.admissionregistration.k8s.io"
_EXEMPT: Final = {"validatingwebhookconfigurations", "mutatingwebhookconfigurations"}


@dataclass(frozen=True, slots=True)
class _Call:
    """One request for admission.

    Attributes:
        write: what is asked for.
        operation: CREATE, UPDATE or DELETE.
        obj: after it, in storage version; None for a deletion.
        old: before it, in storage version; None for a creation.
    """

    write: Write
    operation: str
    obj: Object | None
    old: Object | None

    def review(self, api_version: str) -> Object:
        """``AdmissionReview`` with the objects in a version."""
        write, kind = self.write, self.write.kind
        request, target = write.request, write.request.target

        def shown(version: str) -> tuple[Object, Object]:
            group, _, name = version.rpartition("/")
            where = {"group": group, "version": name}
            return {**where, "kind": kind.kind}, {**where, "resource": kind.plural}

        subject = self.obj or self.old or {"metadata": {}}
        version_kind, version_resource = shown(api_version)
        asked_kind, asked_resource = shown(target.api_version)
        body: Object = {
            "uid": str(uuid.uuid4()),
            "kind": version_kind, "resource": version_resource,
            "requestKind": asked_kind, "requestResource": asked_resource,
            "name": subject["metadata"].get("name") or target.name,
            "operation": self.operation,
            "userInfo": {"username": request.user, "groups": list(request.groups) or ["system:masters"]},
            "object": self._wire(self.obj, api_version), "oldObject": self._wire(self.old, api_version),
            "dryRun": write.options.dry_run,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": f"{self.operation.capitalize()}Options"},
        }  # fmt: skip
        if target.namespace:
            body["namespace"] = target.namespace
        if target.subresource:
            body["subResource"] = body["requestSubResource"] = target.subresource
        return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": body}

    def _wire(self, obj: Object | None, api_version: str) -> Object | None:
        return None if obj is None else self.write.api.wire(self.write.kind, obj, api_version)


class Admission:
    """Asks the webhooks about each write.

    Attributes:
        services: where the Services of webhooks are; None when they cannot be reached.
    """

    def __init__(self) -> None:
        self.services: ServiceAddress | None = None
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def review(self, write: Write, operation: str, obj: Object | None, old: Object | None) -> list[str]:
        """Asks every webhook whose rules match; returns their warnings.

        Raises:
            Refusal: one denies it, or cannot be asked and must be.
        """
        if write.kind.plural in _EXEMPT:
            return []
        call = _Call(write, operation, obj, old)
        warnings: list[str] = []
        for _, stored in write.api.storage.items(_CONFIGURATIONS):
            for webhook in stored.object.get("webhooks") or ():
                api_version = _matching_version(webhook, call)
                if api_version is not None and _selected(webhook, call):
                    warnings += await self._ask(webhook, call, api_version)
        return warnings

    async def _ask(self, webhook: Object, call: _Call, api_version: str) -> list[str]:
        name = webhook["name"]
        try:
            response = await self._send(webhook, call.review(api_version))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError) as error:
            if webhook.get("failurePolicy") == "Ignore":
                return []
            text = f'failed calling webhook "{name}": {error or type(error).__name__}'
            message = f"Internal error occurred: {text}"
            raise Refusal(500, "InternalError", message, {"causes": [{"message": text}]}) from None
        if not response.get("allowed"):
            raise _denied(name, response.get("status") or {})
        return [str(text) for text in response.get("warnings") or ()]

    async def _send(self, webhook: Object, review: Object) -> Mapping[str, Any]:
        config = webhook["clientConfig"]
        context: ssl.SSLContext | None = None
        if bundle := config.get("caBundle"):
            context = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Python 3.13 demands extensions that Go does not
        if self._session is None:
            # a connection that is kept would outlive a webhook that stops
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        timeout = aiohttp.ClientTimeout(total=webhook.get("timeoutSeconds") or 10)
        url = config.get("url") or self._service_url(config["service"])
        async with self._session.post(url, json=review, ssl=context or True, timeout=timeout) as answer:
            answer.raise_for_status()
            answered = json.loads(await answer.read())
        response: Mapping[str, Any] = answered["response"]
        if response.get("uid") != review["request"]["uid"]:
            raise ValueError("the answer's uid is not that of the request")
        return response

    def _service_url(self, service: Object) -> str:
        namespace, name, port = service["namespace"], service["name"], service.get("port", 443)
        if self.services is None:
            raise ValueError(f'service "{name}" in namespace {namespace} cannot be reached: no services are routed')
        return self.services(namespace, name, port) + (service.get("path") or "")


def _matching_version(webhook: Object, call: _Call) -> str | None:
    """The version in which a webhook wants to see the object, None when no rule matches."""
    kind, target = call.write.kind, call.write.request.target
    versions = [target.version]
    if webhook.get("matchPolicy", "Equivalent") == "Equivalent":
        versions += [version for version in kind.types if version != target.version]
    for version in versions:
        if any(_rule_matches(rule, call, version) for rule in webhook.get("rules") or ()):
            return kind.api_version(version)
    return None


def _rule_matches(rule: Object, call: _Call, version: str) -> bool:
    def has(field: str, value: str) -> bool:
        return bool({"*", value} & set(rule.get(field) or ()))

    kind, target = call.write.kind, call.write.request.target
    scope = rule.get("scope", "*")
    if scope != "*" and (scope == "Namespaced") != kind.namespaced:
        return False
    names = {"*/*", kind.plural if not target.subresource else f"{kind.plural}/{target.subresource}"}
    names |= {f"*/{target.subresource}", f"{kind.plural}/*"} if target.subresource else {"*", f"{kind.plural}/*"}
    return (
        has("operations", call.operation)
        and has("apiGroups", kind.group)
        and has("apiVersions", version)
        and bool(names & set(rule.get("resources") or ()))
    )


def _selected(webhook: Object, call: _Call) -> bool:
    kind, target = call.write.kind, call.write.request.target
    selector = labels.from_object(webhook.get("namespaceSelector"))
    if selector and kind.namespaced:
        namespace = call.write.api.lookup("namespaces", target.namespace)
        if namespace is not None and not selector.matches(namespace):
            return False
    objects = labels.from_object(webhook.get("objectSelector"))
    return not objects or any(objects.matches(obj) for obj in (call.obj, call.old) if obj is not None)


def _denied(name: str, status: Object) -> Refusal:
    text = status.get("message") or status.get("reason")
    message = f'admission webhook "{name}" denied the request' + (f": {text}" if text else " without explanation")
    code = status.get("code") or 0
    return Refusal(max(code, 400), status.get("reason") or "", message, status.get("details"))
