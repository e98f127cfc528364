"""Device uses by the API server's objects, equal to the kubelet's PodResources."""

from __future__ import annotations

from typing import Any

from dra_kit.diagnosis.who import device_uses

Object = dict[str, Any]

DEVICE = {"driver": "gpu.example", "pool": "node-1"}


def claim(name: str, *results: Object, pods: tuple[str, ...] = ()) -> Object:
    return {
        "metadata": {"namespace": "team", "name": name, "uid": f"uid-{name}"},
        "status": {
            "allocation": {"devices": {"results": [{**DEVICE, **item} for item in results]}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": "u"} for pod in pods],
        },
    }


def pod(name: str, containers: list[Object], claims: list[Object], status: Object | None = None, **spec: Any) -> Object:
    return {
        "metadata": {"namespace": "team", "name": name, "uid": "u"},
        "spec": {"nodeName": "node-a", "containers": containers, "resourceClaims": claims, **spec},
        "status": {"phase": "Running", **(status or {})},
    }


def uses_claim(name: str, *uses: Object, **more: Any) -> Object:
    return {"name": name, "resources": {"claims": list(uses)}, **more}


ONE = claim("c", {"request": "gpu", "device": "gpu-0"}, pods=("p",))
ENTRY = [{"name": "g", "resourceClaimName": "c"}]


def reported(*found: list[Object]) -> set[tuple[str, str, str, str]]:
    claims, pods = found
    return {(use.claim, use.device, use.pod, use.container) for use in device_uses(claims, pods)}


def test_a_container_that_names_a_request_gets_the_devices_of_that_request() -> None:
    both = claim(
        "two", {"request": "big/first", "device": "gpu-0"}, {"request": "small", "device": "gpu-1"}, pods=("p",)
    )
    users = pod(
        "p",
        [
            uses_claim("one", {"name": "gpus", "request": "big"}),
            uses_claim("all", {"name": "gpus"}),
            {"name": "none"},
        ],
        [{"name": "gpus", "resourceClaimName": "two"}],
    )
    assert reported([both], [users]) == {
        ("two", "gpu-0", "p", "one"),
        ("two", "gpu-0", "p", "all"),
        ("two", "gpu-1", "p", "all"),
    }


def test_a_claim_that_was_generated_for_its_pod() -> None:
    made = claim("p-gpus-x7", {"request": "gpu", "device": "gpu-0"}, pods=("p",))
    users = pod(
        "p",
        [uses_claim("main", {"name": "gpus"})],
        [{"name": "gpus", "resourceClaimTemplateName": "t"}],
        {"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "p-gpus-x7"}]},
    )
    assert reported([made], [users]) == {("p-gpus-x7", "gpu-0", "p", "main")}


def test_an_extended_resource() -> None:
    made = claim("p-extended", {"request": "container-0-request-0", "device": "gpu-0"}, pods=("p",))
    mapping = {"containerName": "main", "resourceName": "example/gpu", "requestName": "container-0-request-0"}
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "p-extended", "requestMappings": [mapping]}}
    users = pod("p", [{"name": "main"}, {"name": "other"}], [], status)
    assert reported([made], [users]) == {("p-extended", "gpu-0", "p", "main")}


def test_sidecars_have_devices_and_init_containers_while_the_pod_begins() -> None:
    inits = [
        uses_claim("sidecar", {"name": "g"}, restartPolicy="Always"),
        uses_claim("init", {"name": "g"}),
    ]
    begun = pod("p", [{"name": "main"}], ENTRY, initContainers=inits)
    beginning = pod("p", [{"name": "main"}], ENTRY, {"phase": "Pending"}, initContainers=inits)
    assert reported([ONE], [begun]) == {("c", "gpu-0", "p", "sidecar")}
    assert reported([ONE], [beginning]) == {("c", "gpu-0", "p", "sidecar"), ("c", "gpu-0", "p", "init")}


def test_an_ended_pod_has_no_devices_but_its_claim_is_reported() -> None:
    ended = pod("p", [uses_claim("main", {"name": "g"})], ENTRY, {"phase": "Failed"})
    assert reported([ONE], [ended]) == {("c", "gpu-0", "", "")}


def test_pods_that_may_not_be_read_are_known_by_name() -> None:
    one = claim("c", {"request": "gpu", "device": "gpu-0"}, pods=("p", "q"))
    assert reported([one], []) == {("c", "gpu-0", "p", ""), ("c", "gpu-0", "q", "")}


def test_a_device_that_no_container_names_is_reported_with_the_pod() -> None:
    users = pod("p", [{"name": "main"}], ENTRY)
    assert reported([ONE], [users]) == {("c", "gpu-0", "p", "")}


def test_the_node_is_that_of_the_pod_or_the_slice() -> None:
    one = claim("c", {"request": "gpu", "device": "gpu-0", "shareID": "s"}, pods=("p",))
    users = pod("p", [uses_claim("main", {"name": "g"})], ENTRY)
    pool = {"spec": {"driver": "gpu.example", "pool": {"name": "node-1"}, "nodeName": "node-b"}}
    assert [(use.node, use.share) for use in device_uses([one], [users], [pool])] == [("node-a", "s")]
    assert [use.node for use in device_uses([one], [], [pool])] == ["node-b"]


def test_a_claim_without_devices_is_not_reported() -> None:
    assert device_uses([{"metadata": {"name": "c", "namespace": "team"}}], []) == []
