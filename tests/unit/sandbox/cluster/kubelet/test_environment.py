from __future__ import annotations

import base64
from typing import Any

import pytest

from dra_kit.errors import KubeletError, NotFound
from dra_kit.kubernetes.release import DEFAULT
from dra_kit.sandbox.kubelet.environment import NodeFacts, container_environment
from tests.unit.sandbox.cluster.kubelet.pods import container, pod

NODE = NodeFacts("node-a", "127.0.0.1", {"cpu": "4", "memory": "8Gi"}, DEFAULT)
OBJECTS = {
    ("ConfigMap", "menu"): {"data": {"PIZZA": "funghi", "DOUGH": "thin"}},
    ("Secret", "recipe"): {"data": {"SAUCE": base64.b64encode(b"tomato").decode()}},
}


async def fetch(kind: str, namespace: str, name: str) -> dict[str, Any]:
    assert namespace == "kitchen"
    if (kind, name) not in OBJECTS:
        raise NotFound(f"{kind} {name} not found")
    return OBJECTS[kind, name]


async def variables(*env: dict[str, Any], **more: Any) -> dict[str, str]:
    eater = container("eater", env=list(env), **more)
    of = pod(eater, serviceAccountName="cook")
    of["metadata"] |= {"labels": {"app.example/role": "guest"}, "annotations": {"seat": "4"}}
    return await container_environment(of, eater, NODE, fetch)


def field(path: str) -> dict[str, Any]:
    return {"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}


async def test_values_refer_to_those_before_them() -> None:
    found = await variables(
        {"name": "A", "value": "1"}, {"name": "B", "value": "$(A)$(C)"}, {"name": "C", "value": "3"}, {"name": "D"}
    )
    assert found == {"A": "1", "B": "1$(C)", "C": "3", "D": ""}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "guest"),
        ("metadata.namespace", "kitchen"),
        ("metadata.uid", "uid-guest"),
        ("metadata.labels['app.example/role']", "guest"),
        ("metadata.annotations['seat']", "4"),
        ("metadata.annotations['unknown']", ""),
        ("spec.nodeName", "node-a"),
        ("spec.serviceAccountName", "cook"),
        ("status.podIP", "127.0.0.1"),
        ("status.hostIP", "127.0.0.1"),
    ],
)
async def test_fields(path: str, value: str) -> None:
    assert await variables(field(path)) == {"X": value}


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [
        ("requests.cpu", "", "2"),
        ("requests.cpu", "1m", "1500"),
        ("limits.cpu", "", "4"),
        ("limits.memory", "1Mi", "101"),
        ("requests.memory", "", "0"),
    ],
)
async def test_resources_are_rounded_up_and_limited_by_the_node(resource: str, divisor: str, value: str) -> None:
    reference = {"resource": resource, **({"divisor": divisor} if divisor else {})}
    entry = {"name": "X", "valueFrom": {"resourceFieldRef": reference}}
    resources = {"requests": {"cpu": "1500m"}, "limits": {"memory": "100.5Mi"}}
    assert await variables(entry, resources=resources) == {"X": value}


async def test_largest_amount_is_written_as_an_int64() -> None:
    entry = {"name": "X", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}}

    found = await variables(entry, resources={"limits": {"memory": "1e2147483647"}})

    assert -(2**63) <= int(found["X"]) < 2**63


async def test_config_maps_and_secrets() -> None:
    assert await variables(
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "menu", "key": "PIZZA"}}},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "recipe", "key": "SAUCE"}}},
        {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "menu", "key": "no", "optional": True}}},
        envFrom=[{"prefix": "MENU_", "configMapRef": {"name": "menu"}}, {"secretRef": {"name": "recipe"}}],
    ) == {"MENU_PIZZA": "funghi", "MENU_DOUGH": "thin", "SAUCE": "tomato", "A": "funghi", "B": "tomato"}


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"configMapKeyRef": {"name": "no", "key": "x"}}, 'configmap "no" not found'),
        ({"secretKeyRef": {"name": "no", "key": "x"}}, 'secret "no" not found'),
        ({"configMapKeyRef": {"name": "menu", "key": "x"}}, "couldn't find key x in ConfigMap kitchen/menu"),
        ({"fieldRef": {"fieldPath": "spec.color"}}, "unsupported fieldPath: spec.color"),
    ],
)
async def test_unresolvable_references_are_rejected(env: dict[str, Any], text: str) -> None:
    with pytest.raises(KubeletError) as caught:
        await variables({"name": "X", "valueFrom": env})
    assert str(caught.value) == text


async def test_optional_references_may_be_missing() -> None:
    optional = {"name": "no", "optional": True}
    assert (
        await variables(
            {"name": "A", "valueFrom": {"secretKeyRef": {**optional, "key": "x"}}}, envFrom=[{"configMapRef": optional}]
        )
        == {}
    )
