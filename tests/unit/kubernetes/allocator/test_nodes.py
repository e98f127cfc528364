from __future__ import annotations

from typing import Any

import pytest

from dra_kit.errors import AllocationError
from dra_kit.kubernetes.allocator.allocation import Allocator
from dra_kit.kubernetes.resource.matching import Node
from tests.unit.kubernetes.allocator.cluster import ALL, allocate, claim, device, names, request, slice_of, snapshot


def term(key: str, operator: str, *values: str, where: str = "matchExpressions") -> dict[str, Any]:
    return {"nodeSelectorTerms": [{where: [{"key": key, "operator": operator, "values": list(values)}]}]}


def fits(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    world = snapshot(slice_of(device("a"), nodeSelector=selector))
    return Allocator(world, ALL).allocate(Node("node-1", labels), [claim(request())]) is not None


@pytest.mark.parametrize(
    ("operator", "values", "labels", "fitting"),
    [
        ("In", ["a", "b"], {"k": "b"}, True),
        ("In", ["a"], {}, False),
        ("NotIn", ["a"], {"k": "b"}, True),
        ("NotIn", ["a"], {}, True),
        ("NotIn", ["a"], {"k": "a"}, False),
        ("Exists", [], {"k": ""}, True),
        ("Exists", [], {}, False),
        ("DoesNotExist", [], {}, True),
        ("DoesNotExist", [], {"k": ""}, False),
        ("Gt", ["4"], {"k": "5"}, True),
        ("Gt", ["4"], {"k": "4"}, False),
        ("Gt", ["4"], {}, False),
        ("Lt", ["4"], {"k": "3"}, True),
        ("Lt", ["4"], {"k": "three"}, False),
        ("Lt", ["4"], {"k": "-99999999999999999999"}, False),
    ],
)
def test_node_fits_if_its_labels_match(operator: str, values: list[str], labels: dict[str, str], fitting: bool) -> None:
    assert fits(term("k", operator, *values), labels) is fitting


@pytest.mark.parametrize(("operator", "name", "fitting"), [("In", "node-1", True), ("NotIn", "node-1", False)])
def test_match_fields_select_node_name(operator: str, name: str, fitting: bool) -> None:
    assert fits(term("metadata.name", operator, name, where="matchFields"), {}) is fitting


def test_selector_without_terms_matches_no_node() -> None:
    assert not fits({"nodeSelectorTerms": []}, {})
    assert not fits({"nodeSelectorTerms": [{}]}, {})


@pytest.mark.parametrize(
    "selector",
    [
        term("k", "Is", "a"),
        term("k", "In"),
        term("k", "Exists", "a"),
        term("k", "Gt", "1", "2"),
        term("k", "Gt", "many"),
        term("not a key", "Exists"),
        term("k", "In", "not a value!"),
        term("metadata.name", "Exists", where="matchFields"),
        term("metadata.name", "In", "a", "b", where="matchFields"),
    ],
)
def test_invalid_node_selector_fails_attempt(selector: dict[str, Any]) -> None:
    with pytest.raises(AllocationError, match="slice-1") as caught:
        fits(selector, {})

    assert caught.value.kind == "node-selector-invalid"
    assert not caught.value.node_only


def test_node_of_document() -> None:
    document = {"metadata": {"name": "n", "labels": {"a": "b"}}, "status": {"declaredFeatures": ["F"]}}

    assert Node.of(document) == Node("n", {"a": "b"}, frozenset({"F"}))
    assert Node.of({"metadata": {"name": "n"}}) == Node("n")


def test_attempt_sees_changed_node_labels() -> None:
    allocator = Allocator(snapshot(slice_of(device("a"), nodeSelector=term("k", "Exists"))), ALL)
    assert allocator.allocate(Node("n"), [claim(request())]) is None

    assert names(allocator.allocate(Node("n", {"k": "v"}), [claim(request())])) == [["a"]]


def test_allocation_of_local_device_selects_its_node() -> None:
    allocations = allocate(snapshot(slice_of(device("a"))), claim(request()))

    assert allocations is not None
    assert allocations[0].to_json()["nodeSelector"] == term("metadata.name", "In", "node-1", where="matchFields")
