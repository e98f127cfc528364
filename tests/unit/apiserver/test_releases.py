"""What the API server of one release answers otherwise than that of another, beyond what recorded answers show."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from dra_kit.apiserver.api import ALL_VERSIONS
from dra_kit.apiserver.server import ApiServer
from dra_kit.kubernetes.release import Release
from tests.unit.apiserver.conftest import Http, config_map, pod

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
EVICTION = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "pod-1", "namespace": "default"}}
MERGE = "application/merge-patch+json"


@asynccontextmanager
async def server_of(version: str) -> AsyncIterator[Http]:
    """A server of a release with all its versions."""
    running = ApiServer(release=Release.parse(version), runtime_config=ALL_VERSIONS)
    async with running as server, aiohttp.ClientSession() as session:
        yield Http(session, server.url)


@pytest.mark.parametrize("version", ["1.34", "1.36", "1.38"])
async def test_server_tells_its_release(version: str) -> None:
    minor = int(version.removeprefix("1."))

    async with server_of(version) as http:
        _, told, _ = await http("GET", "/version")
        _, described, _ = await http("GET", "/openapi/v2")

    assert (told["major"], told["minor"], told["emulationMinor"]) == ("1", str(minor), str(minor))
    assert told["minCompatibilityMinor"] == str(minor - 1)
    assert told["gitVersion"].startswith(f"v{version}.")
    assert described["info"]["version"] == told["gitVersion"]


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
