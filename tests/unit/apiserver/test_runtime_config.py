"""Which API versions are served. Defaults, effects and messages were measured on kube-apiserver 1.37.1."""

from __future__ import annotations

import re

import aiohttp
import pytest

from dra_kit.apiserver.api import RuntimeConfig
from dra_kit.apiserver.server import ApiServer
from tests.unit.apiserver.conftest import Object

FOUR = ["deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices"]
FIVE = ["deviceclasses", "devicetaintrules", "resourceclaims", "resourceclaimtemplates", "resourceslices"]
MISSING = {
    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound", "details": {},
    "message": "the server could not find the requested resource", "code": 404,
}  # fmt: skip


async def served(text: str) -> dict[str, list[str]]:
    """The resources of resource.k8s.io by version, as discovery shows them, checked against requests."""
    accept = {"Accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}
    config = RuntimeConfig.parse(text)
    async with ApiServer(runtime_config=config) as server, aiohttp.ClientSession() as session:

        async def get(path: str, headers: dict[str, str] | None = None) -> tuple[int, Object]:
            async with session.get(server.url + path, headers=headers) as answer:
                return answer.status, await answer.json()

        _, document = await get("/apis", accept)
        [group] = [item for item in document["items"] if item["metadata"]["name"] == "resource.k8s.io"]
        found = {item["version"]: [one["resource"] for one in item["resources"]] for item in group["versions"]}
        _, described = await get("/apis/resource.k8s.io")
        assert [item["version"] for item in described["versions"]] == list(found)
        for version in ("v1", "v1beta2", "v1beta1", "v1alpha3"):
            code, answer = await get(f"/apis/resource.k8s.io/{version}")
            assert code == 200 if version in found else answer == MISSING
            for plural in (*FIVE, "resourcepoolstatusrequests"):
                code, answer = await get(f"/apis/resource.k8s.io/{version}/{plural}")
                assert code == 200 if plural in found.get(version, ()) else answer == MISSING
        return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {"v1": FIVE}),
        ("api/beta=true", {"v1": FIVE, "v1beta2": FIVE, "v1beta1": FOUR}),
        ("resource.k8s.io/v1beta1", {"v1": FIVE, "v1beta1": FOUR}),
        ("resource.k8s.io/v1=false,resource.k8s.io/v1beta1=true", {"v1beta1": FOUR}),
        (
            "resource.k8s.io/v1alpha3/resourcepoolstatusrequests=true",
            {"v1": FIVE, "v1alpha3": ["resourcepoolstatusrequests"]},
        ),
        (
            "api/all=true",
            {"v1": FIVE, "v1beta2": FIVE, "v1beta1": FOUR,
             "v1alpha3": ["devicetaintrules", "resourcepoolstatusrequests"]},
        ),
        ("api/all=true,api/alpha=false,resource.k8s.io/v1beta2=0", {"v1": FIVE, "v1beta1": FOUR}),
    ],
)  # fmt: skip
async def test_served_versions(text: str, expected: dict[str, list[str]]) -> None:
    assert await served(text) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("resource.k8s.io/v1beta7=true", "group version resource.k8s.io/v1beta7 that has not been registered"),
        ("foo/v1=true", "unknown api groups foo/v1"),
        ("api/alpha=yes", "invalid value api/alpha=yes"),
        (
            "resource.k8s.io/v1beta1=maybe",
            'invalid value of resource.k8s.io/v1beta1: maybe, err: strconv.ParseBool: parsing "maybe": invalid syntax',
        ),
        ("resource.k8s.io", "runtime-config invalid key resource.k8s.io"),
        ("api/all=false", "invalid runtime-config with only api/all=false"),
    ],
)
def test_invalid_configuration_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(problem)}$"):
        RuntimeConfig.parse(text)


def test_beta_versions_can_be_switched_off() -> None:
    assert RuntimeConfig.parse("api/beta=false").switched_off() == []
