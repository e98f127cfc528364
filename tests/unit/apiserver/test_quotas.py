"""ResourceQuotas: what they count, and what they reject, with the messages of kube-apiserver."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_kit.apiserver.admission import quotas
from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.client.resources import (
    CONFIG_MAPS,
    DEVICE_CLASSES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Resource,
)
from dra_kit.diagnosis.explain.cluster import reduced
from dra_kit.errors import Forbidden, Invalid
from dra_kit.kubernetes.release import KubernetesVersion, Release
from tests.unit.apiserver.conftest import claim, config_map, namespace, pod

Object = dict[str, Any]
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota", namespaced=True)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
DEVICES = "gpu.example.com.deviceclass.resource.k8s.io/devices"


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with ApiServer(release=Release.alpha()) as server:
        server.enforce_quotas()
        async with Client(Credentials(Connection(server.url)), user_agent="tests/1") as connected:
            yield connected


def quota(hard: Mapping[str, str], name: str = "limits", **spec: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"hard": dict(hard), **spec},
    }


def of(name: str, *requests: Object) -> Object:
    """A claim with these requests."""
    return {**claim(name), "spec": {"devices": {"requests": list(requests)}}}


def exactly(name: str, count: int = 1, device_class: str = "gpu.example.com", **more: Any) -> Object:
    return {"name": name, "exactly": {"deviceClassName": device_class, "count": count, **more}}


def using(name: str, **resources: Mapping[str, str]) -> Object:
    return pod(name, container={"resources": resources})


async def used(client: Client, name: str = "limits") -> Mapping[str, str]:
    found: Mapping[str, str] = (await client.get(QUOTAS, name, "default"))["status"]["used"]
    return found


async def refusal(client: Client, resource: Resource, obj: Object) -> str:
    with pytest.raises(Forbidden) as caught:
        await client.create(resource, obj)
    return caught.value.text


async def test_one_claim_too_many_is_rejected_with_the_message_of_kubernetes(client: Client) -> None:
    name = "count/resourceclaims.resource.k8s.io"
    await client.create(QUOTAS, quota({name: "1"}))
    await client.create(RESOURCE_CLAIMS, claim("first"))

    text = await refusal(client, RESOURCE_CLAIMS, claim("second"))

    assert text == (
        'resourceclaims.resource.k8s.io "second" is forbidden: exceeded quota: limits, '
        f"requested: {name}=1, used: {name}=1, limited: {name}=1"
    )
    assert await used(client) == {name: "1"}
    await client.delete(RESOURCE_CLAIMS, "first", "default")
    await client.create(RESOURCE_CLAIMS, claim("second"))


async def test_devices_of_a_class_are_counted_by_the_worst_case(client: Client) -> None:
    choices = [
        {"name": "one", "deviceClassName": "gpu.example.com", "count": 1},
        {"name": "three", "deviceClassName": "gpu.example.com", "count": 3},
        {"name": "other", "deviceClassName": "other.example.com", "count": 5},
    ]
    await client.create(QUOTAS, quota({DEVICES: "40"}))

    await client.create(RESOURCE_CLAIMS, of("two", exactly("a"), exactly("b")))
    assert await used(client) == {DEVICES: "2"}
    await client.create(RESOURCE_CLAIMS, of("choice", {"name": "any", "firstAvailable": choices}))
    assert await used(client) == {DEVICES: "5"}
    every = {"name": "every", "exactly": {"deviceClassName": "gpu.example.com", "allocationMode": "All"}}
    await client.create(RESOURCE_CLAIMS, of("every", every))
    assert await used(client) == {DEVICES: "37"}
    assert "requested: " + DEVICES + "=4, used: " + DEVICES + "=37" in await refusal(
        client, RESOURCE_CLAIMS, of("four", exactly("a", 4))
    )


async def test_pods_count_until_their_end(client: Client) -> None:
    await client.create(QUOTAS, quota({"pods": "1", "count/pods": "5"}))
    await client.create(PODS, pod("first"))
    assert "used: pods=1, limited: pods=1" in await refusal(client, PODS, pod("second"))

    first = await client.get(PODS, "first", "default")
    await client.update(PODS, {**first, "status": {**first["status"], "phase": "Succeeded"}}, subresource="status")

    assert await used(client) == {"pods": "0", "count/pods": "1"}
    await client.create(PODS, pod("second"))


async def test_requests_and_limits_of_pods_are_counted_and_demanded(client: Client) -> None:
    await client.create(QUOTAS, quota({"cpu": "1", "limits.memory": "1Gi", "requests.example.com/gpu": "2"}))

    text = await refusal(client, PODS, pod("lazy"))
    assert text == 'pods "lazy" is forbidden: failed quota: limits: must specify cpu for: main; limits.memory for: main'

    small = {"cpu": "600m", "example.com/gpu": "1"}
    await client.create(PODS, using("small", requests=small, limits={"memory": "512Mi", "example.com/gpu": "1"}))
    assert await used(client) == {"cpu": "600m", "limits.memory": "512Mi", "requests.example.com/gpu": "1"}
    large = {"cpu": "500m", "example.com/gpu": "2"}
    text = await refusal(client, PODS, using("large", requests=large, limits={"memory": "1Mi", "example.com/gpu": "2"}))
    assert text.endswith(
        "exceeded quota: limits, requested: cpu=500m,requests.example.com/gpu=2, "
        "used: cpu=600m,requests.example.com/gpu=1, limited: cpu=1,requests.example.com/gpu=2"
    )


async def test_scopes_choose_pods_and_no_claims(client: Client) -> None:
    await client.create(QUOTAS, quota({"pods": "0"}, "effortless", scopes=["BestEffort"]))
    await client.create(QUOTAS, quota({"pods": "0"}, "short", scopes=["Terminating"]))
    await client.create(QUOTAS, quota({"count/resourceclaims.resource.k8s.io": "0"}, "none", scopes=["BestEffort"]))

    assert "exceeded quota: effortless" in await refusal(client, PODS, pod("first"))
    given = {"resources": {"requests": {"cpu": "1"}}}
    text = await refusal(client, PODS, pod("first", container=given, spec={"activeDeadlineSeconds": 5}))
    assert "exceeded quota: short" in text
    await client.create(PODS, pod("first", container=given))
    await client.create(RESOURCE_CLAIMS, claim("first"))


async def test_priority_classes_choose_pods(client: Client) -> None:
    chosen = {"scopeName": "PriorityClass", "operator": "In", "values": ["system-node-critical"]}
    await client.create(QUOTAS, quota({"pods": "0"}, scopeSelector={"matchExpressions": [chosen]}))

    urgent = pod("urgent", spec={"priorityClassName": "system-node-critical"})
    assert "exceeded quota: limits" in await refusal(client, PODS, urgent)
    await client.create(PODS, pod("usual"))


async def test_objects_of_any_kind_are_counted_in_their_namespace(client: Client) -> None:
    await client.create(NAMESPACES, namespace("other"))
    await client.create(CONFIG_MAPS, config_map("before"))
    await client.create(QUOTAS, quota({"configmaps": "2", "count/configmaps": "9", "count/resourcequotas": "1"}))
    assert await used(client) == {"configmaps": "1", "count/configmaps": "1", "count/resourcequotas": "1"}

    await client.create(CONFIG_MAPS, config_map("second"))
    assert "requested: configmaps=1, used: configmaps=2" in await refusal(client, CONFIG_MAPS, config_map("third"))
    assert "count/resourcequotas=1" in await refusal(client, QUOTAS, quota({}, "another"))
    await client.create(CONFIG_MAPS, config_map("third", namespace="other"))


async def test_a_changed_quota_counts_again_and_a_deleted_one_rejects_nothing(client: Client) -> None:
    await client.create(QUOTAS, quota({"pods": "1"}))
    await client.create(PODS, pod("first"))
    await client.create(CONFIG_MAPS, config_map("settings"))

    await client.patch(QUOTAS, "limits", {"spec": {"hard": {"pods": "2", "configmaps": "1"}}}, "default")
    assert await used(client) == {"pods": "1", "configmaps": "1"}
    assert (await client.get(QUOTAS, "limits", "default"))["status"]["hard"] == {"pods": "2", "configmaps": "1"}
    await client.create(PODS, pod("second"))
    await refusal(client, PODS, pod("third"))
    await client.delete(QUOTAS, "limits", "default")
    await client.create(PODS, pod("third"))


async def test_a_dry_run_is_refused_and_uses_nothing(client: Client) -> None:
    await client.create(QUOTAS, quota({"pods": "1"}))
    await client.create(PODS, pod("first"), dry_run=True)
    assert await used(client) == {"pods": "0"}
    await client.create(PODS, pod("first"))
    with pytest.raises(Forbidden):
        await client.create(PODS, pod("second"), dry_run=True)


async def test_a_claim_for_extended_resources_is_not_counted_beside_its_pod(client: Client) -> None:
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu.example.com"},
        "spec": {"extendedResourceName": "example.com/gpu"},
    }
    name = "requests.example.com/gpu"
    await client.create(DEVICE_CLASSES, device_class)
    await client.create(QUOTAS, quota({name: "3"}))
    amounts = {"example.com/gpu": "2"}
    owner = await client.create(PODS, using("owner", requests=amounts, limits=amounts))
    made = of("made", exactly("a", 2))
    made["metadata"] |= {
        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "owner", "uid": owner["metadata"]["uid"], "controller": True}
        ],
    }

    await client.create(RESOURCE_CLAIMS, made)
    assert await used(client) == {name: "2"}
    await client.create(RESOURCE_CLAIMS, of("own", exactly("a")))
    assert await used(client) == {name: "3"}
    assert f"exceeded quota: limits, requested: {name}=1" in await refusal(
        client, RESOURCE_CLAIMS, of("more", exactly("a"))
    )


async def test_what_any_quota_demands_comes_before_the_amounts(client: Client) -> None:
    await client.create(QUOTAS, quota({"pods": "0"}, "a"))
    await client.create(QUOTAS, quota({"limits.cpu": "1"}, "b"))

    assert "failed quota: b: must specify limits.cpu" in await refusal(client, PODS, pod("first"))


@pytest.mark.parametrize(("version", "expected"), [("1.34", "0"), ("1.35", "2")])
async def test_claims_count_for_extended_resources_since_1_35(version: str, expected: str) -> None:
    name = "requests.example.com/gpu"
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu.example.com"},
        "spec": {"extendedResourceName": "example.com/gpu"},
    }
    server = ApiServer(release=Release.alpha(KubernetesVersion.parse(version)))
    server.enforce_quotas()
    async with server, Client(Credentials(Connection(server.url)), user_agent="tests/1") as client:
        await client.create(DEVICE_CLASSES, device_class)
        await client.create(QUOTAS, quota({name: "2"}))

        await client.create(RESOURCE_CLAIMS, of("own", exactly("a", 2)))

        assert await used(client) == {name: expected}


@pytest.mark.parametrize(
    "scopes",
    [
        {"scopes": ["Terminating"]},
        {"scopes": ["PriorityClass"]},
        {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}},
        {},
    ],
    ids=["terminating", "any class", "a class", "all pods"],
)
async def test_of_a_saved_quota_what_is_deleted_is_taken_from_its_status(scopes: Object) -> None:
    hard = {"pods": "9", "requests.example.com/gpu": "9"}
    amounts = {"resources": {"requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "1"}}}
    spec = {"priorityClassName": "high", "priority": 100, "activeDeadlineSeconds": 600, "nodeName": "node-1"}
    status = {"hard": hard, "used": {"pods": "5", "requests.example.com/gpu": "7"}}
    server = ApiServer(release=Release.alpha())
    for name in ("one", "two"):
        running = {**pod(name, container=amounts, spec=spec), "status": {"phase": "Running"}}
        running["metadata"] |= {"uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
        server.api.storage.create("pods", f"default/{name}", reduced("Pod", running))
    saved = quota(hard, **scopes) | {"status": status}
    saved["metadata"] |= {"uid": "limits", "creationTimestamp": "2026-01-01T00:00:00Z"}
    server.api.storage.create("resourcequotas", "default/limits", reduced("ResourceQuota", saved))
    server.enforce_quotas()
    async with server, Client(Credentials(Connection(server.url)), user_agent="tests/1") as client:
        assert await used(client) == {"pods": "5", "requests.example.com/gpu": "7"}

        await client.delete(PODS, "one", "default", grace_period_seconds=0)

        assert await used(client) == {"pods": "4", "requests.example.com/gpu": "6"}


async def test_a_class_that_gets_an_extended_resource_counts_for_the_claims_there_are(client: Client) -> None:
    name = "requests.example.com/gpu"
    device_class = {
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu.example.com"}, "spec": {},
    }  # fmt: skip
    await client.create(DEVICE_CLASSES, device_class)
    await client.create(QUOTAS, quota({name: "3", "pods": "1"}))
    await client.create(RESOURCE_CLAIMS, of("own", exactly("a", 2)))
    assert await used(client) == {name: "0", "pods": "0"}

    change = {"spec": {"extendedResourceName": "example.com/gpu"}}
    await client.patch(DEVICE_CLASSES, "gpu.example.com", change)

    assert await used(client) == {name: "2", "pods": "0"}


async def test_of_extended_resources_only_what_a_change_concerns_is_counted_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, amounts = "requests.example.com/gpu", {"example.com/gpu": "1"}
    await client.create(QUOTAS, quota({name: "50"}))
    for number in range(20):
        await client.create(PODS, using(f"pod-{number}", requests=amounts, limits=amounts))
    counted: list[str] = []
    before = quotas._usage_of_pod

    def counting(obj: Object, version: KubernetesVersion) -> Mapping[str, Any]:
        counted.append(obj["metadata"]["name"])
        return before(obj, version)

    monkeypatch.setattr(quotas, "_usage_of_pod", counting)
    first = await client.get(PODS, "pod-0", "default")
    await client.update(PODS, {**first, "status": {**first["status"], "phase": "Succeeded"}}, subresource="status")

    assert await used(client) == {name: "19"}
    assert set(counted) == {"pod-0"}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=12), st.integers(0, 6))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_usage_is_the_sum_of_what_there_is_and_never_above_the_limit(
    steps: list[tuple[int, int]], most: int
) -> None:
    async with ApiServer() as server:
        server.enforce_quotas()
        async with Client(Credentials(Connection(server.url)), user_agent="tests/1") as client:
            await client.create(QUOTAS, quota({DEVICES: str(most), "count/resourceclaims.resource.k8s.io": "9"}))
            there: dict[int, int] = {}
            for number, count in steps:
                if there.pop(number, 0):
                    await client.delete(RESOURCE_CLAIMS, f"claim-{number}", "default")
                    continue
                fits = sum(there.values()) + count <= most
                try:
                    await client.create(RESOURCE_CLAIMS, of(f"claim-{number}", exactly("a", count)))
                except Forbidden:
                    assert not fits
                else:
                    assert fits
                    there[number] = count
                expected = {DEVICES: str(sum(there.values())), "count/resourceclaims.resource.k8s.io": str(len(there))}
                assert await used(client) == expected


async def test_templates_are_counted_as_objects_alone(client: Client) -> None:
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "template", "namespace": "default"},
        "spec": {"spec": claim()["spec"]},
    }
    await client.create(QUOTAS, quota({"count/resourceclaimtemplates.resource.k8s.io": "1", DEVICES: "0"}))

    await client.create(RESOURCE_CLAIM_TEMPLATES, template)

    assert await used(client) == {"count/resourceclaimtemplates.resource.k8s.io": "1", DEVICES: "0"}


_PRIORITY = {"scopeName": "PriorityClass", "operator": "In"}


@pytest.mark.parametrize(
    ("hard", "spec", "problem"),
    [
        ({"pods": "-1"}, {}, 'spec.hard[pods]: Invalid value: "-1": must be greater than or equal to 0'),
        ({"pods": "1.5"}, {}, 'spec.hard[pods]: Invalid value: "1500m": must be an integer'),
        ({"example.com/gpu": "0.5"}, {}, "spec.hard[example.com/gpu]: .*: must be an integer"),
        ({"gpus": "1"}, {}, 'spec.hard[gpus]: Invalid value: "gpus": must be a standard resource for quota'),
        ({"count/": "1"}, {}, 'spec.hard[count/]: Invalid value: "count/": name part must be non-empty'),
        ({"count/a/b": "1"}, {}, 'spec.hard[count/a/b]: Invalid value: "count/a/b": a valid label key'),
        ({"pods": "1"}, {"scopes": ["Foo"]}, "spec.scopes: Invalid value: .*: unsupported scope"),
        ({"services": "1"}, {"scopes": ["BestEffort"]}, "spec.scopes: .*: unsupported scope applied to resource"),
        ({"pods": "1"}, {"scopes": ["BestEffort", "NotBestEffort"]}, "spec.scopes: .*: conflicting scopes"),
        (
            {"pods": "1"},
            {"scopeSelector": {"matchExpressions": [_PRIORITY]}},
            "spec.scopeSelector.matchExpressions.values: Required value: must be at least one value",
        ),
        (
            {"pods": "1"},
            {"scopeSelector": {"matchExpressions": [{**_PRIORITY, "scopeName": "Terminating", "values": ["a"]}]}},
            "spec.scopeSelector.matchExpressions.operator: .*: must be 'Exists' when scope is",
        ),
        (
            {"pods": "1"},
            {"scopeSelector": {"matchExpressions": [{**_PRIORITY, "operator": "Gt", "values": ["1"]}]}},
            "spec.scopeSelector.matchExpressions.operator: .*: not a valid selector operator",
        ),
    ],
)
async def test_an_impossible_quota_is_rejected(
    client: Client, hard: Mapping[str, str], spec: Object, problem: str
) -> None:
    pattern = ".*".join(map(re.escape, problem.split(".*")))

    with pytest.raises(Invalid, match=pattern):
        await client.create(QUOTAS, quota(hard, **spec))


async def test_usual_quotas_are_accepted_and_their_scopes_stay(client: Client) -> None:
    hard = {
        "pods": "1", "requests.example.com/gpu": "1", "count/widgets.example.com": "1", DEVICES: "2",
        "hugepages-2Mi": "1Gi", "requests.hugepages-2Mi": "1Gi", "limits.cpu": "500m", "requests.storage": "1Gi",
    }  # fmt: skip
    await client.create(QUOTAS, quota(hard))
    await client.create(QUOTAS, quota({"pods": "1"}, "short", scopes=["Terminating"]))

    with pytest.raises(Invalid, match=r"spec.scopes: .*: field is immutable"):
        await client.patch(QUOTAS, "short", {"spec": {"scopes": ["NotTerminating"]}}, "default")


@pytest.mark.parametrize(
    ("release", "total"),
    [("1.37", "10000000000000000000000000000000000000001"), ("1.38", "10000000000000000000000000000010e9")],
)
async def test_usage_is_added_as_the_release_does(release: str, total: str) -> None:
    async with ApiServer(release=Release.parse(release)) as server:
        server.enforce_quotas()
        async with Client(Credentials(Connection(server.url)), user_agent="tests/1") as client:
            await client.create(QUOTAS, quota({"requests.memory": "1e41"}))
            for name, amount in (("a", "1e40"), ("b", "1")):
                await client.create(PODS, using(name, requests={"memory": amount}))

            assert await used(client) == {"requests.memory": total}
