"""Change detection: an equal inventory is unchanged, and every difference is a change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.slices.discovery import InventoryAcceptor
from dra_kit.slices.inventory import node_source
from tests.unit.node.drivers import driver
from tests.unit.node.role import NODE


class Pizza(dra.Device):
    serial: str = "S1"


def pizzas(**fields: Any) -> list[dra.Device]:
    first = Pizza(**{"name": "a", "attributes": {"hot": True}, "capacity": {"slices": 8}, **fields})
    return [first, dra.Device(name="b")]


def pools(**fields: Any) -> dra.Inventory[dra.Device]:
    return dra.Inventory(pools=[dra.Pool(devices=pizzas(**fields)), dra.Pool(name="rack", devices=pizzas())])


def acceptance(**options: Any) -> InventoryAcceptor:
    return InventoryAcceptor(node_source(driver(**options), NODE), lambda name, rule: None)


@pytest.mark.parametrize("make", [pizzas, pools], ids=["list", "inventory"])
def test_equal_rebuilt_inventory_is_unchanged(make: Callable[[], object]) -> None:
    accepting = acceptance()
    assert accepting.accept(make())
    assert accepting.accept(make()) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"serial": "S2"},
        {"attributes": {"hot": 1}},
        {"attributes": {"hot": dra.observed(True)}},
        {"attributes": {"hot": (True,)}},
        {"capacity": {"slices": 9}},
        {"taints": [dra.DeviceTaint(key="dra.pizza/sick", effect="NoSchedule")]},
    ],
    ids=["own field", "True is not 1", "marked", "list", "capacity", "taint"],
)
@pytest.mark.parametrize("make", [pizzas, pools], ids=["list", "inventory"])
def test_each_difference_is_a_change(make: Callable[..., object], fields: dict[str, Any]) -> None:
    accepting = acceptance()
    accepting.accept(make())
    assert accepting.accept(make(**fields))
    assert accepting.accept(make())


def test_lists_of_true_and_one_differ() -> None:
    accepting = acceptance()
    accepting.accept(pizzas(attributes={"hot": [True, True]}))
    found = accepting.accept(pizzas(attributes={"hot": [1, 1]}))
    assert found is not None
    assert found.inventory.pools[0].devices[0].to_v1().to_json()["attributes"] == {"hot": {"ints": [1, 1]}}


def test_list_modified_by_the_author_is_a_change() -> None:
    accepting, found = acceptance(), pizzas()
    accepting.accept(found)
    found.append(dra.Device(name="c"))
    assert accepting.accept(found)


def test_change_of_pool_fields_is_a_change() -> None:
    def counted(slots: int) -> dra.Inventory[dra.Device]:
        return dra.Inventory(pools=[dra.Pool(counter_sets=[dra.CounterSet(name="oven", counters={"slots": slots})])])

    accepting = acceptance()
    accepting.accept(counted(8))
    assert accepting.accept(counted(8)) is None
    assert accepting.accept(counted(9))


def test_modified_copy_of_a_device_is_validated_again() -> None:
    accepting = acceptance()
    [first, second] = pizzas()
    accepting.accept([first, second])
    with pytest.raises(dra.InvalidDevice, match='attributes: Invalid value: "a b"'):
        accepting.accept([first.model_copy(update={"attributes": {"a b": 1}}), second])
    with pytest.raises(dra.InvalidDevice, match=r"name: Invalid value"):
        accepting.accept([first, second.model_copy(deep=True, update={"name": "B"})])
    assert accepting.accept([first.model_copy(), second.model_copy(deep=True)]) is None


def test_invalid_device_is_rejected_each_time() -> None:
    accepting = acceptance()
    wrong: Sequence[object] = [*pizzas(), "c"]
    for _ in range(2):
        with pytest.raises(dra.InvalidDevice, match=r"'c' is not a dra_kit\.Device"):
            accepting.accept(wrong)


def test_unchanged_inventory_with_dropped_devices_is_unchanged() -> None:
    accepting = acceptance(invalid_devices="drop")
    wrong: Sequence[object] = [*pizzas(), dra.Device.model_construct(), "c"]
    found = accepting.accept(wrong)
    assert found is not None
    assert [device.name for device in found.inventory.pools[0].devices] == ["a", "b"]
    assert accepting.accept(wrong) is None


def test_equal_devices_share_their_published_form() -> None:
    [first, _], [second, _] = pizzas(), pizzas(serial="S2")
    assert first.to_v1() is second.to_v1()
    assert pizzas(attributes={"hot": 1})[0].to_v1() is not first.to_v1()
