"""The order of the tests."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the drivers of the examples, which take minutes each: each is among the first that its worker runs.

    Workers get the tests in pieces of equal length.
    """
    slow = [item for item in items if item.path.name == "test_examples.py" and item.path.parent.name == "conformance"]
    others = [item for item in items if item not in slow]
    count = len(items)
    for number, item in enumerate(slow):
        others.insert(number * count // len(slow) + 1, item)
    items[:] = others
