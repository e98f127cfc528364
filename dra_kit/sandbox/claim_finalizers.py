"""Writes of the finalizers of claims, as Kubernetes' own scheduler and controllers make them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from dra_kit.client.api import Client
from dra_kit.client.request import ClientRequest
from dra_kit.client.resources import RESOURCE_CLAIMS
from dra_kit.kubernetes.resource.objects import object_key
from dra_kit.kubernetes.resource.schema.protobuf import decode_message, encode_message, pack, unpack
from dra_kit.kubernetes.values.json import ObjectView

_PROTOBUF: Final = "application/vnd.kubernetes.protobuf"


async def write_finalizers(client: Client, claim: ObjectView, finalizers: list[str]) -> dict[str, Any]:
    """Replace the finalizers of a claim as read, and return it as stored.

    The API server compares opaque parameters byte by byte, and JSON does not have their bytes: a claim with ``&``,
    white space or another order of keys could not be changed. Such a claim is read and written in protobuf, as by Go.

    Raises:
        KubeError: the API server rejects the change, Conflict if the claim has changed in the meantime.
    """
    namespace, name = object_key(claim)
    metadata = claim["metadata"]
    kept = {key: metadata[key] for key in ("uid", "resourceVersion") if key in metadata}
    changed = {**kept, "finalizers": finalizers}
    if not any("opaque" in entry for entry in claim["spec"].get("devices", {}).get("config") or ()):
        return await client.patch(RESOURCE_CLAIMS, name, {"metadata": changed}, namespace)
    read = ClientRequest.of_object("get", RESOURCE_CLAIMS, name, namespace)
    body = (await client.exchange(replace(read, accept=_PROTOBUF))).text
    api_version, kind, message = unpack(body)
    type_name = f"resource/{api_version.rpartition('/')[2]}.{kind}"
    current = decode_message(message, type_name)
    current["metadata"] |= changed
    write = ClientRequest.of_object("update", RESOURCE_CLAIMS, name, namespace, content_type=_PROTOBUF)
    body = pack(api_version, kind, encode_message(current, type_name))
    return (await client.exchange(replace(write, body=body))).decode()
