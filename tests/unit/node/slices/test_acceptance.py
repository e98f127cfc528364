"""What is found again as it was is taken for what it is, and what is not, never: however ``discover`` yields it."""

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
def test_what_is_built_anew_and_equal_is_no_other_inventory(make: Callable[[], object]) -> None:
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
def test_whatever_is_another_is_noticed(make: Callable[..., object], fields: dict[str, Any]) -> None:
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


def test_a_list_that_the_author_goes_on_working_with_is_another_one() -> None:
    accepting, found = acceptance(), pizzas()
    accepting.accept(found)
    found.append(dra.Device(name="c"))
    assert accepting.accept(found)


def test_a_change_beside_the_devices_is_another_inventory() -> None:
    def counted(slots: int) -> dra.Inventory[dra.Device]:
        return dra.Inventory(pools=[dra.Pool(counter_sets=[dra.CounterSet(name="oven", counters={"slots": slots})])])

    accepting = acceptance()
    accepting.accept(counted(8))
    assert accepting.accept(counted(8)) is None
    assert accepting.accept(counted(9))


def test_a_copy_of_a_valid_device_is_judged_by_what_it_has_become() -> None:
    accepting = acceptance()
    [first, second] = pizzas()
    accepting.accept([first, second])
    with pytest.raises(dra.InvalidDevice, match='attributes: Invalid value: "a b"'):
        accepting.accept([first.model_copy(update={"attributes": {"a b": 1}}), second])
    with pytest.raises(dra.InvalidDevice, match=r"name: Invalid value"):
        accepting.accept([first, second.model_copy(deep=True, update={"name": "B"})])
    assert accepting.accept([first.model_copy(), second.model_copy(deep=True)]) is None


def test_a_device_that_is_wrong_is_refused_each_time() -> None:
    accepting = acceptance()
    wrong: Sequence[object] = [*pizzas(), "c"]
    for _ in range(2):
        with pytest.raises(dra.InvalidDevice, match=r"'c' is not a dra_kit\.Device"):
            accepting.accept(wrong)


def test_with_invalid_devices_dropped_the_same_again_is_the_same() -> None:
    accepting = acceptance(invalid_devices="drop")
    wrong: Sequence[object] = [*pizzas(), dra.Device.model_construct(), "c"]
    found = accepting.accept(wrong)
    assert found is not None
    assert [device.name for device in found.inventory.pools[0].devices] == ["a", "b"]
    assert accepting.accept(wrong) is None


def test_equal_devices_share_what_is_published_of_them() -> None:
    [first, _], [second, _] = pizzas(), pizzas(serial="S2")
    assert first.to_v1() is second.to_v1()
    assert pizzas(attributes={"hot": 1})[0].to_v1() is not first.to_v1()
