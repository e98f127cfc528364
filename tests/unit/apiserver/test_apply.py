"""Server-side apply and managed fields."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kit.apiserver.managed_fields import (
    ApplyConflict,
    FieldManager,
    after_apply,
    entries,
    field_set,
    from_fields_v1,
    managers_of,
    to_fields_v1,
)
from dra_kit.client.api import APPLY, Client
from dra_kit.client.resources import CONFIG_MAPS
from dra_kit.errors import Conflict
from dra_kit.kubernetes.release import DEFAULT
from tests.unit.apiserver.conftest import Http, Object, config_map

TYPE = "core/v1.ConfigMap"
maps = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("12"), max_size=4)


async def apply(client: Client, manager: str, data: dict[str, str], *, force: bool = False) -> dict[str, Any]:
    options: Any = {"content_type": APPLY, "field_manager": manager, "force": force}
    return await client.patch(CONFIG_MAPS, "settings", config_map(data=data), "default", **options)


async def test_apply_creates_and_then_changes(client: Client) -> None:
    created = await apply(client, "one", {"a": "1", "b": "1"})
    changed = await apply(client, "one", {"a": "2"})

    assert (created["data"], changed["data"]) == ({"a": "1", "b": "1"}, {"a": "2"})


async def test_two_appliers_share_an_object(client: Client) -> None:
    await apply(client, "one", {"a": "1"})
    await apply(client, "two", {"b": "1"})

    left = await apply(client, "one", {})

    assert left["data"] == {"b": "1"}


async def test_field_of_another_manager_is_a_conflict_unless_forced(client: Client) -> None:
    await apply(client, "one", {"a": "1"})

    with pytest.raises(Conflict, match=r'conflict with "one": \.data\.a'):
        await apply(client, "two", {"a": "2"})
    assert (await apply(client, "two", {"a": "2"}, force=True))["data"] == {"a": "2"}
    assert (await apply(client, "one", {}))["data"] == {"a": "2"}


async def test_other_writes_take_their_fields_over(client: Client) -> None:
    await apply(client, "one", {"a": "1"})
    await client.patch(CONFIG_MAPS, "settings", {"data": {"a": "2"}}, "default", field_manager="editor")

    with pytest.raises(Conflict, match='conflict with "editor" using v1'):
        await apply(client, "one", {"a": "1"})


async def test_an_apply_without_a_difference_writes_nothing(client: Client) -> None:
    first = await apply(client, "one", {"a": "1"})

    assert await apply(client, "one", {"a": "1"}) == first


@given(maps)
@settings(deadline=None)
def test_field_sets_survive_being_written(data: dict[str, str]) -> None:
    fields = field_set({"metadata": {"labels": data, "finalizers": ["a/b"]}, "data": data}, TYPE)

    assert from_fields_v1(to_fields_v1(fields)) == fields


@given(st.lists(st.tuples(st.sampled_from(["one", "two"]), maps), min_size=1, max_size=6))
@settings(deadline=None)
def test_after_any_forced_applies_each_manager_finds_its_last_configuration(
    applies: list[tuple[str, dict[str, str]]],
) -> None:
    live: dict[str, Any] = {}
    last: dict[str, dict[str, str]] = {}
    managers: list[FieldManager] = []
    for name, data in applies:
        writer = FieldManager(name, "Apply", "v1", "", frozenset())
        outcome = after_apply(live, {"metadata": {}, "data": data}, TYPE, writer, managers, force=True, version=DEFAULT)
        live, managers = outcome.obj, outcome.managers
        last = {**last, name: data}

    writer_name, writer_data = applies[-1]
    assert writer_data.items() <= live["data"].items()
    owned = {key for data in last.values() for key in data}
    assert set(live["data"]) <= owned
    assert {manager.name for manager in managers} <= set(last)
    try:
        again = after_apply(
            live, {"metadata": {}, "data": writer_data}, TYPE,
            FieldManager(writer_name, "Apply", "v1", "", frozenset()), managers, force=False, version=DEFAULT,
        )  # fmt: skip
    except ApplyConflict:
        pytest.fail("what was applied last has no conflict with itself")
    assert again.obj == live


def test_managers_are_read_as_they_are_written() -> None:
    manager = FieldManager("one", "Apply", "v1", "status", frozenset({("f:data", "f:a")}), "2026-01-02T03:04:05Z")

    assert managers_of({"metadata": {"managedFields": [manager.entry()]}}) == [manager]


def test_managers_are_sorted_by_operation_time_and_name() -> None:
    def manager(name: str, operation: Literal["Apply", "Update"], second: int) -> FieldManager:
        return FieldManager(name, operation, "v1", "", frozenset({("f:data", "f:a")}), f"2026-01-02T03:04:{second:02}Z")

    managers = [manager("c", "Update", 1), manager("a", "Apply", 3), manager("d", "Apply", 2), manager("b", "Apply", 2)]

    assert [entry["manager"] for entry in entries(managers)] == ["b", "d", "a", "c"]


UNKNOWN = ": field not declared in schema"


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        ({"nodeNme": "a"}, f".spec.nodeNme{UNKNOWN}"),
        (
            {"nodeNme": "a", "containers": [{"name": "c", "imge": "x"}]},
            f'errors:\n  .spec.containers[name="c"].imge{UNKNOWN}\n  .spec.nodeNme{UNKNOWN}',
        ),
    ],
)  # fmt: skip
async def test_apply_names_the_unknown_fields_of_all_objects(http: Http, spec: Object, cause: str) -> None:
    """As kube-apiserver 1.37.1, which names one unknown field of each object."""
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec}
    path = "/api/v1/namespaces/default/pods/one?fieldManager=tests"
    code, answer, _ = await http("PATCH", path, body, content_type="application/apply-patch+yaml")

    assert code == 500
    assert answer["message"] == f"failed to create typed patch object (/one; /v1, Kind=Pod): {cause}"
