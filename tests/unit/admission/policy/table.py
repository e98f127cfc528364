"""200 configs, good and bad, of three drivers, in objects of every kind and version that carries them.

``python -m tests.unit.admission.policy.table`` generates them again; one version of hypothesis always generates the
same configs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle, product, zip_longest
from pathlib import Path
from random import Random
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings

from dra_kit.admission.policy.manifest import policy_objects
from dra_kit.client.api import Client
from dra_kit.client.resources import Resource
from dra_kit.errors import Invalid
from dra_kit.kubernetes.resource.config import CONFIG_FIELDS
from tests.unit.admission.pizzeria import KINDS, carrying, config
from tests.unit.admission.policy import canteen
from tests.unit.admission.policy.deciding import left_to_the_node, node_accepts, node_problems
from tests.unit.admission.policy.drivers import DRIVERS, GPU, PIZZA, parameters

FILE: Final = Path(__file__).resolve().parents[3] / "data" / "policy" / "configs.jsonl"
_GROUP: Final = ("admissionregistration.k8s.io", "v1")
_POLICIES: Final = Resource(*_GROUP, "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False)
_BINDINGS: Final = Resource(*_GROUP, "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", False)
COUNTS: Final = {canteen.DRIVER: 100, PIZZA: 40, GPU: 60}
"""Rows of each driver; half of them are good."""


_UNKNOWN: Final = (["apiVersion"], ["kind"])


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
    def resource(self) -> Resource:
        """What it is created as."""
        plural = KINDS[self.object_kind]
        return Resource("resource.k8s.io", self.version, plural, self.object_kind, self.object_kind != "DeviceClass")


def rows() -> list[Row]:
    """The table."""
    return [Row(**json.loads(line)) for line in FILE.read_text().splitlines()]


@asynccontextmanager
async def installed(client: Client) -> AsyncIterator[None]:
    """A server on which the drivers' policies and their bindings are in force; without them in the end."""
    made = [policy_objects(driver) for driver in DRIVERS.values()]
    try:
        for objects in made:
            await client.create(_POLICIES, objects.policy)
            await client.create(_BINDINGS, objects.binding)
        for name in DRIVERS:
            bad = Row(name, "DeviceClass", "v1", {})
            while await refusal(client, bad) is None:  # noqa: ASYNC110 - the server has no event for this
                await asyncio.sleep(0.1)
        yield
    finally:
        for objects in made:
            await client.delete(_BINDINGS, objects.binding["metadata"]["name"])
            await client.delete(_POLICIES, objects.policy["metadata"]["name"])


async def refusals(client: Client, versions: Collection[str]) -> dict[Row, str | None]:
    """Why the server refuses the rows of the versions that it serves, each created as a dry run; None for a success."""
    table = [row for row in rows() if row.version in versions]
    few = asyncio.Semaphore(8)

    async def ask(row: Row) -> str | None:
        async with few:
            return await refusal(client, row)

    return dict(zip(table, await asyncio.gather(*map(ask, table)), strict=True))


async def refusal(client: Client, row: Row) -> str | None:
    """Why the server refuses a row."""
    try:
        await client.create(row.resource, row.object, dry_run=True)
    except Invalid as error:
        text = str(error)
        assert "denied request" in text, (row, text)
        return text
    return None


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
    """Good and bad configs in turn, of all kinds as many."""
    found: dict[tuple[bool, str], dict[str, Any]] = {}

    @seed(20261125)
    @settings(
        max_examples=30 * count, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(parameters(driver))
    def make(made: Any) -> None:
        kind = str(made.get("kind")) if node_problems(DRIVERS[driver], made)[:1] not in _UNKNOWN else "unknown"
        found.setdefault((node_accepts(DRIVERS[driver], made), kind), {})[json.dumps(made)] = made

    make()
    chosen = Random(20261125)  # noqa: S311 - which of them is of no consequence
    halves = []
    for good in (True, False):
        kinds = [
            chosen.sample(list(made.values()), len(made)) for (is_good, _), made in found.items() if is_good is good
        ]
        halves.append([one for turn in zip_longest(*kinds) for one in turn if one is not None][: count // 2])
    return [one for pair in zip(*halves, strict=True) for one in pair]


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
