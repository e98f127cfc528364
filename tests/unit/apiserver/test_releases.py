"""What the API server of one release answers otherwise than that of another, beyond what recorded answers show."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

import aiohttp
import pytest

from dra_kit.apiserver.api import ALL_VERSIONS
from dra_kit.apiserver.openapi import full_name
from dra_kit.apiserver.selectors import parse_shard_selector
from dra_kit.apiserver.server import ApiServer
from dra_kit.apiserver.status_errors import StatusError
from dra_kit.kubernetes.release import NEWEST, SUPPORTED, KubernetesVersion, Release
from dra_kit.kubernetes.resource.schema.protobuf import encode_message, pack
from dra_kit.kubernetes.resource.schema.types import StrictDecoding, decode, struct
from tests.release.schema import recorded
from tests.unit.apiserver.conftest import Http, Object, config_map, pod

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
EVICTION = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "pod-1", "namespace": "default"}}
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"


@asynccontextmanager
async def server_of(version: str, gates: str = "") -> AsyncIterator[Http]:
    """A server of a release with all its versions, and with feature gates as in ``--feature-gates``."""
    running = ApiServer(release=Release.parse(version).switched(gates), runtime_config=ALL_VERSIONS)
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

    fields = {name: {item for one in SUPPORTED if (known := struct(name, one)) for item in known.fields}
              for name in described if struct(name, NEWEST) is not None}  # fmt: skip
    decoded = {name: known - _unknown(name, known, version) for name, known in fields.items()}
    assert len(decoded) > 300
    assert {name: fields for name, fields in described.items() if name in decoded} == decoded


def _unknown(type_name: str, fields: set[str], version: KubernetesVersion) -> set[str]:
    """The fields that strict decoding finds fault with."""
    strictness = StrictDecoding(version=version)
    decode(dict.fromkeys(fields), type_name, strictness)
    return {problem.removeprefix('unknown field "').removesuffix('"') for problem in strictness.problems}


SLICES = "/apis/resource.k8s.io/v1/resourceslices"
RULE: Object = {
    "apiVersion": "resource.k8s.io/v1alpha3",
    "kind": "DeviceTaintRule",
    "metadata": {"name": "rule-1"},
    "spec": {"deviceSelector": {"driver": "d"}, "taint": {"key": "example.com/k", "effect": "NoSchedule"}},
}
POOL = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}


def slice_of(devices: list[dict[str, object]], *, driver: str = "gpu.example.com") -> dict[str, object]:
    spec = {"driver": driver, "pool": POOL, "nodeName": "node-1", "devices": devices}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    return {**kind, "metadata": {"name": "slice-1"}, "spec": spec}


@pytest.mark.parametrize(("version", "written"), [("1.34", {"devices": None}), ("1.35", {})])
async def test_slice_without_devices_is_written_with_null_before_1_35(version: str, written: dict[str, None]) -> None:
    async with server_of(version) as http:
        await http("POST", SLICES, slice_of([]))
        told = [
            (await http("GET", f"/apis/resource.k8s.io/{served}/resourceslices/slice-1"))[1]
            for served in ("v1", "v1beta1", "v1beta2")
        ]

    assert [{name: one["spec"][name] for name in one["spec"] if name == "devices"} for one in told] == [written] * 3


@pytest.mark.parametrize(("version", "written"), [("1.34", False), ("1.35", True)])
async def test_rule_has_a_status_since_1_35(version: str, *, written: bool) -> None:
    async with server_of(version) as http:
        status, told, _ = await http("POST", "/apis/resource.k8s.io/v1alpha3/devicetaintrules", RULE)

    assert status == 201
    assert ("status" in told) is written


@pytest.mark.parametrize(("version", "generation"), [("1.34", 2), ("1.37", 1)])
async def test_generation_of_a_slice_counts_what_is_dropped(version: str, generation: int) -> None:
    """In 1.37 nothing of this update is dropped, so that it changes nothing."""
    taint = {"key": "example.com/k", "effect": "NoSchedule", "timeAdded": "2024-01-02T03:04:05Z"}
    sent, label = slice_of([{"name": "gpu-0", "taints": [taint]}]), {"metadata": {"labels": {"a": "b"}}}
    async with server_of(version) as http:
        _, first, _ = await http("POST", SLICES, sent)
        _, second, _ = await http("PUT", f"{SLICES}/slice-1", sent)
        _, labelled, _ = await http("PATCH", f"{SLICES}/slice-1", label, content_type=MERGE)

    assert ("taints" in first["spec"]["devices"][0]) is (generation == 1)
    assert second["metadata"]["generation"] == labelled["metadata"]["generation"] == generation
    assert (second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]) is (generation == 1)


@pytest.mark.parametrize(("attribute", "code"), [("distinctAttribute", 422), ("matchAttribute", 200)])
async def test_field_that_is_kept_keeps_the_others_of_its_feature(attribute: str, code: int) -> None:
    """1.34 keeps ``distinctAttribute`` and drops ``capacity``, until a stored claim has the first."""
    exactly = {"deviceClassName": "c", "allocationMode": "All", "capacity": {"requests": {"m": "1"}}}
    devices = {
        "requests": [{"name": "r", "exactly": exactly}],
        "constraints": [{attribute: "example.com/a"}],
    }
    sent = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "claim-1"},
        "spec": {"devices": devices},
    }
    path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    async with server_of("1.34") as http:
        created, _, _ = await http("POST", path, sent)
        status, _, _ = await http("PUT", f"{path}/claim-1", sent)

    assert (created, status) == (201, code)


@pytest.mark.parametrize(("version", "warned"), [("1.34", False), ("1.35", True)])
async def test_driver_in_upper_case_is_warned_about_since_1_35(version: str, *, warned: bool) -> None:
    sent = slice_of([], driver="GPU.Example.com")
    async with server_of(version) as http:
        status, _, warnings = await http("POST", SLICES, sent)

    assert status == 201
    assert bool(warnings) is warned


@pytest.mark.parametrize(("version", "code", "reason"), [("1.34", 500, None), ("1.35", 400, "BadRequest")])
@pytest.mark.parametrize("body", [["not", "options"], {"apiVersion": "v1", "kind": "Pod"}, {"dryRun": 1}])
async def test_unreadable_options_of_a_deletion_are_a_bad_request_since_1_35(
    version: str, code: int, reason: str | None, body: object
) -> None:
    async with server_of(version) as http:
        await http("POST", MAPS, config_map())
        status, told, _ = await http("DELETE", f"{MAPS}/settings", body)

    assert (status, told.get("reason")) == (code, reason)


@pytest.mark.parametrize(("version", "code"), [("1.36", 404), ("1.37", 400)])
async def test_malformed_patch_is_refused_before_the_object_is_read_since_1_37(version: str, code: int) -> None:
    async with server_of(version) as http:
        await http("POST", MAPS, config_map())
        missing, _, _ = await http("PATCH", f"{MAPS}/nothing", b"{", content_type=MERGE)
        status, told, _ = await http("PATCH", f"{MAPS}/settings", b"{", content_type=MERGE)

    assert (missing, status) == (code, 400)
    assert (told["message"] == "invalid JSON patch") is (code == 400)


@pytest.mark.parametrize(("version", "code"), [("1.36", 400), ("1.37", 200)])
async def test_slices_are_selected_by_pool_since_1_37(version: str, code: int) -> None:
    async with server_of(version) as http:
        status, _, _ = await http("GET", f"{SLICES}?fieldSelector=spec.pool.name%3Dnode-1")
        by_driver, _, _ = await http("GET", f"{SLICES}?fieldSelector=spec.driver%3Dgpu.example.com")

    assert (status, by_driver) == (code, 200)


@pytest.mark.parametrize(("version", "stays"), [("1.35", True), ("1.36", False)])
async def test_changed_effect_begins_with_its_update_since_1_36(version: str, *, stays: bool) -> None:
    rules, time = "/apis/resource.k8s.io/v1alpha3/devicetaintrules", "2024-01-02T03:04:05Z"
    taint = {"key": "example.com/k", "effect": "NoSchedule", "timeAdded": time}
    async with server_of(version) as http:
        await http("POST", rules, {**RULE, "spec": {**RULE["spec"], "taint": taint}})
        change = {"spec": {"taint": {"effect": "NoExecute"}}}
        status, changed, _ = await http("PATCH", f"{rules}/rule-1", change, content_type=MERGE)

    assert (status, changed["spec"]["taint"]["effect"]) == (200, "NoExecute")
    assert (changed["spec"]["taint"]["timeAdded"] == time) is stays


@pytest.mark.parametrize(("version", "code"), [("1.34", 404), ("1.35", 200)])
async def test_status_of_a_rule_is_served_since_1_35(version: str, code: int) -> None:
    rules = "/apis/resource.k8s.io/v1alpha3/devicetaintrules"
    async with server_of(version) as http:
        await http("POST", rules, RULE)
        status, _, _ = await http("GET", f"{rules}/rule-1/status")

    assert status == code


@pytest.mark.parametrize(("version", "owned"), [("1.34", True), ("1.35", False)])
async def test_writer_of_a_claim_status_owned_ignored_labels_before_1_35(version: str, *, owned: bool) -> None:
    claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    request = {"name": "r", "exactly": {"deviceClassName": "c", "allocationMode": "All"}}
    sent = {"metadata": {"name": "claim-1"}, "spec": {"devices": {"requests": [request]}}}
    async with server_of(version) as http:
        _, first, _ = await http("POST", claims, {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **sent})
        label = {"metadata": {"labels": {"a": "b"}}}
        _, second, _ = await http("PATCH", f"{claims}/claim-1/status", label, content_type=MERGE)

    assert "labels" not in second["metadata"]
    assert (second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]) is owned
    assert ("f:labels" in str(second["metadata"]["managedFields"])) is owned


async def test_nodes_declare_no_features_before_1_35() -> None:
    async with server_of("1.34") as http:
        await http("POST", "/api/v1/nodes", {"metadata": {"name": "node-1"}})
        features = {"status": {"declaredFeatures": ["B", "A"]}}
        status, told, warnings = await http("PATCH", "/api/v1/nodes/node-1/status", features, content_type=MERGE)

    assert status == 200
    assert "declaredFeatures" not in told["status"]
    assert "declaredFeatures" in "".join(warnings)


async def test_descriptions_have_the_types_of_the_release() -> None:
    described = []
    for version in ("1.34", "1.37"):
        async with server_of(version) as http:
            _, document, _ = await http("GET", "/openapi/v3/apis/resource.k8s.io/v1")
        described.append(document["components"]["schemas"])

    before, since = described
    assert "io.k8s.api.resource.v1.DeviceDerivedAttribute" in since.keys() - before.keys()
    assert "derivedAttributes" not in before["io.k8s.api.resource.v1.ExactDeviceRequest"]["properties"]
    assert "devices" in before["io.k8s.api.resource.v1.ResourceSliceSpec"]["properties"]


async def test_claims_are_stored_as_v1_since_1_35() -> None:
    hashes = []
    for version in ("1.34", "1.35"):
        async with server_of(version) as http:
            _, served, _ = await http("GET", "/apis/resource.k8s.io/v1")
        hashes += [item["storageVersionHash"] for item in served["resources"] if item["name"] == "resourceclaims"]

    assert hashes == ["EJAWH5WrAYg=", "wgAZaHcZxUg="]  # of v1beta2 and v1


@pytest.mark.parametrize(("version", "labels", "nominated"), [("1.34", {}, "node-9"), ("1.35", {"l": "m"}, None)])
async def test_pod_takes_labels_of_its_binding_and_loses_its_nomination_since_1_35(
    version: str, labels: dict[str, str], nominated: str | None
) -> None:
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "pod-1", "labels": {"l": "m"}}}
    async with server_of(version) as http:
        await http("POST", PODS, pod())
        nomination = {"status": {"nominatedNodeName": "node-9"}}
        await http("PATCH", f"{PODS}/pod-1/status", nomination, content_type=MERGE)
        status, _, _ = await http("POST", f"{PODS}/pod-1/binding", {**binding, "target": {"name": "node-1"}})
        _, bound, _ = await http("GET", f"{PODS}/pod-1")

    assert status == 201
    assert bound["spec"]["nodeName"] == "node-1"
    assert bound["metadata"].get("labels", {}) == labels
    assert bound["status"].get("nominatedNodeName") == nominated


SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
LONG = f"{'1' * 29}e4000"
SCALED = f"{'9' * 30}e999999"
BEYOND = "must not be larger than 9223372036854775807"


def shared_slice(value: str, policy: dict[str, object] | None = None) -> dict[str, object]:
    capacity = {"value": value, **({} if policy is None else {"requestPolicy": policy})}
    device = {"name": "gpu-0", "allowMultipleAllocations": True, "capacity": {"memory": capacity}}
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": "n", "pool": pool, "devices": [device]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "s", "resourceVersion": ""},
        "spec": spec,
    }


def ranged(lowest: str, default: str = "", **limits: str) -> dict[str, object]:
    return {"default": default or lowest, "validRange": {"min": lowest, **limits}}


@pytest.mark.parametrize("version", ["1.37", "1.38"])
@pytest.mark.parametrize(
    ("value", "policy", "problem"),
    [
        (LONG, None, ""),
        (SCALED, None, ""),
        ("1e2147483647", None, ""),
        ("9" * 5000, {"default": "1", "validValues": ["1", "9" * 4999]}, ""),
        ("1e2147483647", {"default": "1", "validValues": ["1", "1e2147483646"]}, ""),
        ("1e30", ranged("1", max="1e28"), ""),
        ("1e30", ranged("1", max="1e28", step="1"), BEYOND),
        ("1e5001", ranged("1", step="1e5000"), BEYOND),
        ("1e2147483647", ranged("1", step="1e2147483646"), BEYOND),
        ("1e2147483646", ranged("1", step="1e2147483647"), "is larger than capacity value: 1e2147483646"),
    ],
    ids=["digits", "scaled", "largest", "values", "values-largest", "range", "step", "sum", "sum-largest", "above"],
)  # fmt: skip
async def test_server_judges_quantities_of_any_size(
    version: str, value: str, policy: dict[str, object] | None, problem: str
) -> None:
    async with server_of(version) as http:
        status, answer, _ = await http("POST", SLICES, shared_slice(value, policy))

        assert (status, problem in answer.get("message", "")) == (422 if problem else 201, True), answer
        if not problem:
            answer["spec"]["pool"]["generation"] = 2
            status, changed, _ = await http("PUT", f"{SLICES}/s", answer)
            assert (status, changed["metadata"]["generation"]) == (200, 2), changed


@pytest.mark.parametrize("version", ["1.36", "1.37", "1.38"])
@pytest.mark.parametrize("amount", [LONG, SCALED, "9" * 5000, "1e2147483647"], ids=["long", "scaled", "digits", "e"])
async def test_claims_and_pods_may_ask_for_any_amount(version: str, amount: str) -> None:
    exactly = {"deviceClassName": "c", "capacity": {"requests": {"memory": amount}}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    }
    asking = pod()
    asking["spec"]["containers"][0]["resources"] = {"limits": {"example.com/gpu": amount, "memory": amount}}

    async with server_of(version) as http:
        answers = [await http("POST", CLAIMS, claim), await http("POST", PODS, asking)]

    assert [status for status, _, _ in answers] == [201, 201], answers


@pytest.mark.parametrize(
    ("version", "values", "shown"),
    [
        ("1.36", ["0", "10E"], "0"), ("1.37", ["0", "10E"], "0"), ("1.38", ["0", "10E"], ""),
        ("1.37", ["10E", "20E"], "0"), ("1.38", ["10E", "20E"], "9223372036854775807"),
    ],
)  # fmt: skip
async def test_valid_values_are_compared_as_in_the_servers_release(version: str, values: list[str], shown: str) -> None:
    release = Release.parse(version).without("DRAFractionalCapacityRange")
    body = shared_slice("100E", {"default": values[0], "validValues": values})

    async with ApiServer(release=release) as server, aiohttp.ClientSession() as session:
        status, answer, _ = await Http(session, server.url)("POST", SLICES, body)

    assert status == (422 if shown else 201)
    assert (f'validValues[1]: Duplicate value: "{shown}"' in answer.get("message", "")) is bool(shown)


@pytest.mark.parametrize(("version", "served"), [("1.36", False), ("1.37", True)])
async def test_groups_of_pods_are_served_in_v1beta1_since_1_37(version: str, *, served: bool) -> None:
    async with (
        ApiServer(release=Release.alpha(KubernetesVersion.parse(version))) as server,
        aiohttp.ClientSession() as session,
        session.get(f"{server.url}/apis/scheduling.k8s.io/v1beta1") as answer,
    ):
        found = await answer.text()

    assert ("podgroups" in found) is served


MAPPED: Object = {"memory": {"capacityKey": "ram", "allocationMultiplier": "2"}}


@pytest.mark.parametrize(
    ("version", "gates", "stored"),
    [
        ("1.36", "DRANodeAllocatableResources=true", {"nodeAllocatableResourceMappings": MAPPED}),
        ("1.36", "", {}),
        ("1.37", "DRANodeAllocatableResources=true", None),
    ],
)
async def test_devices_of_1_36_map_their_capacity_to_their_node(
    version: str, gates: str, stored: dict[str, object] | None
) -> None:
    device: Object = {"name": "gpu-0", "capacity": {"ram": {"value": "1Gi"}}, "nodeAllocatableResourceMappings": MAPPED}
    node: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}}
    async with server_of(version, gates) as http:
        await http("POST", "/api/v1/nodes", node)
        status, answer, _ = await http("POST", f"{SLICES}?fieldValidation=Strict", slice_of([device]))
        device["nodeAllocatableResourceMappings"] = {"example.com/a": {"capacityKey": "b"}, "cpu": {}}
        _, refused, _ = await http("POST", SLICES, {**slice_of([device]), "metadata": {"name": "slice-2"}})

    if stored is None:
        assert (status, answer["message"].count("unknown field")) == (400, 1)
        return
    assert status == 201
    assert {key: value for key, value in answer["spec"]["devices"][0].items() if key.startswith("node")} == stored
    causes = [cause["field"] for cause in refused["details"]["causes"]] if stored else []
    at = "spec.devices[0].nodeAllocatableResourceMappings"
    assert causes == ([f"{at}[example.com/a]", f"{at}[example.com/a].capacityKey", f"{at}[cpu]"] if stored else [])


async def test_rules_of_1_34_select_devices_by_class_and_expression() -> None:
    rules = "/apis/resource.k8s.io/v1alpha3/devicetaintrules"
    selector = {"deviceClassName": "c", "selectors": [{"cel": {"expression": "true"}}]}
    wrong = {"deviceClassName": "C", "selectors": [{"cel": {"expression": "device.nothing"}}]}
    async with server_of("1.34") as http:
        status, stored, _ = await http(
            "POST", f"{rules}?fieldValidation=Strict", {**RULE, "spec": {**RULE["spec"], "deviceSelector": selector}}
        )
        _, refused, _ = await http("POST", rules, {**RULE, "spec": {**RULE["spec"], "deviceSelector": wrong}})
        _, listed, _ = await http("GET", rules)

    assert (status, stored["spec"]["deviceSelector"]) == (201, selector)
    assert listed["items"][0]["spec"]["deviceSelector"] == selector
    at = "spec.deviceSelector"
    causes = [cause["field"] for cause in refused["details"]["causes"]]
    assert causes == [f"{at}.deviceClassName", f"{at}.selectors[0].cel.expression"]


LOWEST, MIDDLE, HIGHEST = "0x0000000000000000", "0x8000000000000000", "0x10000000000000000"


def shard(start: str, end: str, field: str = "object.metadata.namespace") -> str:
    return f"shardRange({field}, '{start}', '{end}')"


@pytest.mark.parametrize(
    ("version", "gate", "selector", "namespaces"),
    [
        ("1.38", "", shard(LOWEST, MIDDLE), ["fo"]),  # 0x08985907b541d342 by FNV-1a
        ("1.38", "", shard(MIDDLE, HIGHEST), ["foo"]),  # 0xdcb27518fed9d577
        ("1.38", "", shard("0x08985907b541d342", "0x08985907b541d343"), ["fo"]),
        ("1.38", "", shard("0x08985907b541d343", "0xdcb27518fed9d577"), []),
        ("1.38", "", f"{shard(MIDDLE, HIGHEST)} || {shard(LOWEST, MIDDLE)}", ["fo", "foo"]),
        ("1.38", "false", shard(LOWEST, MIDDLE), ["fo", "foo"]),
        ("1.37", "", "nonsense", ["fo", "foo"]),
        ("1.36", "true", shard(LOWEST, MIDDLE), ["fo"]),
    ],
)
async def test_lists_are_sharded_with_the_gate(version: str, gate: str, selector: str, namespaces: list[str]) -> None:
    query = f"fieldSelector=metadata.name%3Da&shardSelector={quote(selector)}"
    on = gate == "true" or (version == "1.38" and not gate)
    async with server_of(version, f"ShardedListAndWatch={gate}" if gate else "") as http:
        for name in ("fo", "foo"):
            await http("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
            await http("POST", f"/api/v1/namespaces/{name}/configmaps", {"metadata": {"name": "a"}})
        _, listed, _ = await http("GET", f"/api/v1/configmaps?{query}")
        _, table, _ = await http(
            "GET", f"/api/v1/configmaps?{query}", accept="application/json;as=Table;v=v1;g=meta.k8s.io"
        )

    assert [item["metadata"]["namespace"] for item in listed["items"]] == namespaces
    assert len(table["rows"]) == len(namespaces)
    assert listed["metadata"].get("shardInfo") == ({"selector": selector} if on else None)
    assert "shardInfo" not in table["metadata"]


async def test_watches_of_1_38_are_sharded() -> None:
    path = f"/api/v1/configmaps?watch=1&fieldSelector=metadata.name%3Da&shardSelector={quote(shard(MIDDLE, HIGHEST))}"
    async with ApiServer(release=Release.parse("1.38")) as server, aiohttp.ClientSession() as session:
        http = Http(session, server.url)
        for name in ("fo", "foo"):
            await http("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
            await http("POST", f"/api/v1/namespaces/{name}/configmaps", {"metadata": {"name": "a"}})
        async with session.get(server.url + path) as watch:
            first = json.loads(await watch.content.readline())

    assert first["object"]["metadata"]["namespace"] == "foo"


@pytest.mark.parametrize(
    ("selector", "problem"),
    [
        (" ", "empty shard selector is not allowed"),
        ("a", "unexpected expression"),
        ("shardRange(", "CEL parse error: Syntax error"),
        ("shardRange(object.metadata.uid)", "requires exactly 3 arguments, got 1"),
        (shard(LOWEST, HIGHEST, "object.metadata.name"), 'unsupported field path "object.metadata.name"'),
        (shard(LOWEST, HIGHEST, "a[0]"), "expected field path"),
        (shard(HIGHEST, LOWEST), f"shard range start {HIGHEST} must be less than end {LOWEST}"),
        (shard("0x0", HIGHEST), 'got "0x0" (did you mean "0x0000000000000000"?)'),
        (shard("0xG", HIGHEST), 'invalid hex character "G" in "0xG"'),
        (shard("0", HIGHEST), "must have '0x' prefix"),
        (shard("0x", HIGHEST), "hex value is required after '0x'"),
        (shard(f"{LOWEST}0", HIGHEST), "17-digit hex value must be '0x10000000000000000' (2^64)"),
        (shard(f"{LOWEST}00", HIGHEST), "hex value too long (18 chars, max 17)"),
        ("shardRange(object.metadata.uid, 1, 2)", "hexStart must be a string literal"),
        (f"{shard(LOWEST, HIGHEST)} && {shard(LOWEST, HIGHEST)}", 'unsupported function "_&&_"'),
        (f"{shard(LOWEST, HIGHEST)} || {shard(LOWEST, HIGHEST, 'object.metadata.uid')}", "must use the same field"),
        (" || ".join([shard(LOWEST, HIGHEST)] * 500), ""),
    ],
)
async def test_shard_selector_that_does_not_read_is_a_bad_request(selector: str, problem: str) -> None:
    if not problem:  # a long one reads, in linear time and without recursion
        assert len(parse_shard_selector(selector).ranges) == 500
        return
    with pytest.raises(StatusError, match=r"^invalid shard selector: ") as refusal:
        parse_shard_selector(selector)

    assert problem in str(refusal.value)
    assert refusal.value.code == 400
