"""Calls of mutating and validating webhooks.

No webhook is asked a second time about what a later one changed.

Source: k8s.io/api 0.37 ``admission/v1`` and k8s.io/apiserver 0.37 ``pkg/admission/plugin/webhook``.
"""

from __future__ import annotations

import base64
import json
import ssl
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import aiohttp
from msgspec import Struct
from msgspec.structs import replace

from dra_kit.apiserver import patches as json_patch
from dra_kit.apiserver.admission.requests import (
    BINDINGS,
    MUTATING,
    POLICIES,
    VALIDATING,
    VersionedWrite,
    admission_request,
    is_selected,
    matching_version,
)
from dra_kit.apiserver.api import AdmissionAttributes, Api
from dra_kit.apiserver.status_errors import StatusError, forbidden_object, internal
from dra_kit.apiserver.storage import StoredObject
from dra_kit.kubernetes.cel.admission import CompiledPolicy, compile_policy
from dra_kit.kubernetes.resource.new_object import apply_defaults
from dra_kit.kubernetes.resource.schema.types import TypeMismatch
from dra_kit.kubernetes.values.json import Object

_DEFAULT_SECONDS: Final = 10
_EXEMPT: Final = {VALIDATING, MUTATING, POLICIES, BINDINGS}


class _CallFailed(Exception):
    """A webhook that returns no valid response."""


def _review(write: AdmissionAttributes, api_version: str) -> Object:
    """Return ``AdmissionReview`` with the objects in a version."""
    subject = write.obj or write.old or {"metadata": {}}
    body = {
        "uid": str(uuid.uuid4()),
        **admission_request(write, api_version),
        "name": subject["metadata"].get("name") or write.request.target.name,
        "object": _wire(write, write.obj, api_version),
        "oldObject": _wire(write, write.old, api_version),
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": body}


def _patched(write: AdmissionAttributes, webhook: str, patch: list[Any], api_version: str) -> Object:
    """Return the object in storage version after a patch of one of its versions by a webhook.

    Raises:
        StatusError: the request has no object, or the result of the patch is not a valid object.
    """
    wire = _wire(write, write.obj, api_version)
    if wire is None:
        text = "attempted to modify the object, which is not supported for this operation"
        raise internal(f'admission webhook "{webhook}" {text}')
    try:
        patched = json_patch.json_patch(json_patch.before_patch(wire, as_maps=False), patch)
        obj = write.api.decoded(write.kind, json_patch.after_patch(patched), api_version)
    except (json_patch.PatchFailed, json_patch.PatchInvalid, TypeMismatch) as error:
        raise internal(str(error)) from None
    if api_version == write.kind.storage_api_version:
        apply_defaults(obj, write.kind.stored_type, write.api.release.version)
    return obj


def _wire(write: AdmissionAttributes, obj: Object | None, api_version: str) -> Object | None:
    return None if obj is None else write.api.wire(write.kind, obj, api_version)


class LocalWebhook(Struct, frozen=True):
    """A program that stands for the Service of webhooks; ``authority`` is that of its certificate, in PEM."""

    host: str
    port: int
    authority: str

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{self.host}:{self.port}"


LocalWebhooks = Callable[[str, str], LocalWebhook | None]
"""Returns the program that stands for a Service, by namespace and name; None for the pods behind it."""


class WebhookAdmission:
    """Calls the webhooks for each write: by their URL, or at an address behind their Service.

    Attributes:
        local: the programs that stand for Services.
    """

    def __init__(self) -> None:
        self.local: LocalWebhooks = lambda *_: None
        self._session: aiohttp.ClientSession | None = None
        # by resource and configuration
        self._conditions: dict[tuple[str, str], tuple[StoredObject, list[CompiledPolicy]]] = {}

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def mutate(self, write: AdmissionAttributes, warnings: list[str]) -> Object | None:
        """Return the object after all mutating webhooks, called in order; None for a deletion.

        Raises:
            StatusError: one refuses, or cannot be asked and must be.
        """
        obj = write.obj
        for webhook, conditions in self._configured(MUTATING, write):
            shown = replace(write, obj=None if obj is None else write.api.pruned(write.kind, obj))
            api_version = _asked_version(webhook, conditions, shown)
            if api_version is None:
                continue
            patch = await self._ask(webhook, shown, api_version, warnings, mutating=True)
            if patch:
                obj = _patched(shown, webhook["name"], patch, api_version)
        return obj

    async def validate(self, write: AdmissionAttributes, warnings: list[str]) -> None:
        """Call the validating webhooks.

        Raises:
            StatusError: one refuses, or cannot be asked and must be.
        """
        for webhook, conditions in self._configured(VALIDATING, write):
            if (api_version := _asked_version(webhook, conditions, write)) is not None:
                await self._ask(webhook, write, api_version, warnings)

    def _configured(self, resource: str, write: AdmissionAttributes) -> Iterator[tuple[Object, CompiledPolicy]]:
        """Yield the webhooks of all configurations by name, with their match conditions, each compiled once.

        None is called for the configurations themselves.
        """
        if write.kind.resource in _EXEMPT:
            return
        for name, stored in list(write.api.storage.items(resource)):
            webhooks = stored.object.get("webhooks") or ()
            known = self._conditions.get((resource, name))
            if known is None or known[0] is not stored:
                compiled = [compile_policy(webhook, write.api.release.version) for webhook in webhooks]
                known = self._conditions[resource, name] = stored, compiled
            yield from zip(webhooks, known[1], strict=True)

    async def _ask(
        self,
        webhook: Object,
        write: AdmissionAttributes,
        api_version: str,
        warnings: list[str],
        *,
        mutating: bool = False,
    ) -> list[Any]:
        """Call one webhook and return the operations of its JSON patch."""
        name = webhook["name"]
        try:
            response = await self._send(write.api, webhook, _review(write, api_version))
            patch = _patch(response) if mutating and response.get("allowed") else []
        except (_CallFailed, ValueError, KeyError, TypeError) as error:
            if webhook.get("failurePolicy") == "Ignore":
                return []
            text = f'failed calling webhook "{name}": {error}'
            raise internal(text, {"causes": [{"message": text}]}) from None
        warnings += [str(text) for text in response.get("warnings") or ()]
        if not response.get("allowed"):
            raise _denied(name, response.get("status") or {})
        return patch

    async def _send(self, api: Api, webhook: Object, review: Object) -> Mapping[str, Any]:
        """Post a review and return the response.

        Raises:
            _CallFailed: the webhook cannot be reached in time, or does not answer the question.
        """
        config = webhook["clientConfig"]
        context: ssl.SSLContext | None = None
        service = config.get("service")
        local = self.local(service["namespace"], service["name"]) if service else None
        if local is not None:
            context = ssl.create_default_context(cadata=local.authority)
        elif bundle := config.get("caBundle"):
            context = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
        if context is not None:
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Python 3.13 demands extensions that Go does not
        if self._session is None:
            # a connection that is kept would outlive a webhook that stops
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        seconds = webhook.get("timeoutSeconds") or _DEFAULT_SECONDS
        query = {"timeout": f"{seconds}s"}
        host = f"{service['name']}.{service['namespace']}.svc" if service else None
        shown = config.get("url") or f"https://{host}:{service.get('port', 443)}{_path(service)}"
        shown = f"{shown}?timeout={seconds}s"
        timeout = aiohttp.ClientTimeout(total=seconds)
        try:
            # no Service is routed here: the address is that of the pod; the certificate is the Service's
            address = "" if config.get("url") else local.address if local else _endpoint(api, service)
            url = config.get("url") or f"https://{address}{_path(service)}"
            async with self._session.post(
                url,
                params=query,
                json=review,
                ssl=context or True,
                timeout=timeout,
                server_hostname=None if local else host,
            ) as answer:
                answer.raise_for_status()
                body = await answer.read()
        except TimeoutError:
            raise _CallFailed(f'failed to call webhook: Post "{shown}": context deadline exceeded') from None
        except (aiohttp.ClientError, OSError) as error:
            raise _CallFailed(f'failed to call webhook: Post "{shown}": {error}') from None
        response: Mapping[str, Any] | None = json.loads(body).get("response")
        if response is None:
            raise _CallFailed("received invalid webhook response: webhook response was absent")
        uid, got = review["request"]["uid"], response.get("uid", "")
        if got != uid:
            raise _CallFailed(f'received invalid webhook response: expected response.uid="{uid}", got "{got}"')
        return response


def _path(service: Object) -> str:
    return str(service.get("path") or "/")


def _endpoint(api: Api, service: Object) -> str:
    """Return address and port of a ready endpoint behind the port of a Service.

    Raises:
        OSError: there is none; the texts are those of k8s.io/apiserver 0.37 ``pkg/util/proxy``.
    """
    namespace, name, number = service["namespace"], service["name"], service.get("port", 443)
    found = api.lookup("services", f"{namespace}/{name}")
    if found is None:
        raise OSError(f'service "{name}" not found')
    port = next((item for item in found["spec"].get("ports") or () if item["port"] == number), None)
    if port is None:
        raise OSError(f'no service port {number} found for service "{name}"')
    for item in api.listed("endpointslices.discovery.k8s.io", f"{namespace}/"):
        if (item["metadata"].get("labels") or {}).get("kubernetes.io/service-name") != name:
            continue
        named = (entry for entry in item.get("ports") or () if (entry.get("name") or "") == (port.get("name") or ""))
        ports = [entry["port"] for entry in named if entry.get("port")]
        for endpoint in item.get("endpoints") or ():
            addresses = endpoint.get("addresses") or ()
            if ports and addresses and (endpoint.get("conditions") or {}).get("ready", True):
                address = addresses[0]
                return f"[{address}]:{ports[0]}" if ":" in address else f"{address}:{ports[0]}"
    raise OSError(f'no endpoints available for service "{name}"')


def _patch(response: Mapping[str, Any]) -> list[Any]:
    """Return the operations of a response's patch.

    Raises:
        _CallFailed: the patch is not a JSON patch.
    """
    patch, type_ = response.get("patch"), response.get("patchType")
    if not patch and type_ is None:
        return []
    if not patch or type_ is None:
        given, missing = ("patch", "patchType") if patch else ("patchType", "patch")
        text = f"webhook returned response.{given} but not response.{missing}"
        raise _CallFailed(f"received invalid webhook response: {text}")
    if type_ != "JSONPatch":
        raise _CallFailed(f'unsupported patch type "{type_}"')
    operations = json.loads(base64.b64decode(patch))
    if not isinstance(operations, list):
        raise _CallFailed("received undecodable patch in webhook response: it is not a list of operations")
    return operations


def _asked_version(webhook: Object, conditions: CompiledPolicy, write: AdmissionAttributes) -> str | None:
    """Return the version of the object for a webhook; None if it is not called.

    Raises:
        StatusError: its match conditions cannot be evaluated, and it is to fail closed.
    """
    api_version = matching_version(webhook.get("rules") or (), webhook.get("matchPolicy"), write)
    if api_version is None or not is_selected(webhook, write):
        return None
    if not webhook.get("matchConditions"):
        return api_version
    matches = conditions.matches(VersionedWrite(write).request(api_version, None))
    if isinstance(matches, str):
        raise forbidden_object(write.kind.group, write.kind.plural, write.name, matches)
    return api_version if matches else None


def _denied(name: str, status: Object) -> StatusError:
    text = status.get("message") or status.get("reason")
    message = f'admission webhook "{name}" denied the request' + (f": {text}" if text else " without explanation")
    code = status.get("code") or 0
    return StatusError(max(code, 400), status.get("reason") or "", message, status.get("details"))
