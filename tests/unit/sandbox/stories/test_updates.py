"""The second ``dra.apply`` of an object updates it as ``kubectl apply`` does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.apiserver.patches import merge_patch, strategic_merge_patch
from dra_kit.client.resources import DEVICE_CLASSES, PODS
from dra_kit.errors import Invalid
from dra_kit.sandbox.stories.manifests import apply_files, apply_patch
from dra_kit.testing import Harness, TestBed, sandbox
from tests.unit.testing.bakery import write_project

CLASS = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "ours"}, "spec": {}}


def claim(name: str) -> dict[str, Any]:
    request = {"name": "bread", "exactly": {"deviceClassName": name}}
    spec = {"devices": {"requests": [request]}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "loaf"}, "spec": spec}


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(write_project(tmp_path_factory.mktemp("ovens"), {}))
        with sandbox(".", time_scale=60, timeout=60) as bed:
            yield bed


@pytest.fixture
def dra(bed: TestBed, tmp_path: Path) -> Iterator[Harness]:
    with bed.harness("updates", directory=tmp_path) as harness:
        yield harness


def labelled(**labels: str) -> dict[str, Any]:
    containers = [{"name": "main", "image": "busybox", "command": ["sleep", "100"]}]
    metadata = {"name": "guest", "labels": labels}
    spec = {"terminationGracePeriodSeconds": 0, "containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def pod(dra: Harness) -> dict[str, Any]:
    return dra._background.call(dra.cluster.client.get(PODS, "guest", dra.namespace))


def test_existing_object_is_updated_and_dropped_fields_are_removed(dra: Harness) -> None:
    dra.apply(labelled(a="1", b="2"))
    dra.wait("guest")
    dra.apply(labelled(b="3", c="4"))
    assert pod(dra)["metadata"]["labels"] == {"b": "3", "c": "4"}
    assert pod(dra)["spec"]["nodeName"] == "node-1"


def test_applying_the_same_again_changes_nothing(dra: Harness) -> None:
    dra.apply(labelled(a="1"))
    dra.wait("guest")
    before = pod(dra)["spec"]
    dra.apply(labelled(a="1"))
    assert pod(dra)["spec"] == before
    dra.delete("Pod/guest")


@pytest.mark.parametrize("parameters", [{"kind": "K", "apiVersion": "v1"}, {"b": [{"d": 1, "c": 2}], "a": {}}])
def test_applying_a_claim_again_does_not_depend_on_the_order_of_its_parameters(
    dra: Harness, parameters: dict[str, Any]
) -> None:
    body = claim("bread")
    body["spec"]["devices"]["config"] = [{"opaque": {"driver": "other.example.com", "parameters": parameters}}]
    dra.apply(body)
    dra.apply(body)
    assert dra.claim("loaf")["spec"]["devices"]["config"] == body["spec"]["devices"]["config"]


def test_change_of_an_immutable_field_is_rejected(dra: Harness) -> None:
    dra.apply(claim("bread"))
    with pytest.raises(Invalid, match="field is immutable"):
        dra.apply(claim("other"))


def test_unknown_field_is_rejected_in_an_update(dra: Harness) -> None:
    dra.apply(claim("bread"))
    with pytest.raises(Exception, match="unknown field"):
        dra.apply({**claim("bread"), "sepc": {}})


def test_object_of_another_owner_is_restored_at_the_end(bed: TestBed, tmp_path: Path) -> None:
    client = bed.cluster.client
    stored = bed.background.call(client.create(DEVICE_CLASSES, CLASS))
    with bed.harness("classes", directory=tmp_path) as dra:
        dra.apply({**CLASS, "metadata": {"name": "ours", "labels": {"a": "1"}}})
        changed = bed.background.call(client.get(DEVICE_CLASSES, "ours"))
        assert changed["metadata"]["labels"] == {"a": "1"}
    restored = bed.background.call(client.get(DEVICE_CLASSES, "ours"))
    assert (restored["metadata"]["uid"], "labels" in restored["metadata"]) == (stored["metadata"]["uid"], False)


@pytest.mark.parametrize("wrong", [{1}, float("nan"), Path("/x"), {1: 2, "a": {3}}])
def test_object_that_is_not_json_is_rejected(dra: Harness, wrong: Any) -> None:
    with pytest.raises(Invalid, match="the object cannot be encoded as JSON"):
        dra.apply({**CLASS, "spec": {"a": wrong}})


def test_tuples_are_lists_in_an_update(dra: Harness) -> None:
    body = labelled(a="1")
    body["spec"]["containers"] = tuple(body["spec"]["containers"])
    dra.apply(body)
    dra.wait("guest")
    dra.apply({**body, "metadata": {"name": "guest"}})
    assert "labels" not in pod(dra)["metadata"]
    dra.delete("Pod/guest")


def test_long_object_is_applied_without_the_annotation(dra: Harness) -> None:
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "long"}}
    dra.apply({**settings, "data": {"a": "x" * 300_000, "b": "1"}})
    dra.apply({**settings, "data": {"a": "y" * 300_000}})


def test_update_keeps_what_admission_and_other_clients_added(dra: Harness) -> None:
    dra.apply(labelled(a="1"))
    dra.wait("guest")
    before = pod(dra)
    assert before["spec"]["containers"][0]["volumeMounts"]  # the token, by admission
    patch = {"metadata": {"labels": {"theirs": "1"}}}
    dra._background.call(dra.cluster.client.patch(PODS, "guest", patch, dra.namespace))
    body = labelled(b="2")
    body["spec"]["containers"][0]["image"] = "busybox:2"
    dra.apply(body)
    after = pod(dra)
    assert after["metadata"]["labels"] == {"theirs": "1", "b": "2"}
    before["spec"]["containers"][0]["image"] = "busybox:2"
    assert after["spec"] == before["spec"]
    dra.delete("Pod/guest")


def test_change_of_a_running_pod_is_rejected_with_the_message_of_the_api(dra: Harness) -> None:
    dra.apply(labelled(a="1"))
    dra.wait("guest")
    body = labelled(a="1")
    body["spec"]["containers"][0]["command"] = ["sleep", "200"]
    with pytest.raises(Invalid, match='Pod "guest" is invalid: spec: Forbidden: pod updates may not change fields'):
        dra.apply(body)
    dra.delete("Pod/guest")


def test_files_are_applied_as_objects_of_a_test(bed: TestBed, tmp_path: Path) -> None:
    file = tmp_path / "class.yaml"

    def applied(labels: dict[str, str], finalizers: list[str]) -> dict[str, Any]:
        metadata = {"name": "filed", "labels": labels, "finalizers": finalizers}
        file.write_text(json.dumps({**CLASS, "metadata": metadata}))
        [made] = bed.background.call(apply_files(bed.cluster.client, [file]))
        return dict(made.object["metadata"])

    applied({"a": "1", "b": "1"}, ["dra.bakery/a", "dra.bakery/b"])
    patch = {"metadata": {"labels": {"theirs": "1"}, "finalizers": ["dra.bakery/a", "dra.bakery/b", "other.org/c"]}}
    bed.background.call(bed.cluster.client.patch(DEVICE_CLASSES, "filed", patch))

    metadata = applied({"b": "2"}, ["dra.bakery/b"])

    assert metadata["labels"] == {"b": "2", "theirs": "1"}
    assert metadata["finalizers"] == ["dra.bakery/b", "other.org/c"]
    version = metadata["resourceVersion"]
    assert applied({"b": "2"}, ["dra.bakery/b"])["resourceVersion"] == version
    clear = {"metadata": {"finalizers": None}}
    bed.background.call(bed.cluster.client.patch(DEVICE_CLASSES, "filed", clear))
    bed.background.call(bed.cluster.client.delete(DEVICE_CLASSES, "filed"))


def test_lists_of_custom_resources_are_replaced(bed: TestBed, tmp_path: Path) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "trays", "singular": "tray", "kind": "Tray"}
    spec = {"group": "bakery.org", "scope": "Cluster", "names": names, "versions": [version]}
    definition = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                  "metadata": {"name": "trays.bakery.org"}, "spec": spec}  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps(definition))

    def applied(**fields: Any) -> dict[str, Any]:
        tray = {"apiVersion": "bakery.org/v1", "kind": "Tray", "metadata": {"name": "low"}, **fields}
        (tmp_path / "b.json").write_text(json.dumps(tray))
        return dict(bed.background.call(apply_files(bed.cluster.client, [tmp_path]))[-1].object)

    applied(items=[{"name": "a"}, {"name": "b"}], size=1, warm=1)
    tray = applied(items=[{"name": "c"}], warm=True)

    assert (tray["items"], tray.get("size"), tray["warm"]) == ([{"name": "c"}], None, True)


def test_replaced_field_does_not_keep_the_defaults_of_the_former_one() -> None:
    live = {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}, "replicas": 1}
    patch = apply_patch({}, {"strategy": {"type": "Recreate"}}, live, "apps/v1.DeploymentSpec")
    assert merge(live, patch, "apps/v1.DeploymentSpec") == {"strategy": {"type": "Recreate"}, "replicas": 1}


def test_list_whose_items_have_equal_keys_is_replaced() -> None:
    ports = [{"containerPort": 53, "protocol": protocol} for protocol in ("TCP", "UDP")]
    live = {"name": "dns", "ports": [ports[0], {"containerPort": 80}]}
    wanted = {"name": "dns", "ports": ports}
    assert merge(live, apply_patch(live, wanted, live, CONTAINER), CONTAINER) == wanted


CONTAINER = "core/v1.Container"


def merge(live: Any, patch: Any, type_name: str) -> Any:
    """The object after a patch."""
    return strategic_merge_patch(live, patch, type_name) if type_name else merge_patch(live, patch)


TEXT = st.sampled_from("abc")


def some_items(key: str, **fields: Any) -> Any:
    """A list whose items have this key."""
    item = st.fixed_dictionaries({key: TEXT}, optional=fields)
    return st.lists(item, max_size=3, unique_by=lambda one: one[key])


ENV = some_items("name", value=TEXT)
MOUNTS = some_items("mountPath", name=TEXT, subPath=TEXT)
CONTAINERS = some_items("name", image=TEXT, env=ENV, volumeMounts=MOUNTS, command=st.lists(TEXT, max_size=2))
TOLERATIONS = st.lists(st.fixed_dictionaries({"key": TEXT}), max_size=2)
SPEC = st.fixed_dictionaries(
    {}, optional={"containers": CONTAINERS, "nodeSelector": st.dictionaries(TEXT, TEXT), "tolerations": TOLERATIONS}
)
FINALIZERS = st.lists(TEXT, max_size=3, unique=True)
METADATA = st.fixed_dictionaries({}, optional={"finalizers": FINALIZERS, "labels": st.dictionaries(TEXT, TEXT)})
OBJECTS = st.fixed_dictionaries({}, optional={"spec": SPEC, "metadata": METADATA})
KEYS = {"containers": "name", "env": "name", "volumeMounts": "mountPath", "finalizers": ""}


def check_applied(former: Any, wanted: Any, live: Any, result: Any, *, typed: bool) -> None:
    """What is wanted is there, in its order; what only ``former`` has is gone; the rest is unchanged."""
    assert result.keys() == (live.keys() - (former.keys() - wanted.keys())) | wanted.keys()
    for key in result:
        if key not in wanted:
            assert result[key] == live[key]
        elif isinstance(wanted[key], dict):
            check_applied(former.get(key, {}), wanted[key], live.get(key, {}), result[key], typed=typed)
        elif typed and key in KEYS:
            parts = [items_of(side.get(key, []), KEYS[key]) for side in (former, wanted, live, result)]
            assert [item for item in parts[3] if item in parts[1]] == list(parts[1])
            check_applied(*parts, typed=typed)
        else:
            assert result[key] == wanted[key]


def items_of(items: list[Any], key: str) -> dict[str, Any]:
    return {item[key]: item for item in items} if key else {item: item for item in items}


@given(OBJECTS, OBJECTS, OBJECTS, st.sampled_from(["core/v1.Pod", ""]))
def test_patch_adds_what_is_wanted_and_removes_only_what_was_applied(
    former: Any, wanted: Any, live: Any, type_name: str
) -> None:
    result = merge(live, apply_patch(former, wanted, live, type_name), type_name)
    check_applied(former, wanted, live, result, typed=bool(type_name))
    assert apply_patch(wanted, wanted, result, type_name) == {}
