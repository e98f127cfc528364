"""Writes of claims whose opaque parameters keep their bytes, as Kubernetes' own scheduler and controllers make them.

JSON does not have these bytes: the API server shows parameters with ``&``, white space or duplicate keys in another
form. So it reads and writes such objects in protobuf, as Go's clients do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from dra_kit.client.api import Client
from dra_kit.client.request import ClientRequest
from dra_kit.client.resources import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Resource
from dra_kit.kubernetes.resource.objects import object_key
from dra_kit.kubernetes.resource.schema.protobuf import decode_message, encode_message, pack, unpack
from dra_kit.kubernetes.values.json import ObjectView

_PROTOBUF: Final = "application/vnd.kubernetes.protobuf"


async def create_claim(
    client: Client, template: ObjectView, make: Callable[[ObjectView], dict[str, Any]]
) -> dict[str, Any]:
    """Create the claim that ``make`` returns for a template as read, and return it as stored.

    Raises:
        KubeError: the API server rejects the claim, or the template is gone.
    """
    if not _is_opaque(template["spec"]["spec"]):
        return await client.create(RESOURCE_CLAIMS, make(template))
    claim = make(await _read(client, RESOURCE_CLAIM_TEMPLATES, template))
    create = ClientRequest.of_collection("create", RESOURCE_CLAIMS, claim["metadata"]["namespace"], query={})
    return await _write(client, create, claim)


async def write_finalizers(client: Client, claim: ObjectView, finalizers: list[str]) -> dict[str, Any]:
    """Replace the finalizers of a claim as read, and return it as stored.

    The API server compares opaque parameters byte by byte, so other bytes would change the claim's immutable spec.

    Raises:
        KubeError: the API server rejects the change, Conflict if the claim has changed in the meantime.
    """
    namespace, name = object_key(claim)
    metadata = claim["metadata"]
    kept = {key: metadata[key] for key in ("uid", "resourceVersion") if key in metadata}
    changed = {**kept, "finalizers": finalizers}
    if not _is_opaque(claim["spec"]):
        return await client.patch(RESOURCE_CLAIMS, name, {"metadata": changed}, namespace)
    current = await _read(client, RESOURCE_CLAIMS, claim)
    current["metadata"] |= changed
    return await _write(client, ClientRequest.of_object("update", RESOURCE_CLAIMS, name, namespace), current)


def _is_opaque(spec: ObjectView) -> bool:
    return any("opaque" in entry for entry in spec.get("devices", {}).get("config") or ())


async def _read(client: Client, resource: Resource, obj: ObjectView) -> dict[str, Any]:
    """Return an object again, with the bytes of its parameters."""
    namespace, name = object_key(obj)
    call = replace(ClientRequest.of_object("get", resource, name, namespace), accept=_PROTOBUF)
    _, kind, message = unpack((await client.exchange(call)).text)
    decoded: dict[str, Any] = decode_message(message, f"resource/{resource.version}.{kind}")
    return decoded


async def _write(client: Client, call: ClientRequest, claim: ObjectView) -> dict[str, Any]:
    message = encode_message(claim, f"resource/{RESOURCE_CLAIMS.version}.{RESOURCE_CLAIMS.kind}")
    body = pack(RESOURCE_CLAIMS.api_version, RESOURCE_CLAIMS.kind, message)
    return (await client.exchange(replace(call, body=body, content_type=_PROTOBUF))).decode()
