"""The second ``dra.apply`` of an object updates it as ``kubectl apply`` does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.client.resources import DEVICE_CLASSES, PODS
from dra_kit.errors import Invalid
from dra_kit.sandbox.stories.manifests import update_patch
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
        with sandbox(".", time_scale=60, timeout=20) as bed:
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


def test_items_are_merged_by_name() -> None:
    live = {"spec": {"containers": [{"name": "a", "image": "1", "policy": "default"}, {"name": "injected"}]}}
    former = {"spec": {"containers": [{"name": "a", "image": "1", "tty": True}, {"name": "gone"}]}}
    wanted = {"spec": {"containers": [{"name": "a", "image": "2"}, {"name": "new"}]}}
    merged = [{"name": "a", "image": "2", "policy": "default"}, {"name": "new"}, {"name": "injected"}]
    assert update_patch(former, wanted, live) == {"spec": {"containers": merged}}


VALUES = st.recursive(
    st.integers(0, 2), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=6
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


def merged(live: Any, patch: Any) -> Any:
    """The result of a merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    kept = dict(live) if isinstance(live, dict) else {}
    for key, value in patch.items():
        kept.pop(key, None) if value is None else kept.__setitem__(key, merged(kept.get(key), value))
    return kept


@given(OBJECTS, OBJECTS, OBJECTS)
def test_after_the_patch_the_object_has_all_that_is_wanted(former: Any, wanted: Any, live: Any) -> None:
    result = merged(live, update_patch(former, wanted, live))
    assert update_patch(wanted, wanted, result) == {}
    assert not {key for key in former if key not in wanted} & result.keys()
    assert {key for key in live if key not in former} <= result.keys()
