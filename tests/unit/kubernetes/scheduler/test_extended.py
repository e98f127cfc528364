"""Expected values are recorded from Kubernetes 1.37.1."""

from __future__ import annotations

from typing import Any

import pytest

from dra_kit.kubernetes.release import DEFAULT, OLDEST, KubernetesVersion
from dra_kit.kubernetes.scheduler.claims import ExtendedResources, extended_resources

Object = dict[str, Any]
OVEN = "example.com/oven"
CLASSES = [
    {"metadata": {"name": "oven"}, "spec": {"extendedResourceName": OVEN}},
    {"metadata": {"name": "salad"}, "spec": {}},
]


def container(name: str, amount: int, resource: str = OVEN, **fields: Any) -> Object:
    return {"name": name, "resources": {"requests": {"cpu": "1", resource: str(amount)}}, **fields}


def pod(*containers: Object, inits: list[Object] | None = None) -> Object:
    metadata = {"name": "guest", "namespace": "default", "uid": "1"}
    return {"metadata": metadata, "spec": {"containers": list(containers), "initContainers": inits or []}}


def extended_of(pod: Object) -> ExtendedResources:
    extended = extended_resources(pod, CLASSES, DEFAULT)
    assert extended is not None
    return extended


def asked_of(pod: Object, allocatable: dict[str, int]) -> dict[str, int]:
    """Return the number of devices by request."""
    requests = extended_of(pod).claim_on(allocatable).document["spec"]["devices"]["requests"]
    return {item["name"]: item["exactly"]["count"] for item in requests}


def mappings_of(pod: Object) -> list[tuple[str, str]]:
    return [(item["containerName"], item["requestName"]) for item in extended_of(pod).claim_on({}).mappings]


def test_pod_without_class_resources_has_no_extended_resources() -> None:
    assert extended_resources(pod(container("a", 1, "example.com/other"), container("b", 0)), CLASSES, DEFAULT) is None


@pytest.mark.parametrize(
    ("allocatable", "provided"),
    [({}, {OVEN}), ({OVEN: 0}, {OVEN}), ({OVEN: 1000}, set()), ({"cpu": 1000}, {OVEN})],
)
def test_device_plugin_of_node_takes_precedence(allocatable: dict[str, int], provided: set[str]) -> None:
    extended = extended_of(pod(container("a", 1)))

    assert extended.provided_on(allocatable) == provided
    assert extended.claim_on(allocatable).resources == provided
    assert asked_of(pod(container("a", 1)), allocatable) == ({"container-0-request-1": 1} if provided else {})


def test_class_provides_implicit_resource() -> None:
    assert asked_of(pod(container("a", 2, "deviceclass.resource.kubernetes.io/salad")), {}) == {
        "container-0-request-1": 2
    }


def test_init_containers_use_devices_of_later_containers() -> None:
    guest = pod(container("c0", 1), container("c1", 1), inits=[container("i0", 3), container("i1", 1)])

    assert asked_of(guest, {}) == dict.fromkeys(
        ("container-0-request-1", "container-2-request-1", "container-3-request-1"), 1
    )
    assert mappings_of(guest) == [
        ("c0", "container-2-request-1"),
        ("c1", "container-3-request-1"),
        ("i0", "container-2-request-1"),
        ("i0", "container-3-request-1"),
        ("i0", "container-0-request-1"),
        ("i1", "container-2-request-1"),
    ]


def test_init_containers_share_request_for_additional_devices() -> None:
    guest = pod(container("c", 1), inits=[container("i0", 2), container("i1", 4)])

    assert asked_of(guest, {}) == {"container-1-request-1": 3, "container-2-request-1": 1}
    assert ("i0", "container-1-request-1") in mappings_of(guest)


def test_sidecar_has_own_devices() -> None:
    sidecar = container("sidecar", 1, restartPolicy="Always")
    guest = pod(container("c", 1), inits=[sidecar, container("late", 1)])

    assert asked_of(guest, {}) == {"container-0-request-1": 1, "container-2-request-1": 1}
    assert ("late", "container-2-request-1") in mappings_of(guest)


@pytest.mark.parametrize(("version", "blocks"), [(OLDEST, True), (DEFAULT, False)])
def test_the_claim_is_that_of_the_release_for_which_the_resources_were_read(
    version: KubernetesVersion, blocks: bool
) -> None:
    extended = extended_resources(pod(container("a", 1)), CLASSES, version)

    assert extended is not None
    [owner] = extended.claim_on({}).document["metadata"]["ownerReferences"]
    assert ("blockOwnerDeletion" in owner) == blocks


@pytest.mark.parametrize(("minor", "claimed"), [(34, {OVEN}), (35, {OVEN, "deviceclass.resource.kubernetes.io/salad"})])
def test_resource_of_a_class_without_name_gets_no_device_in_1_34(minor: int, claimed: set[str]) -> None:
    version = KubernetesVersion(1, minor)
    implicit = "deviceclass.resource.kubernetes.io/salad"
    extended = extended_resources(pod(container("a", 2), container("b", 1, implicit)), CLASSES, version)

    assert extended is not None
    assert extended.provided_on({}) == {OVEN, implicit}  # a node need not have it
    assert extended.claim_on({}).resources == claimed
