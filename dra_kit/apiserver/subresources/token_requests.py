"""The subresource ``token`` of service accounts.

Source: Kubernetes 1.37 ``pkg/registry/core/serviceaccount/storage/token.go`` and
``pkg/apis/authentication/validation``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from dra_kit.apiserver.answers import bad_request, conflict, invalid, not_found
from dra_kit.apiserver.api import Answer, Api, Attributes, Request
from dra_kit.apiserver.authentication.tokens import AUDIENCE, DEFAULT_SECONDS
from dra_kit.apiserver.kinds.kind import Kind
from dra_kit.apiserver.requests.requests import WriteOptions
from dra_kit.apiserver.storage import Stored
from dra_kit.kubernetes.resource.field_errors import invalid as invalid_field
from dra_kit.kubernetes.resource.schema.decode import TypeMismatch, decode
from dra_kit.kubernetes.values.json import Object

_GROUP: Final = "authentication.k8s.io"
_SHORTEST: Final = 600
_LONGEST: Final = 2**32
_TYPE: Final = "authentication/v1.TokenRequest"
_KIND: Final = Kind("", "serviceaccounts", "TokenRequest", True, {"v1": _TYPE})


async def request_token(api: Api, request: Request, stored: Stored, body: Object) -> Answer:
    """Create a token of a service account.

    Raises:
        Refusal: the request makes no sense, names a pod that does not use the account, or admission refuses it.
    """
    options = WriteOptions.parse(request.query, "CreateOptions", request.agent)
    context = api.context(request)
    account = stored.object
    namespace, name = account["metadata"]["namespace"], account["metadata"]["name"]
    try:
        given: Object = decode(body, _TYPE)
    except TypeMismatch as error:
        raise bad_request(f'TokenRequest in version "v1" cannot be handled as a TokenRequest: {error}') from None
    spec = given.get("spec") or {}
    spec["audiences"] = spec.get("audiences") or [AUDIENCE]
    spec["expirationSeconds"] = spec.get("expirationSeconds") or DEFAULT_SECONDS
    metadata = {**(given.get("metadata") or {}), "name": name, "namespace": namespace}
    asked: Object = {"kind": "TokenRequest", "apiVersion": f"{_GROUP}/v1", "metadata": metadata, "spec": spec}
    write = Attributes(api, _KIND, request, options.dry_run, "CREATE", asked, None)
    await api.admission.review(write, context.warnings)
    seconds = spec["expirationSeconds"]
    if not _SHORTEST <= seconds <= _LONGEST:
        text = "may not specify a duration less than 10 minutes"
        if seconds > _LONGEST:
            text = "may not specify a duration larger than 2^32 seconds"
        raise invalid(_GROUP, "TokenRequest", name, [invalid_field("spec.expirationSeconds", seconds, text)])
    pod, node = _bound(api, namespace, name, spec.get("boundObjectRef"))
    token, expires = api.tokens.issue(account, pod=pod, node=node, seconds=seconds, audiences=spec["audiences"])
    moment = datetime.fromtimestamp(expires, UTC).isoformat()[:19] + "Z"
    metadata = {**metadata, "creationTimestamp": context.now}
    status = {"token": token, "expirationTimestamp": moment}
    return Answer({**asked, "metadata": metadata, "status": status}, 201, warnings=context.warnings)


def _bound(api: Api, namespace: str, account: str, reference: Object | None) -> tuple[Object | None, Object | None]:
    """Return the pod or the node that a token is to be bound to."""
    if not reference:
        return None, None
    kind, name, uid = (reference.get(field, "") for field in ("kind", "name", "uid"))
    if kind not in {"Pod", "Node"}:
        raise bad_request(f"cannot bind token to object of type {kind}: only pods and nodes are known here")
    resource, key = ("pods", f"{namespace}/{name}") if kind == "Pod" else ("nodes", name)
    found = api.lookup(resource, key)
    if found is None:
        raise not_found("", resource, name)
    if uid and uid != found["metadata"]["uid"]:
        cause = f"the UID in the bound object reference ({uid}) does not match the UID in record. "
        raise conflict("", resource, name, f"{cause}The object might have been deleted and then recreated")
    if kind == "Node":
        return None, found
    if (found["spec"].get("serviceAccountName") or "default") != account:
        text = "cannot bind token for serviceaccount"
        raise bad_request(f'{text} "{account}" to pod running with different serviceaccount name.')
    return found, None
