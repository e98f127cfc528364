"""Requests and responses in protobuf, as typed Go clients send and read them."""

from __future__ import annotations

import io
import struct
from typing import Any

import aiohttp
import pytest

from dra_kit.apiserver.api import ALL_VERSIONS
from dra_kit.apiserver.server import ApiServer
from dra_kit.kubernetes.release import DEFAULT, Release
from dra_kit.kubernetes.resource.schema.protobuf import encode_event, encode_list, encode_message, pack, unpack
from dra_kit.kubernetes.resource.schema.types import prune
from tests.unit.apiserver.conftest import Http, Object, claim, config_map, definition, namespace, pod

PROTOBUF = "application/vnd.kubernetes.protobuf"
CLAIM_SPEC = claim()["spec"]
LABELS = {"matchLabels": {"app": "a"}}
POD_TEMPLATE = {"metadata": {"labels": {"app": "a"}}, "spec": pod()["spec"]}


def typed(api_version: str, kind: str, **fields: Any) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "one", "namespace": "default"}, **fields}


def cluster_wide(api_version: str, kind: str, **fields: Any) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "one"}, **fields}


OBJECTS = {
    "core/v1.Pod": ("/api/v1/namespaces/default/pods", pod("one", spec={"automountServiceAccountToken": False})),
    "core/v1.ConfigMap": ("/api/v1/namespaces/default/configmaps", config_map("one", {"a": "b"})),
    "core/v1.Secret": ("/api/v1/namespaces/default/secrets", typed("v1", "Secret", data={"a": "YQ=="})),
    "core/v1.Namespace": ("/api/v1/namespaces", namespace("one")),
    "core/v1.Node": ("/api/v1/nodes", cluster_wide("v1", "Node")),
    "core/v1.ServiceAccount": ("/api/v1/namespaces/default/serviceaccounts", typed("v1", "ServiceAccount")),
    "core/v1.Service": (
        "/api/v1/namespaces/default/services", typed("v1", "Service", spec={"ports": [{"port": 80}]}),
    ),
    "coordination/v1.Lease": (
        "/apis/coordination.k8s.io/v1/namespaces/default/leases", typed("coordination.k8s.io/v1", "Lease"),
    ),
    "events/v1.Event": (
        "/apis/events.k8s.io/v1/namespaces/default/events",
        typed("events.k8s.io/v1", "Event", eventTime="2026-01-02T03:04:05.000006Z", action="Act", reason="Reason",
              reportingController="example.com/c", reportingInstance="i", type="Normal",
              regarding={"kind": "Pod", "namespace": "default", "name": "x"}),
    ),
    "core/v1.Event": (
        "/api/v1/namespaces/default/events", typed("v1", "Event", involvedObject={"namespace": "default"}, reason="R"),
    ),
    **{
        f"apps/v1.{kind}": (
            f"/apis/apps/v1/namespaces/default/{kind.lower()}s",
            typed("apps/v1", kind, spec={"selector": LABELS, "template": POD_TEMPLATE}),
        )
        for kind in ("Deployment", "DaemonSet", "ReplicaSet", "StatefulSet")
    },
    "resource/v1.ResourceClaim": (
        "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims", claim("one"),
    ),
    "resource/v1.ResourceClaimTemplate": (
        "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates",
        typed("resource.k8s.io/v1", "ResourceClaimTemplate", spec={"spec": CLAIM_SPEC}),
    ),
    "resource/v1.ResourceSlice": (
        "/apis/resource.k8s.io/v1/resourceslices",
        cluster_wide("resource.k8s.io/v1", "ResourceSlice", spec={
            "driver": "d.example.com", "pool": {"name": "p", "resourceSliceCount": 1}, "allNodes": True,
            "devices": [{"name": "a", "attributes": {"b": {"bool": False}}, "capacity": {"m": {"value": "0"}}}]}),
    ),
    "resource/v1.DeviceClass": (
        "/apis/resource.k8s.io/v1/deviceclasses", cluster_wide("resource.k8s.io/v1", "DeviceClass", spec={}),
    ),
    "resource/v1.DeviceTaintRule": (
        "/apis/resource.k8s.io/v1/devicetaintrules",
        cluster_wide("resource.k8s.io/v1", "DeviceTaintRule", spec={"taint": {"key": "k", "effect": "NoExecute"}}),
    ),
    "rbac/v1.ClusterRole": (
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        cluster_wide("rbac.authorization.k8s.io/v1", "ClusterRole",
                     rules=[{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]),
    ),
    "admissionregistration/v1.ValidatingAdmissionPolicy": (
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
        cluster_wide("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", spec={
            "validations": [{"expression": "true"}],
            "matchConstraints": {"resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]}}),
    ),
    "apiextensions/v1.CustomResourceDefinition": (
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        definition("Oven", {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
            "type": "object", "properties": {"spec": {
                "type": "object", "additionalProperties": True, "default": {"a": "x & y"},
                "properties": {"sizes": {"type": "array", "items": {"type": "integer"}}}}}}}}),
    ),
}  # fmt: skip


def in_protobuf(obj: Object, type_name: str) -> bytes:
    """An object as a Go client sends it: with the zero value of every field that is not a pointer."""
    message = encode_message(prune(obj, type_name, stored=False, version=DEFAULT), type_name)
    return pack(obj["apiVersion"], obj["kind"], message)


class Typed:
    """A client that speaks protobuf."""

    def __init__(self, session: aiohttp.ClientSession, url: str, type_name: str) -> None:
        self._session, self._url, self._type = session, url, type_name

    async def send(self, method: str, path: str, obj: Object) -> Object:
        """Send an object, and return the one in the answer."""
        headers = {"Content-Type": PROTOBUF, "Accept": "application/json"}
        body = in_protobuf(obj, self._type)
        async with self._session.request(method, self._url + path, data=body, headers=headers) as answer:
            found: Object = await answer.json()
            assert answer.status < 300, found["message"]
            return found

    async def get(self, path: str) -> Object:
        async with self._session.get(self._url + path) as answer:
            found: Object = await answer.json()
            return found


@pytest.mark.parametrize("type_name", OBJECTS)
async def test_typed_client_makes_the_object_that_json_makes(server: ApiServer, type_name: str) -> None:
    path, obj = OBJECTS[type_name]
    async with aiohttp.ClientSession() as session:
        client = Typed(session, server.url, type_name)
        made = await client.send("POST", f"{path}?dryRun=All", obj)
        async with session.post(f"{server.url}{path}?dryRun=All", json=obj) as answer:
            expected = await answer.json()

    assert comparable(made) == comparable(expected)


def comparable(obj: Object) -> Object:
    metadata = {"name": obj["metadata"]["name"], "labels": obj["metadata"].get("labels")}
    spec = {name: value for name, value in (obj.get("spec") or {}).items() if name not in {"clusterIP", "clusterIPs"}}
    return {**obj, "metadata": metadata, "spec": spec, "status": None}


@pytest.mark.parametrize("type_name", OBJECTS)
async def test_typed_client_writes_back_what_it_read_without_a_change(server: ApiServer, type_name: str) -> None:
    path, obj = OBJECTS[type_name]
    async with aiohttp.ClientSession() as session:
        client = Typed(session, server.url, type_name)
        async with session.post(server.url + path, json=obj) as answer:
            made = await answer.json()
            assert answer.status == 201, made["message"]
        path = f"{path}/{made['metadata']['name']}"
        stored = await client.get(path)
        changed = await client.send("PUT", path, stored)

    assert changed == stored


@pytest.mark.parametrize("type_name", OBJECTS)
async def test_response_in_protobuf_is_the_object(server: ApiServer, type_name: str) -> None:
    path, obj = OBJECTS[type_name]
    async with aiohttp.ClientSession() as session:
        async with session.post(server.url + path, json=obj) as answer:
            made = await answer.json()
        one = f"{server.url}{path}/{made['metadata']['name']}"
        async with session.get(one, headers={"Accept": f"{PROTOBUF},application/json"}) as answer:
            assert answer.content_type == PROTOBUF
            body = await answer.read()
        async with session.get(one) as answer:
            expected = await answer.json()

    assert body == in_protobuf(expected, type_name)


async def test_list_in_protobuf_has_metadata_and_items(server: ApiServer) -> None:
    path, obj = OBJECTS["core/v1.ConfigMap"]
    async with aiohttp.ClientSession() as session:
        await session.post(server.url + path, json=obj)
        async with session.get(server.url + path) as answer:
            expected = await answer.json()
        async with session.get(server.url + path, headers={"Accept": PROTOBUF}) as answer:
            api_version, kind, message = unpack(await answer.read())

    items = [encode_message(item, "core/v1.ConfigMap") for item in expected["items"]]
    assert (api_version, kind) == ("v1", "ConfigMapList")
    assert message == encode_list(expected["metadata"], items)


async def test_watch_in_protobuf_has_a_frame_for_each_event(server: ApiServer) -> None:
    path, obj = OBJECTS["core/v1.ConfigMap"]
    query = "watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1"
    async with aiohttp.ClientSession() as session:
        async with session.post(server.url + path, json=obj) as answer:
            made = await answer.json()
        async with session.get(f"{server.url}{path}?{query}", headers={"Accept": PROTOBUF}) as answer:
            assert answer.headers["Content-Type"] == f"{PROTOBUF};stream=watch"
            content = await answer.read()

    version = {"resourceVersion": made["metadata"]["resourceVersion"]}
    mark = {"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {**version, "annotations": {"k8s.io/initial-events-end": "true"}}}  # fmt: skip
    events = [encode_event(type_, in_protobuf(obj, "core/v1.ConfigMap"))
              for type_, obj in (("ADDED", made), ("BOOKMARK", mark))]  # fmt: skip
    assert content == b"".join(len(event).to_bytes(4, "big") + event for event in events)


async def test_custom_resources_are_not_in_protobuf(server: ApiServer) -> None:
    path, obj = OBJECTS["apiextensions/v1.CustomResourceDefinition"]
    ovens = f"{server.url}/apis/kitchen.example.com/v1/ovens"
    async with aiohttp.ClientSession() as session:
        await session.post(server.url + path, json=obj)
        async with session.get(ovens, headers={"Accept": f"{PROTOBUF},application/json"}) as answer:
            assert answer.content_type == "application/json"
        async with session.get(ovens, headers={"Accept": PROTOBUF}) as answer:
            assert answer.status == 406


@pytest.mark.parametrize("type_name", OBJECTS)
async def test_typed_client_changes_a_label(server: ApiServer, type_name: str) -> None:
    path, obj = OBJECTS[type_name]
    async with aiohttp.ClientSession() as session:
        client = Typed(session, server.url, type_name)
        made = await client.send("POST", path, obj)
        made["metadata"].setdefault("labels", {})["new"] = "label"
        changed = await client.send("PUT", f"{path}/{made['metadata']['name']}", made)

    assert changed["metadata"]["labels"]["new"] == "label"
    assert {**changed, "metadata": {}} == {**made, "metadata": {}}


def field(number: int, content: bytes) -> bytes:
    """A field of a message with bytes."""
    length, written = len(content), bytearray()
    while length > 0x7F:
        written.append(length & 0x7F | 0x80)
        length >>= 7
    key = number << 3 | 2
    return (bytes([key]) if key < 0x80 else bytes([key & 0x7F | 0x80, key >> 7])) + bytes([*written, length]) + content


def definition_with(schema: bytes) -> bytes:
    version = field(1, b"v1") + field(4, field(1, schema))
    return pack("apiextensions.k8s.io/v1", "CustomResourceDefinition", field(2, field(7, version)))


def nested(levels: int, inside: bytes = b"") -> bytes:
    """Schemas, each the ``not`` of the one around it."""
    for _ in range(levels):
        inside = field(28, inside)
    return inside


def claim_with(parameters: bytes) -> bytes:
    opaque = field(1, b"o.example.com") + field(2, field(1, parameters))
    devices = field(3, field(2, field(1, opaque)))
    return pack("resource.k8s.io/v1", "ResourceClaim", field(2, field(1, devices)))


DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
PODS = "/api/v1/namespaces/default/pods"
MAXIMUM = 9 << 3


@pytest.mark.parametrize(
    ("path", "body", "cause"),
    [
        (DEFINITIONS, definition_with(nested(10_000)), "exceeded max recursion depth"),
        (DEFINITIONS, definition_with(nested(300, field(4, b"x" * 2_500_000))), "exceeded max recursion depth"),
        (DEFINITIONS, definition_with(bytes([MAXIMUM | 5, 0, 0, 0, 0])), "a double is not a number that JSON can have"),
        (
            DEFINITIONS, definition_with(bytes([MAXIMUM | 1]) + struct.pack("<d", float("nan"))),
            "a double is not a number that JSON can have",
        ),
        (PODS, pack("v1", "Pod", field(2, field(2, b"") * 1_400_000)), "it has more than 200000 values; split it"),
        (PODS, pack("v1", "Pod", field(2, field(2, b"")))[:-3], "unexpected EOF"),
        (PODS, b"k8s\0\x12" + b"\xff" * 8 + b"\x7f", "unexpected EOF"),
        (CLAIMS, claim_with(b'{"a":' * 300 + b"1" + b"}" * 300), "it is nested more than 200 levels deep, which"),
        (CLAIMS, claim_with(b'{"a":[' + b"[]," * 300_000 + b"1]}"), "it has more than 200000 values; split it"),
    ],
    ids=["deep", "deep-and-long", "short-double", "nan", "many", "cut-off", "long", "deep-json", "many-in-json"],
)  # fmt: skip
async def test_hostile_message_is_refused(server: ApiServer, path: str, body: bytes, cause: str) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.url + path, data=io.BytesIO(body), headers={"Content-Type": PROTOBUF}) as answer,
    ):
        refusal = await answer.json()

    assert (refusal["code"], refusal["reason"]) == (400, "BadRequest")
    assert cause in refusal["message"]
    assert len(refusal["message"]) < 300


FORMER_RULE: Object = {
    "deviceSelector": {"deviceClassName": "c", "selectors": [{"cel": {"expression": "true"}}]},
    "taint": {"key": "k", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"},
}


def former_slice(version: str) -> Object:
    mapped = {"memory": {"capacityKey": "ram", "allocationMultiplier": "2"}}
    fields = {"capacity": {"ram": {"value": "1Gi"}}, "nodeAllocatableResourceMappings": mapped}
    device = {"name": "a", "basic": fields} if version == "v1beta1" else {"name": "a", **fields}
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    return {"driver": "d.example.com", "pool": pool, "allNodes": True, "devices": [device]}


FORMER = [
    ("1.34", "v1alpha3", "DeviceTaintRule", FORMER_RULE),
    *(("1.36", version, "ResourceSlice", former_slice(version)) for version in ("v1", "v1beta1", "v1beta2")),
]
"""For each field that the newest release does not have any more, an object of a release that has it."""


@pytest.mark.parametrize(("release", "version", "kind", "spec"), FORMER)
async def test_fields_of_former_releases_survive_protobuf(release: str, version: str, kind: str, spec: Object) -> None:
    on = "DRANodeAllocatableResources=true" if release == "1.36" else ""
    api_version = f"resource.k8s.io/{version}"
    running = ApiServer(release=Release.parse(release).switched(on), runtime_config=ALL_VERSIONS)
    async with running as server, aiohttp.ClientSession() as session:
        path = f"{server.url}/apis/{api_version}/{kind.lower()}s"
        obj = cluster_wide(api_version, kind, spec=spec)
        async with session.post(path, params={"fieldValidation": "Strict"}, json=obj) as answer:
            stored = (await answer.json())["spec"]
        async with session.get(f"{path}/one", headers={"Accept": PROTOBUF}) as answer:
            message = await answer.read()
        async with session.put(f"{path}/one", headers={"Content-Type": PROTOBUF}, data=message) as answer:
            assert answer.status == 200
        async with session.get(f"{path}/one") as answer:
            found = await answer.json()

    assert {**stored, **spec} == stored
    assert found["spec"] == stored
    assert found["metadata"].get("generation", 1) == 1


async def test_strategic_patch_and_apply_know_the_fields_of_former_releases() -> None:
    obj = cluster_wide("resource.k8s.io/v1alpha3", "DeviceTaintRule", spec=FORMER_RULE)
    patch = {"spec": {"deviceSelector": {"selectors": [{"cel": {"expression": "false"}}]}}}
    running = ApiServer(release=Release.parse("1.34"), runtime_config=ALL_VERSIONS)
    async with running as server, aiohttp.ClientSession() as session:
        http = Http(session, server.url)
        path = "/apis/resource.k8s.io/v1alpha3/devicetaintrules/one"
        _, applied, _ = await http("PATCH", f"{path}?fieldManager=m", obj, content_type="application/apply-patch+yaml")
        status, patched, _ = await http("PATCH", path, patch, content_type="application/strategic-merge-patch+json")

    owned = applied["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:deviceSelector"]
    assert owned == {"f:deviceClassName": {}, "f:selectors": {}}
    assert status == 200, patched["message"]
    assert patched["spec"]["deviceSelector"] == {**FORMER_RULE["deviceSelector"], **patch["spec"]["deviceSelector"]}
