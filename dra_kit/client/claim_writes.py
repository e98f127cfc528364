"""Writes of claims that leave the bytes of opaque parameters as they are.

The API server compares opaque parameters byte by byte, and JSON does not have their bytes. If a client made a claim
with white space, ``&``, ``<``, ``>``, or keys that are not sorted, every patch of the claim would change them, and the
API server rejects it. That includes server-side apply of ``status.devices`` (measured on kube-apiserver 1.37.1). Such a
claim is read and replaced in protobuf, as Go's clients do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from dra_kit.client.api import APPLY, Client
from dra_kit.client.resources import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Resource
from dra_kit.client.transport import ClientRequest
from dra_kit.errors import Conflict, Invalid, NotFound
from dra_kit.kubernetes.resource.objects import ClaimReference, object_key
from dra_kit.kubernetes.resource.schema.protobuf import decode_message, encode_message, pack, unpack
from dra_kit.kubernetes.values.json import ObjectView, RawObject

_PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
_UNCHANGED: Final = {"spec", "status.allocation"}
"""The parts of a claim that contain opaque parameters, as the API server names them where they may not change."""


async def create_claim(
    client: Client, template: ObjectView, make: Callable[[ObjectView], dict[str, Any]]
) -> dict[str, Any]:
    """Create the claim that ``make`` returns for a template as read, and return it as stored.

    Raises:
        KubeError: the API server rejects the claim, or the template is gone.
    """
    if not _is_opaque(template["spec"]["spec"]):
        return await client.create(RESOURCE_CLAIMS, make(template))
    claim = make(await _read(client, RESOURCE_CLAIM_TEMPLATES, *object_key(template)))
    create = ClientRequest.of_collection("create", RESOURCE_CLAIMS, claim["metadata"]["namespace"], query={})
    return await _write(client, create, claim)


async def write_finalizers(client: Client, claim: ObjectView, finalizers: Sequence[str]) -> dict[str, Any]:
    """Replace the finalizers of a claim as read, and return it as stored.

    Raises:
        KubeError: the API server rejects the change, Conflict if the claim has changed in the meantime.
    """
    namespace, name = object_key(claim)
    metadata = claim["metadata"]
    changed = {key: metadata[key] for key in ("uid", "resourceVersion") if key in metadata}
    changed["finalizers"] = list(finalizers)
    if not _is_opaque(claim["spec"]):
        return await client.patch(RESOURCE_CLAIMS, name, {"metadata": changed}, namespace)
    current = await _read(client, RESOURCE_CLAIMS, namespace, name)
    current["metadata"] |= changed
    return await _write(client, ClientRequest.of_object("update", RESOURCE_CLAIMS, name, namespace), current)


async def write_status(client: Client, claim: ObjectView, status: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the status of a claim as read, and return it as stored.

    Parameters in the allocation keep their bytes; those of a new allocation get the bytes that the claim or its classes
    have.

    Raises:
        KubeError: the API server rejects the change, Conflict if the claim has changed in the meantime.
    """
    config = ((status.get("allocation") or {}).get("devices") or {}).get("config")
    if not config:
        return await client.update(RESOURCE_CLAIMS, {**claim, "status": status}, subresource="status")
    namespace, name = object_key(claim)
    current = await _read(client, RESOURCE_CLAIMS, namespace, name)
    before = current.get("status", {})
    known = _with_bytes(status, before)
    if not (before.get("allocation") or {}).get("devices", {}).get("config"):
        of_claim, of_classes = _opaque(current["spec"]["devices"].get("config")), list[dict[str, Any]]()
        for each in sorted(_classes(claim)):
            with suppress(NotFound):  # deleted since the allocation
                of_classes += _opaque((await _read(client, DEVICE_CLASSES, "", each))["spec"].get("config"))
        for entry in known["allocation"]["devices"]["config"]:
            sources = of_claim if entry.get("source") == "FromClaim" else of_classes
            for opaque in _opaque([entry]):
                same = (item["parameters"] for item in sources if item == opaque)
                opaque["parameters"] = next(same, opaque["parameters"])
    update = ClientRequest.of_object("update", RESOURCE_CLAIMS, name, namespace, subresource="status")
    return await _write(client, update, {**claim, "status": known})


def _opaque(config: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    return [entry["opaque"] for entry in config or () if "opaque" in entry]


def _classes(claim: ObjectView) -> set[str]:
    requests = claim["spec"]["devices"].get("requests") or ()
    choices = [choice for item in requests for choice in (item.get("exactly"), *(item.get("firstAvailable") or ()))]
    return {choice["deviceClassName"] for choice in choices if choice}


def _with_bytes(value: Any, stored: Any) -> Any:
    """Return a copy of a value as read in JSON, with the opaque objects that are unchanged at the same places."""
    if isinstance(stored, RawObject) and value == dict(stored):
        return stored
    if isinstance(value, Mapping):
        others = stored if isinstance(stored, Mapping) else {}
        return {key: _with_bytes(item, others.get(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        entries = stored if isinstance(stored, list) else []
        return [_with_bytes(item, entries[i] if i < len(entries) else None) for i, item in enumerate(value)]
    return value


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

        current = await _read(client, RESOURCE_CLAIMS, claim.namespace, claim.name)
        found = current["metadata"]
        if found["uid"] != claim.uid or (resource_version and found["resourceVersion"] != resource_version):
            raise Conflict(f"claim {claim} has changed since it was read; read it again") from error
        status = current.setdefault("status", {})
        status["devices"] = _merged(status, entries, driver, binding=binding)
        update = ClientRequest.of_object(
            "update", RESOURCE_CLAIMS, claim.name, claim.namespace,
            subresource="status", query={"fieldManager": manager},
        )  # fmt: skip
        await _write(client, update, current)


def _is_opaque(spec: ObjectView) -> bool:
    return any("opaque" in entry for entry in spec.get("devices", {}).get("config") or ())


async def _read(client: Client, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
    """Return an object with the bytes of its parameters."""
    call = replace(ClientRequest.of_object("get", resource, name, namespace), accept=_PROTOBUF)
    _, kind, message = unpack((await client.exchange(call)).text)
    decoded: dict[str, Any] = decode_message(message, f"resource/{resource.version}.{kind}")
    return decoded


async def _write(client: Client, call: ClientRequest, claim: Mapping[str, Any]) -> dict[str, Any]:
    message = encode_message(claim, f"resource/{RESOURCE_CLAIMS.version}.{RESOURCE_CLAIMS.kind}")
    body = pack(RESOURCE_CLAIMS.api_version, RESOURCE_CLAIMS.kind, message)
    return (await client.exchange(replace(call, body=body, content_type=_PROTOBUF))).decode()


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
        reported = ours.get("conditions", ())
        types = {item["type"] for item in reported}
        conditions = [*(item for item in kept.pop("conditions", ()) if item["type"] not in types), *reported]
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
