from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from dra_kit.errors import AllocationError
from dra_kit.kubernetes.allocator.allocation import Allocator
from dra_kit.kubernetes.allocator.selectors import CelEvaluator
from dra_kit.kubernetes.cel.device import Device
from dra_kit.kubernetes.cel.program import Selector
from dra_kit.kubernetes.release import DEFAULT
from tests.unit.kubernetes.allocator.cluster import (
    ALL,
    NODE,
    allocate,
    claim,
    device,
    names,
    request,
    slice_of,
    snapshot,
)

MODEL = 'device.attributes["gpu.example.com"].model == "big"'
DEVICES = [device(f"d{number}", attributes={"model": {"string": "small"}}) for number in range(4)]


@contextmanager
def evaluations() -> Iterator[list[str]]:
    """A list with an entry for each evaluation."""
    found: list[str] = []
    matches = Selector.matches

    def counting(self: Selector, seen: Device, *rest: Any) -> bool:
        found.append(self.text)
        return matches(self, seen, *rest)

    with patch.object(Selector, "matches", counting):
        yield found


def test_selector_is_evaluated_once_per_device() -> None:
    devices = [
        device(f"d{number}", attributes={"model": {"string": "small"}, "index": {"int": number}}) for number in range(4)
    ]
    world = snapshot(slice_of(*devices, allNodes=True))
    allocator = Allocator(world, ALL)
    with evaluations() as evaluated:
        for pod in ("a", "b"):
            for node in ("node-1", "node-2"):
                allocator.allocate(type(NODE)(node), [claim(request("r", 1, MODEL), name=pod)])

    assert evaluated == [MODEL] * len(devices)


def test_republished_device_is_evaluated_again() -> None:
    world = snapshot(slice_of(*DEVICES))
    allocator = Allocator(world, ALL)
    assert allocator.allocate(NODE, [claim(request("r", 1, MODEL))]) is None

    world.publish([slice_of(device("new", attributes={"model": {"string": "big"}}))])

    assert names(allocator.allocate(NODE, [claim(request("r", 1, MODEL))])) == [["new"]]


def test_cache_releases_removed_devices() -> None:
    world = snapshot(slice_of(*DEVICES))
    evaluator = CelEvaluator(DEFAULT)
    Allocator(world, ALL, evaluator=evaluator).allocate(NODE, [claim(request("r", 1, MODEL))])
    pools = world.pools(NODE, ALL)
    gone = weakref.ref(pools.devices[0])

    world.publish(remove=["slice-1"])
    del pools
    gc.collect()

    assert gone() is None


def test_cached_failure_is_raised_each_time() -> None:
    allocator = Allocator(snapshot(slice_of(*DEVICES)), ALL)
    texts = set()
    for _ in range(2):
        with pytest.raises(AllocationError) as caught:
            allocator.allocate(NODE, [claim(request("r", 1, 'device.attributes["gpu.example.com"].absent == 1'))])
        texts.add(str(caught.value))

    [text] = texts
    assert text.startswith(
        "claim default/claim: selector #0 on device gpu.example.com/pool-a/d0: CEL runtime error: no such key: absent. "
    )
    assert "orValue()" in text


def test_compile_error_names_claim_and_selector() -> None:
    with pytest.raises(AllocationError, match="claim default/claim: selector #1: CEL compile error") as caught:
        allocate(snapshot(slice_of(*DEVICES)), claim(request("r", 1, "true", "device.")))

    assert caught.value.kind == "cel-compile"


@pytest.mark.parametrize(
    ("expression", "published"),
    [
        ("device.driver", {"string": "gpu.example.com"}),
        ("1 + 1", {"int": 2}),
        ("true", {"bool": True}),
        ('semver("1.2.3")', {"version": "1.2.3"}),
        ('["x", "gpu.example.com"]', {"strings": ["gpu.example.com"]}),
        ("[1, 2]", {"ints": [2]}),
        ("[true]", {"bool": True}),
        ('[semver("1.2.3")]', {"versions": ["1.2.3", "1.2.4"]}),
    ],
)
def test_derived_attribute_matches_published_one_of_same_type(expression: str, published: dict[str, object]) -> None:
    world = snapshot(slice_of(device("plain"), device("other", attributes={"example.com/key": published})))
    derived = [{"name": "example.com/key", "expression": expression}]
    wanted = claim(
        request("a", derivedAttributes=derived),
        request("b"),
        constraints=[{"matchAttribute": "example.com/key"}],
    )

    assert names(allocate(world, wanted)) == [["plain", "other"]]
