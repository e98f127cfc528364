"""What the API server of one release answers otherwise than that of another, beyond what recorded answers show."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from dra_kit.apiserver.api import ALL_VERSIONS
from dra_kit.apiserver.openapi import full_name
from dra_kit.apiserver.server import ApiServer
from dra_kit.kubernetes.release import SUPPORTED, KubernetesVersion, Release
from dra_kit.kubernetes.resource.schema.protobuf import encode_message, pack
from dra_kit.kubernetes.resource.schema.types import SchemaType, StrictDecoding, decode, struct
from tests.release.schema import recorded
from tests.unit.apiserver.conftest import Http, Object, config_map, pod

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
EVICTION = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "pod-1", "namespace": "default"}}
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"


@asynccontextmanager
async def server_of(version: str) -> AsyncIterator[Http]:
    """A server of a release with all its versions."""
    running = ApiServer(release=Release.parse(version), runtime_config=ALL_VERSIONS)
    async with running as server, aiohttp.ClientSession() as session:
        yield Http(session, server.url)


@pytest.mark.parametrize("version", ["1.34", "1.36", "1.38"])
async def test_server_reports_its_release(version: str) -> None:
    minor = int(version.removeprefix("1."))

    async with server_of(version) as http:
        _, reported, _ = await http("GET", "/version")
        _, described, _ = await http("GET", "/openapi/v2")

    assert (reported["major"], reported["minor"], reported["emulationMinor"]) == ("1", str(minor), str(minor))
    assert reported["minCompatibilityMinor"] == str(minor - 1)
    assert reported["gitVersion"].startswith(f"v{version}.")
    assert described["info"]["version"] == reported["gitVersion"]


@pytest.mark.parametrize(
    ("version", "path", "warned"),
    [
        ("1.34", "v1beta1/resourceslices", ""),
        ("1.35", "v1beta1/resourceslices", "v1beta1 ResourceSlice is deprecated in v1.35+, unavailable in v1.38+"),
        ("1.35", "v1beta2/deviceclasses", ""),
        ("1.38", "v1beta2/deviceclasses", "is deprecated in v1.36+, unavailable in v1.39+"),
        ("1.38", "v1beta2/devicetaintrules", ""),
        ("1.37", "v1alpha3/devicetaintrules", "is deprecated in v1.36+, unavailable in v1.39+"),
        ("1.38", "v1alpha3/devicetaintrules", 'is deprecated in v1.36+"'),
    ],
)  # fmt: skip
async def test_version_is_deprecated_from_its_release_on(version: str, path: str, warned: str) -> None:
    async with server_of(version) as http:
        status, _, warnings = await http("GET", f"/apis/resource.k8s.io/{path}")

    assert status == 200
    assert bool(warnings) == bool(warned)
    assert warned in "".join(warnings)


async def test_removed_versions_are_not_served_even_if_all_are_asked_for() -> None:
    async with server_of("1.38") as http:
        _, group, _ = await http("GET", "/apis/resource.k8s.io")
        status, _, _ = await http("GET", "/apis/resource.k8s.io/v1beta1/resourceslices")

    assert [item["version"] for item in group["versions"]] == ["v1", "v1beta2", "v1alpha3"]
    assert status == 404


async def test_versions_are_removed_as_announced_unless_that_was_taken_back() -> None:
    async with server_of("1.39") as http:
        _, group, _ = await http("GET", "/apis/resource.k8s.io")
        asked = ("v1beta2/deviceclasses", "v1beta2/devicetaintrules", "v1alpha3/devicetaintrules")
        codes = [(await http("GET", f"/apis/resource.k8s.io/{path}"))[0] for path in asked]

    assert [item["version"] for item in group["versions"]] == ["v1", "v1beta2", "v1alpha3"]
    assert codes == [404, 200, 200]


@pytest.mark.parametrize("version", ["1.37", "1.38"])
@pytest.mark.parametrize("spec", [{}, {"nodeName": "node-1"}])
async def test_eviction_is_confirmed_with_the_version_of_what_it_wrote(version: str, spec: dict[str, str]) -> None:
    async with server_of(version) as http:
        await http("POST", PODS, pod(spec=spec))
        status, confirmed, _ = await http("POST", f"{PODS}/pod-1/eviction", EVICTION)
        _, left, _ = await http("GET", PODS)

    written = left["items"][0]["metadata"]["resourceVersion"] if spec else left["metadata"]["resourceVersion"]
    assert status == 201
    assert confirmed["metadata"] == ({"resourceVersion": written} if version == "1.38" else {})


async def test_eviction_of_a_pod_that_is_on_its_way_writes_nothing() -> None:
    async with server_of("1.38") as http:
        await http("POST", PODS, pod(spec={"nodeName": "node-1"}))
        _, first, _ = await http("POST", f"{PODS}/pod-1/eviction", EVICTION)
        _, second, _ = await http("POST", f"{PODS}/pod-1/eviction", EVICTION)

    assert second == first


@pytest.mark.parametrize("version", ["1.37", "1.38"])
async def test_last_update_answers_with_the_version_of_the_deletion(version: str) -> None:
    async with server_of(version) as http:
        await http("POST", MAPS, config_map(finalizers=["example.com/keep"]))
        _, marked, _ = await http("DELETE", f"{MAPS}/settings")
        before = marked["metadata"]["resourceVersion"]
        change = {"metadata": {"finalizers": None}}
        tried = await http("PATCH", f"{MAPS}/settings?dryRun=All", change, content_type=MERGE)
        _, last, _ = await http("PATCH", f"{MAPS}/settings", change, content_type=MERGE)
        _, left, _ = await http("GET", MAPS)

    assert left["items"] == []
    assert tried[1]["metadata"]["resourceVersion"] == before
    assert int(left["metadata"]["resourceVersion"]) > int(before)
    expected = left["metadata"]["resourceVersion"] if version == "1.38" else before
    assert last["metadata"]["resourceVersion"] == expected


@pytest.mark.parametrize(("version", "code"), [("1.37", 500), ("1.38", 422)])
@pytest.mark.parametrize("asked", ["abc", "-1", "٣", "18446744073709551616", "9" * 5_000])
async def test_object_at_a_version_that_is_not_a_number(version: str, code: int, asked: str) -> None:
    async with server_of(version) as http:
        await http("POST", MAPS, config_map())
        of_object = await http("GET", f"{MAPS}/settings?resourceVersion={asked}")
        of_list = await http("GET", f"{MAPS}?resourceVersion={asked}")

    assert (of_object[0], of_list[0]) == (code, 400)
    assert f'strconv.ParseUint: parsing "{asked}"' in of_object[1]["message"]


@pytest.mark.parametrize("path", ["/nothing", "/healthz/nothing", "/apis/nothing.example.com/v1/things"])
async def test_unknown_paths_get_a_status_in_the_asked_form(path: str) -> None:
    async with server_of("1.37") as http:
        former = await http("GET", path)
    async with server_of("1.38") as http:
        status, told, _ = await http("GET", path)
        _, as_yaml, _ = await http("GET", path, Accept="application/yaml")

    assert former[:2] == (404, "404 page not found\n")
    assert status == 404
    assert told == {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "404 page not found",
        "reason": "NotFound", "code": 404,
    }  # fmt: skip
    assert "message: 404 page not found\n" in as_yaml


POD_1 = f"{PODS}/pod-1?fieldManager=tests"
YOUNGER = {"evictionResponders": [{"name": "example.com/mover", "priority": 1}]}
"""A field of pods since 1.37."""


@pytest.mark.parametrize(
    ("spec", "container", "unknown"),
    [
        (YOUNGER, {}, "spec.evictionResponders"),
        ({"schedulingGroup": {"podGroupName": "group"}}, {}, "spec.schedulingGroup"),
        ({"volumes": [{"name": "v", "emptyDir": {"mode": 448}}]}, {}, "spec.volumes[0].emptyDir.mode"),
        (
            {"volumes": [{"name": "v", "emptyDir": {}}]},
            {"volumeMounts": [{"name": "v", "mountPath": "/v", "bindMountOptions": ["noexec"]}]},
            "spec.containers[0].volumeMounts[0].bindMountOptions",
        ),
    ],
)
async def test_fields_of_a_later_release_are_unknown_in_all_groups(
    spec: Object, container: Object, unknown: str
) -> None:
    body = pod(spec=spec, container=container)
    async with server_of("1.34") as http:
        refused, answer, _ = await http("POST", f"{PODS}?fieldValidation=Strict", body)
        created, stored, warnings = await http("POST", f"{PODS}?fieldValidation=Warn", body)

    assert refused == 400
    assert f'unknown field "{unknown}"' in answer["message"]
    assert created == 201
    assert [unknown in warning for warning in warnings] == [True]
    assert unknown.rpartition(".")[2] not in str({key: stored[key] for key in ("spec", "status")})


@pytest.mark.parametrize("validation", ["Strict", "Warn", "Ignore"])
@pytest.mark.parametrize(("version", "code"), [("1.34", 500), ("1.36", 500), ("1.37", 201)])
async def test_apply_of_a_field_of_a_later_release_is_refused(version: str, code: int, validation: str) -> None:
    async with server_of(version) as http:
        path = f"{POD_1}&fieldValidation={validation}"
        status, answer, _ = await http("PATCH", path, pod(spec=YOUNGER), content_type=APPLY)
        left, _, _ = await http("GET", f"{PODS}/pod-1")

    assert status == code
    assert left == (200 if code == 201 else 404)
    if code == 500:
        assert answer["message"].endswith(": .spec.evictionResponders: field not declared in schema")


async def test_fields_of_a_later_release_in_protobuf_are_skipped_silently() -> None:
    body = encode_message(pod(spec=YOUNGER), "core/v1.Pod")
    headers = {"Content-Type": PROTOBUF}
    async with (
        ApiServer(release=Release.parse("1.34")) as server,
        aiohttp.ClientSession() as session,
        session.post(
            f"{server.url}{PODS}?fieldValidation=Strict", data=pack("v1", "Pod", body), headers=headers
        ) as answer,
    ):
        stored = await answer.json()

    assert answer.status == 201
    assert "Warning" not in answer.headers
    assert "evictionResponders" not in stored["spec"]


@pytest.mark.parametrize("version", SUPPORTED, ids=str)
async def test_openapi_describes_the_fields_that_the_release_decodes(version: KubernetesVersion) -> None:
    types = {full_name(name): name for name in recorded()}
    described: dict[str, set[str]] = {}
    async with server_of(str(version)) as http:
        _, index, _ = await http("GET", "/openapi/v3")
        for path in json.loads(index)["paths"]:
            _, document, _ = await http("GET", f"/openapi/v3/{path}")
            schemas = document.get("components", {}).get("schemas", {})
            described |= {
                types[name]: set(item.get("properties", ())) for name, item in schemas.items() if name in types
            }

    decoded = {
        name: known.fields.keys() - _unknown(name, known, version) for name in described if (known := struct(name))
    }
    assert len(decoded) > 300
    assert {name: fields for name, fields in described.items() if name in decoded} == decoded


def _unknown(type_name: str, known: SchemaType, version: KubernetesVersion) -> set[str]:
    """The fields that strict decoding finds fault with."""
    strictness = StrictDecoding(version=version)
    decode(dict.fromkeys(known.fields), type_name, strictness)
    return {problem.removeprefix('unknown field "').removesuffix('"') for problem in strictness.problems}
