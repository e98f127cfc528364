"""Writes to claims that leave the bytes of opaque parameters as they are.

The API server compares opaque parameters byte by byte, and JSON does not have their bytes. If a client made a claim
with white space, ``&``, ``<``, ``>``, or keys that are not sorted, every patch of the claim would change them, and the
API server rejects it. That includes server-side apply of ``status.devices`` (measured on kube-apiserver 1.37.1). Such a
claim is read and replaced in protobuf, as Go's clients do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from dra_kit.client.api import APPLY, Client
from dra_kit.client.request import ClientRequest
from dra_kit.client.resources import RESOURCE_CLAIMS
from dra_kit.errors import Conflict, Invalid
from dra_kit.kubernetes.resource.objects import ClaimReference, object_key
from dra_kit.kubernetes.resource.schema.protobuf import decode_message, encode_message, pack, unpack
from dra_kit.kubernetes.values.json import ObjectView

_PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
_UNCHANGED: Final = {"spec", "status.allocation"}
"""The parts of a claim that contain opaque parameters, as the API server names them where they may not change."""


async def write_finalizers(client: Client, claim: ObjectView, finalizers: Sequence[str]) -> dict[str, Any]:
    """Replace the finalizers of a claim as read, and return it as stored.

    Raises:
        KubeError: the API server rejects the change, Conflict if the claim has changed in the meantime.
    """
    namespace, name = object_key(claim)
    metadata = claim["metadata"]
    changed = {key: metadata[key] for key in ("uid", "resourceVersion") if key in metadata}
    changed["finalizers"] = list(finalizers)
    if not any("opaque" in entry for entry in claim["spec"].get("devices", {}).get("config") or ()):
        return await client.patch(RESOURCE_CLAIMS, name, {"metadata": changed}, namespace)
    return await _replace(client, namespace, name, lambda current: current["metadata"].update(changed))


async def write_device_statuses(
    client: Client,
    claim: ClaimReference,
    entries: Sequence[Mapping[str, Any]],
    driver: str,
    *,
    binding: bool = False,
    resource_version: str = "",
) -> None:
    """Replace what one part of a driver reports in ``status.devices`` of a claim.

    The node reports everything except binding conditions, which the controller reports. Both have a field manager, so
    that neither removes what the other one wrote.

    Args:
        client: of the account that writes; it needs ``patch`` and ``update`` on ``resourceclaims/status``.
        claim: to be written to; a claim of the same name with another UID is not changed.
        entries: all that the part reports, in the API's form.
        driver: of the entries.
        binding: whether these are the binding conditions.
        resource_version: of the claim as read; empty writes to any.

    Raises:
        Conflict: the claim is another one, or has changed since it was read.
        KubeError: the API server rejects the change for another reason, or does not answer.
    """
    metadata = {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid}
    if resource_version:
        metadata["resourceVersion"] = resource_version
    body = {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": RESOURCE_CLAIMS.kind,
        "metadata": metadata,
        "status": {"devices": entries},
    }
    manager = f"{driver}-controller" if binding else driver
    try:
        await client.patch(
            RESOURCE_CLAIMS, claim.name, body, claim.namespace,
            content_type=APPLY, subresource="status", field_manager=manager, force=True,
        )  # fmt: skip
    except Invalid as error:
        fields = {field for field, _ in error.causes}
        if "metadata.uid" in fields:
            raise Conflict(f"claim {claim} is another one now; {error}") from error
        if not fields or not fields <= _UNCHANGED:
            raise

        def change(current: dict[str, Any]) -> None:
            found = current["metadata"]
            if found["uid"] != claim.uid or (resource_version and found["resourceVersion"] != resource_version):
                raise Conflict(f"claim {claim} has changed since it was read; read it again") from None
            status = current.setdefault("status", {})
            status["devices"] = _merged(status, entries, driver, binding=binding)

        await _replace(client, claim.namespace, claim.name, change, subresource="status", field_manager=manager)


async def _replace(
    client: Client,
    namespace: str,
    name: str,
    change: Callable[[dict[str, Any]], None],
    *,
    subresource: str = "",
    field_manager: str = "",
) -> dict[str, Any]:
    read = ClientRequest.of_object("get", RESOURCE_CLAIMS, name, namespace)
    api_version, kind, message = unpack((await client.exchange(replace(read, accept=_PROTOBUF))).text)
    type_name = f"resource/{api_version.rpartition('/')[2]}.{kind}"
    claim = decode_message(message, type_name)
    change(claim)
    write = ClientRequest.of_object(
        "update", RESOURCE_CLAIMS, name, namespace,
        subresource=subresource, query={"fieldManager": field_manager}, content_type=_PROTOBUF,
    )  # fmt: skip
    body = pack(api_version, kind, encode_message(claim, type_name))
    return (await client.exchange(replace(write, body=body))).decode()


def _merged(
    status: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], driver: str, *, binding: bool
) -> list[Mapping[str, Any]]:
    """Return ``status.devices`` with the entries of one part of the driver, and what others wrote."""
    before = status.get("devices") or []
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    of_binding = {
        _identity(result): {*result.get("bindingConditions", ()), *result.get("bindingFailureConditions", ())}
        for result in results
    }
    merged = {_identity(entry): dict(entry) for entry in entries}
    for entry in before:
        identity = _identity(entry)
        if entry["driver"] != driver:
            merged[identity] = entry
            continue
        kept = _part(entry, of_binding.get(identity, set()), binding=not binding)
        ours = merged.pop(identity, {})
        conditions = [*kept.pop("conditions", ()), *ours.get("conditions", ())]
        if kept or conditions or ours:
            key = {name: entry[name] for name in _KEY if name in entry}
            merged[identity] = {**key, **kept, **ours} | ({"conditions": conditions} if conditions else {})
    order = {_identity(entry): place for place, entry in enumerate(before)}
    return sorted(merged.values(), key=lambda entry: order.get(_identity(entry), len(order)))


_KEY: Final = ("driver", "pool", "device", "shareID")


def _identity(value: Mapping[str, Any]) -> tuple[str | None, ...]:
    return tuple(value.get(name) for name in _KEY)


def _part(entry: Mapping[str, Any], of_binding: set[str], *, binding: bool) -> dict[str, Any]:
    """Return what one part of the driver reports in an entry, without the device's identity."""
    part = {} if binding else {name: value for name, value in entry.items() if name not in _KEY}
    conditions = [item for item in entry.get("conditions") or () if (item.get("type") in of_binding) is binding]
    part.pop("conditions", None)
    return part | ({"conditions": conditions} if conditions else {})
