"""``python -m benchmarks.cel``: the cost of CEL selectors in microseconds; exit 1 when the budget is exceeded."""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable

from benchmarks.table import Row, part
from dra_kit.errors import CelRuntimeError
from dra_kit.kubernetes.cel.device import Device
from dra_kit.kubernetes.cel.program import Selector, compile_selector

BUDGET = 5.0  # microseconds of the selector with four conditions

DEVICE = Device(
    driver="x",
    attributes={"model": "H200", "driverVersion": {"version": "550.127.8"}, "labels": ["a", "b"], "index": 3},
    capacity={"memory": "80Gi"},
)

SELECTORS = {
    "four conditions": (
        'device.driver == "x" && device.attributes["x"].model == "H200" && '
        'device.capacity["x"].memory.compareTo(quantity("80Gi")) >= 0 && '
        'device.attributes["x"].driverVersion.isGreaterThan(semver("1.0.0"))'
    ),
    "one condition": 'device.driver == "x"',
    "bound attributes": 'cel.bind(a, device.attributes["x"], a.model == "H200" && a.index == 3)',
    "optional": 'device.attributes["x"].?missing.orValue("") == ""',
    "list": 'device.attributes["x"].labels.exists(l, l == "b")',
    "regular expression": 'device.attributes["x"].model.lowerAscii().matches("^h[0-9]+$")',
    "missing attribute": 'device.attributes["x"].missing == "H200"',
}


def microseconds(action: Callable[[], object]) -> float:
    """Return the shortest of several runs: disturbances only make them longer."""
    timer = timeit.Timer(action)
    count, _ = timer.autorange()
    return min(timer.repeat(5, count)) / count * 1e6


def evaluation(selector: Selector) -> Callable[[], object]:
    def run() -> object:
        try:
            return selector.matches(DEVICE)
        except CelRuntimeError:
            return None

    return run


def measure() -> list[Row]:
    table = []
    for name, text in SELECTORS.items():
        evaluating = microseconds(evaluation(compile_selector(text)))
        table.append(Row(f"CEL: {name}", evaluating, "µs", BUDGET if name == "four conditions" else None))
        compiling = microseconds(lambda text=text: compile_selector(text))  # type: ignore[misc]
        table.append(Row(f"CEL: {name}, compile", compiling, "µs", None))
    return table


if __name__ == "__main__":
    sys.exit(part("python -m benchmarks.cel", __doc__, measure))
