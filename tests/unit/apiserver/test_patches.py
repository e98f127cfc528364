"""JSON, merge and strategic merge patches."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kit.apiserver import patches as json_patch
from dra_kit.apiserver.patches import merge_patch, strategic_merge_patch
from dra_kit.client.api import JSON_PATCH, Client
from dra_kit.client.resources import CONFIG_MAPS, PODS
from tests.unit.apiserver.conftest import Http, config_map, pod

PATH = "/api/v1/namespaces/default/pods/pod-1"
STRATEGIC = "application/strategic-merge-patch+json"

values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from("abcd"), values, max_size=4)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return value


def difference(old: Any, new: Any) -> Any:
    """The merge patch from one object to another."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    changed = {key: difference(old.get(key), value) for key, value in new.items() if old.get(key, ...) != value}
    return changed | {key: None for key in old if key not in new}


@given(objects.map(without_nulls), objects.map(without_nulls))
@settings(deadline=None)
def test_a_merge_patch_of_the_difference_makes_the_other_object(old: Any, new: Any) -> None:
    assert merge_patch(old, difference(old, new)) == new


@given(objects, objects)
@settings(deadline=None)
def test_a_merge_patch_changes_neither_argument_and_is_idempotent(old: Any, patch: Any) -> None:
    before = json.dumps([old, patch])

    once = merge_patch(old, patch)

    assert merge_patch(once, patch) == once
    assert json.dumps([old, patch]) == before


@given(objects, values)
@settings(deadline=None)
def test_json_patch_tests_and_removes_a_value_it_added(document: Any, value: Any) -> None:
    add = {"op": "add", "path": "/new~1key", "value": value}
    check = {"op": "test", "path": "/new~1key", "value": value}
    remove = {"op": "remove", "path": "/new~1key"}

    assert json_patch.json_patch(document, [add, check]) == document | {"new/key": value}
    assert json_patch.json_patch(document, [add, check, remove]) == document


@pytest.mark.parametrize(
    "patch",
    [
        [{"op": "remove", "path": "/none"}],
        [{"op": "replace", "path": "/list/0", "value": 1}],
        [{"op": "frob", "path": "/a", "value": 1}],
        [{"op": "add", "path": "", "value": {}}],
        [{"op": "test", "path": "/a", "value": 1.5}],
        [{"op": "add", "path": "/list/9", "value": 1}],
        [{"op": "add", "path": "/none/deep", "value": 1}],
        [{"op": "move", "from": "/none", "path": "/b"}],
        [{"op": "replace", "path": "", "value": None}, {"op": "add", "path": "/a", "value": 1}],
        [{"op": "replace", "path": "", "value": 1}, {"op": "test", "path": "/a", "value": 1}],
        [{"op": "replace", "path": "", "value": 1}, {"op": "add", "path": "/a/b", "value": 1}],
        [{"op": "add", "path": f"/list/{'1' * 5000}", "value": 1}],
    ],
)
def test_a_json_patch_that_does_not_fit_is_refused(patch: Any) -> None:
    with pytest.raises(json_patch.PatchFailed):
        json_patch.json_patch({"a": 1, "list": []}, patch)


def test_json_patch_replaces_a_missing_value() -> None:
    assert json_patch.json_patch({"a": {}}, [{"op": "replace", "path": "/a/b", "value": 1}]) == {"a": {"b": 1}}


async def test_unknown_operation_and_wrong_type_of_patch_are_rejected(client: Client, http: Http) -> None:
    await client.create(PODS, pod())

    statuses = [(await http("PATCH", PATH, [{"op": op, "path": "/a"}], content_type=JSON_PATCH))[0] for op in ("x", 3)]

    assert statuses == [422, 400]


@given(st.lists(st.sampled_from("abcde"), unique=True), st.lists(st.sampled_from("abcde"), unique=True))
@settings(deadline=None)
def test_a_strategic_patch_merges_lists_by_their_key(there: list[str], patched: list[str]) -> None:
    document = {"containers": [{"name": name, "image": "old"} for name in there]}
    patch = {"containers": [{"name": name, "image": "new"} for name in patched]}

    merged = strategic_merge_patch(document, patch, "core/v1.PodSpec")

    images = {item["name"]: item["image"] for item in merged["containers"]}
    assert images == {**dict.fromkeys(there, "old"), **dict.fromkeys(patched, "new")}
    names = [item["name"] for item in merged["containers"]]
    assert [name for name in names if name in patched] == patched
    assert [name for name in names if name not in patched] == [name for name in there if name not in patched]


NAMES = st.lists(st.sampled_from("abcdef"), unique=True)


@given(NAMES, NAMES)
@settings(deadline=None)
def test_set_element_order_applies_and_other_items_keep_their_order(there: list[str], wanted: list[str]) -> None:
    document = {"containers": [{"name": name} for name in there]}
    patch = {"$setElementOrder/containers": [{"name": name} for name in wanted]}

    names = [item["name"] for item in strategic_merge_patch(document, patch, "core/v1.PodSpec")["containers"]]

    assert sorted(names) == sorted(there)
    assert [name for name in names if name in wanted] == [name for name in wanted if name in there]
    assert [name for name in names if name not in wanted] == [name for name in there if name not in wanted]


def test_a_strategic_patch_can_delete_and_replace_items() -> None:
    document = {"containers": [{"name": name, "image": "x"} for name in "abc"]}

    deleted = strategic_merge_patch(document, {"containers": [{"name": "b", "$patch": "delete"}]}, "core/v1.PodSpec")
    replaced = strategic_merge_patch(
        document, {"containers": [{"$patch": "replace"}, {"name": "z"}]}, "core/v1.PodSpec"
    )

    assert [item["name"] for item in deleted["containers"]] == ["a", "c"]
    assert replaced["containers"] == [{"name": "z"}]


def test_lists_without_a_key_are_replaced_or_merged() -> None:
    meta = {"finalizers": ["a/x"], "other": [1]}

    merged = strategic_merge_patch(meta, {"finalizers": ["a/y"]}, "meta/v1.ObjectMeta")
    removed = strategic_merge_patch(merged, {"$deleteFromPrimitiveList/finalizers": ["a/x"]}, "meta/v1.ObjectMeta")

    assert merged["finalizers"] == ["a/y", "a/x"]
    assert removed["finalizers"] == ["a/y"]


async def test_each_patch_changes_the_stored_object(client: Client, http: Http) -> None:
    await client.create(PODS, pod())

    await http("PATCH", PATH, {"spec": {"containers": [{"name": "main", "image": "a:2"}]}}, content_type=STRATEGIC)
    await client.patch(PODS, "pod-1", {"metadata": {"labels": {"l": "1"}}}, "default")
    await client.patch(
        PODS, "pod-1", [{"op": "add", "path": "/metadata/labels/m", "value": "2"}], "default", content_type=JSON_PATCH
    )

    found = await client.get(PODS, "pod-1", "default")
    assert found["spec"]["containers"][0]["image"] == "a:2"
    assert found["spec"]["containers"][0]["terminationMessagePolicy"] == "File"
    assert found["metadata"]["labels"] == {"l": "1", "m": "2"}


async def test_a_patch_of_another_content_type_is_refused(client: Client, http: Http) -> None:
    await client.create(CONFIG_MAPS, config_map())

    status, answer, _ = await http("PATCH", "/api/v1/namespaces/default/configmaps/settings", {})

    assert (status, answer["reason"]) == (415, "UnsupportedMediaType")
