"""Devices of other drivers in ``dra-kit explain``: one line for each driver, however many devices it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.cluster.saved import CHEESE, CLASS, DRIVER, Document, claim, node, pod, run, save, slice_of, words

GPUS = 40
FOREIGN = "gpu.example.com"


def partitions(node_name: str, driver: str = FOREIGN, **attributes: str) -> list[Document]:
    """Slices of a driver whose devices each lack another amount of another counter."""

    def slice_(name: str, **spec: object) -> Document:
        pool = {"name": node_name, "generation": 1, "resourceSliceCount": 2}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{node_name}-{driver}-{name}"},
            "spec": {"driver": driver, "nodeName": node_name, "pool": pool, **spec},
        }

    counters = [
        {"name": f"gpu-{n}", "counters": {"memory": {"value": f"{n + 1}Gi"}, "engines": {"value": "1"}}}
        for n in range(8)
    ]
    devices = [
        {
            "name": f"partition-{n}",
            "attributes": {name: {"string": value} for name, value in attributes.items()},
            "consumesCounters": [{"counterSet": f"gpu-{n % 8}", "counters": {"memory": {"value": f"{n + 9}Gi"}}}],
        }
        for n in range(GPUS)
    ]
    return [slice_("counters", sharedCounters=counters), slice_("devices", devices=devices)]


def explained(tmp_path: Path, *documents: Document, what: tuple[str, ...], of: Document = CLASS) -> tuple[int, str]:
    saved = save(tmp_path / "objects.yaml", of, node("node-1"), node("node-2"), *documents)
    result = run("explain", *what, "--from", saved)
    return result.exit_code, result.output


def pizzas(count: int = 7) -> Document:
    return slice_of("node-1", **{f"pizza_{n}": "mozzarella" for n in range(count)})


def test_another_driver_with_counters_is_one_line_of_a_claim(tmp_path: Path) -> None:
    code, text = explained(tmp_path, pizzas(), *partitions("node-1"), claim("lunch"), what=("claim", "lunch"))

    assert code == 0
    assert f"✗ {GPUS} devices of driver {FOREIGN}: not selected by class pizza" in text
    assert text.count(FOREIGN) <= 2, "once in its line, and once among the values of the summary"
    assert len(text.splitlines()) < 15
    assert "partition-" not in text


def test_another_driver_is_one_line_of_a_pod(tmp_path: Path) -> None:
    others = [*partitions("node-1"), *partitions("node-2"), *partitions("node-1", "fpga.example.com")]
    code, text = explained(
        tmp_path, pizzas(), *others, claim("lunch"), pod("guest", claim="lunch"), what=("pod", "guest")
    )

    assert code == 0
    assert f"✗ {2 * GPUS} devices of driver {FOREIGN}: not selected by class pizza" in text
    assert f"✗ {GPUS} devices of driver fpga.example.com: not selected by class pizza" in text
    assert "partition-" not in text


def test_with_all_the_devices_of_other_drivers_are_listed(tmp_path: Path) -> None:
    _, text = explained(tmp_path, pizzas(), *partitions("node-1"), claim("lunch"), what=("claim", "lunch", "--all"))

    assert all(f"partition-{n}" in text for n in range(GPUS))
    assert "is short of" not in text, "what a device lacks that the class does not select is of no interest"


def test_a_class_that_selects_by_attributes_leaves_other_drivers_out(tmp_path: Path) -> None:
    expression = f'"{DRIVER}" in device.attributes && device.attributes["{DRIVER}"].cheese == "mozzarella"'
    by_attributes = {**CLASS, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
    _, text = explained(
        tmp_path, pizzas(), *partitions("node-1"), claim("lunch"), what=("claim", "lunch"), of=by_attributes
    )

    assert f"✗ {GPUS} devices of driver {FOREIGN}: not selected by class pizza" in text
    assert "partition-" not in text


def test_a_request_that_names_the_driver_leaves_other_drivers_out(tmp_path: Path) -> None:
    every = {**CLASS, "spec": {}}
    wanted = claim("lunch", f'device.driver == "{DRIVER}"')
    _, text = explained(tmp_path, pizzas(), *partitions("node-1"), wanted, what=("claim", "lunch"), of=every)

    assert f"✗ {GPUS} devices of driver {FOREIGN}: not selected by request pizza" in text


def test_the_drivers_own_devices_keep_their_reasons_where_the_class_selects_none(tmp_path: Path) -> None:
    """Nothing but the name of the driver says which driver a class means."""
    expression = f'device.driver == "{DRIVER}" && {CHEESE} == "gouda"'
    strict = {**CLASS, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
    code, text = explained(
        tmp_path, pizzas(3), *partitions("node-1"), claim("lunch"), what=("claim", "lunch"), of=strict
    )

    assert code == 3
    assert 'pizza-0, pizza-1, pizza-2  cheese is "mozzarella", the class requires "gouda"' in text
    assert f"✗ {GPUS} devices of driver {FOREIGN}: not selected by class pizza" in text


def test_a_driver_for_whose_devices_a_selector_fails_is_not_left_out(tmp_path: Path) -> None:
    failing = {**CLASS, "spec": {"selectors": [{"cel": {"expression": f'{CHEESE} == "mozzarella"'}}]}}
    code, text = explained(
        tmp_path, pizzas(), *partitions("node-1"), claim("lunch", count=8), what=("claim", "lunch"), of=failing
    )

    assert code == 3
    assert "partition-0" in text
    assert "not selected by" not in text


def test_many_devices_of_the_driver_itself_are_listed_up_to_a_number_of_lines(tmp_path: Path) -> None:
    _, text = explained(tmp_path, *partitions("node-1", DRIVER), claim("lunch"), what=("claim", "lunch"))

    listed = [line for line in text.splitlines() if "is short of" in line]
    assert len(listed) == 15
    assert f"✗ {GPUS - 15} more devices for other reasons; --all lists them" in text
    _, text = explained(tmp_path, *partitions("node-1", DRIVER), claim("lunch"), what=("claim", "lunch", "--all"))
    assert all(f"partition-{n} " in text for n in range(GPUS))


@pytest.mark.parametrize("count", [1, 2])
def test_devices_that_the_class_does_not_select_are_grouped_whatever_else_stands_against_them(
    tmp_path: Path, count: int
) -> None:
    expression = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].?kind.orValue("whole") == "whole"'
    whole = {**CLASS, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
    slices = partitions("node-1", DRIVER, kind="part")
    pool = {"name": "wholes", "generation": 1, "resourceSliceCount": 1}
    ovens = pizzas(count)
    ovens["spec"]["pool"] = pool
    _, text = explained(tmp_path, ovens, *slices, claim("lunch"), what=("claim", "lunch"), of=whole)

    assert "is short of" not in words(text)
    assert len([line for line in text.splitlines() if "partition-" in line]) == 1
