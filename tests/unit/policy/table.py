"""200 configs, good and bad, of three drivers, in objects of every kind and version that carries them.

``python -m tests.unit.policy.table`` has hypothesis make them anew, the same ones each time with one hypothesis.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle, product
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings

from dra_kit.policy.objects import policy_objects
from dra_kit.resource.config import CONFIG_FIELDS
from tests.unit.policy import canteen
from tests.unit.policy.deciding import left_to_the_node, node_accepts, node_problems
from tests.unit.policy.drivers import DRIVERS, GPU, PIZZA, parameters
from tests.unit.webhook.pizzeria import KINDS, carrying, config

FILE: Final = Path(__file__).resolve().parents[2] / "data" / "policy" / "configs.jsonl"
COUNTS: Final = {canteen.DRIVER: 100, PIZZA: 40, GPU: 60}
"""Rows of each driver; half of them are good."""


@dataclass(frozen=True, eq=False)
class Row:
    """A config, and the object that carries it."""

    driver: str
    object_kind: str
    version: str
    parameters: Any

    @property
    def object(self) -> dict[str, Any]:
        """As it is sent."""
        obj = carrying(self.object_kind, config(self.parameters, self.driver), version=self.version)
        obj["metadata"].pop("uid")
        if self.object_kind != "DeviceClass":
            spec = obj["spec"]["spec"] if "spec" in obj["spec"] else obj["spec"]
            wanted = {"deviceClassName": "x.example"}
            request = wanted if self.version == "v1beta1" else {"exactly": wanted}
            spec["devices"]["requests"] = [{"name": "r", **request}]
        return obj

    @property
    def path(self) -> str:
        """The collection that it is created in, as a dry run."""
        namespace = "" if self.object_kind == "DeviceClass" else "/namespaces/default"
        return f"/apis/resource.k8s.io/{self.version}{namespace}/{KINDS[self.object_kind]}?dryRun=All"


def rows() -> list[Row]:
    """The table."""
    return [Row(**json.loads(line)) for line in FILE.read_text().splitlines()]


def policies() -> Iterator[tuple[str, dict[str, Any]]]:
    """The policies and bindings of the drivers, with the path that each is created at."""
    for driver in DRIVERS.values():
        made = policy_objects(driver)
        base = "/apis/admissionregistration.k8s.io/v1"
        yield f"{base}/validatingadmissionpolicies", made.policy
        yield f"{base}/validatingadmissionpolicybindings", made.binding


def differences(refused: Mapping[Row, str | None]) -> list[str]:
    """Where a server with the policies decides in another way than it must.

    Args:
        refused: for each row why it was refused; None where it was not.
    """
    notes = {name: policy_objects(driver).left for name, driver in DRIVERS.items()}
    found = []
    for row, reason in refused.items():
        problems = node_problems(DRIVERS[row.driver], row.parameters)
        if reason is not None and not problems:
            found.append(f"refused though the node takes it: {row}: {reason}")
        if reason is None and not left_to_the_node(problems, row.parameters, notes[row.driver]):
            found.append(f"let pass though the node refuses it: {row}: {problems}")
    return found


def _made(driver: str, count: int) -> list[Any]:
    good: dict[str, Any] = {}
    bad: dict[str, Any] = {}

    @seed(20261125)
    @settings(
        max_examples=40 * count, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(parameters(driver))
    def make(found: Any) -> None:
        chosen = good if node_accepts(DRIVERS[driver], found) else bad
        if len(chosen) < count // 2:
            chosen.setdefault(json.dumps(found), found)

    make()
    assert len(good) == len(bad) == count // 2, (driver, len(good), len(bad))
    return [found for pair in zip(good.values(), bad.values(), strict=True) for found in pair]


def main() -> None:
    """Write the table."""
    places = cycle(product(CONFIG_FIELDS, ("v1", "v1beta2", "v1beta1")))
    lines = []
    for driver, count in COUNTS.items():
        for found in _made(driver, count):
            kind, version = next(places)
            row = {"driver": driver, "object_kind": kind, "version": version, "parameters": found}
            lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text("".join(lines))


if __name__ == "__main__":
    main()
