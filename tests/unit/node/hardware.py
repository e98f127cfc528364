"""Simulated hardware that effects change, and its preparer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, ClassVar, NoReturn

import dra_kit as dra
from tests.unit.node.drivers import Doing, driver


class Hardware:
    """The state of the hardware, and a log of its changes.

    Attributes:
        on: what is in force, by key.
        log: ``apply`` and ``revert`` with the temperature and the given outcome.
        fail: called with ``apply`` or ``revert`` and the temperature before anything is done.
    """

    def __init__(self) -> None:
        self.on: dict[str, int] = {}
        self.log: list[tuple[Any, ...]] = []
        self.fail: Callable[[str, int], Awaitable[None] | None] = lambda what, temperature: None
        self.numbers = itertools.count(1)


class Heat(dra.Effect[dict[str, int]], id="heat"):
    """An oven at a temperature; the outcome is the number of its flame."""

    hardware: ClassVar[Hardware]

    oven: str
    temperature: int

    def keys(self) -> Iterable[str]:
        return [self.oven]

    async def apply(self, previous: dict[str, int] | None) -> dict[str, int]:
        await self._step("apply", previous)
        self.hardware.on[self.oven] = self.temperature
        return previous or {"flame": next(self.hardware.numbers)}

    async def revert(self, outcome: dict[str, int] | None) -> None:
        await self._step("revert", outcome)
        self.hardware.on.pop(self.oven, None)

    async def _step(self, what: str, given: dict[str, int] | None) -> None:
        failing = self.hardware.fail(what, self.temperature)
        if failing is not None:
            await failing
        self.hardware.log.append((what, self.temperature, given and given["flame"]))


class Baker(dra.Preparer):
    """Heats an oven for each device: by default the same one for all, to the same temperature.

    Attributes:
        temperatures: by ``claim device``, by claim, or ``""`` for all.
        ovens: likewise.
        fail_after: claims whose prepare fails once its effects are in force.
    """

    def __init__(
        self,
        *,
        temperatures: Mapping[str, int] | None = None,
        ovens: Mapping[str, str] | None = None,
        fail_after: Iterable[str] = (),
    ) -> None:
        self.temperatures: dict[str, int] = {"": 200, **(temperatures or {})}
        self.ovens: dict[str, str] = {"": "oven", **(ovens or {})}
        self.fail_after = set(fail_after)

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        heat = Heat(oven=_of(self.ovens, claim, device), temperature=_of(self.temperatures, claim, device))
        outcome = await device.ensure(heat)
        if claim.name in self.fail_after:
            raise dra.PermanentError("burnt")
        return dra.Prepared(env={f"{device.env_name}_FLAME": str(outcome["flame"])})


def _of(values: dict[str, Any], claim: dra.Claim, device: dra.AllocatedDevice) -> Any:
    names = (f"{claim.name} {device.name}", claim.name, "")
    return next(values[name] for name in names if name in values)


def kitchen(baker: Baker | None = None, **options: Any) -> dra.Driver[Any, Any]:
    """A driver whose claims need effects, on new hardware."""
    Heat.hardware = Hardware()
    return driver(baker or Baker(), effects=[Heat], **options)


def needing(*effects: dra.Effect[Any, Any], **options: Any) -> dra.Driver[Any, Any]:
    """A driver whose claims all need these effects; the variable OUTCOMES has their outcomes."""

    async def prepare(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        outcomes = [await device.ensure(effect) for effect in effects]
        return dra.Prepared(env={"OUTCOMES": str(outcomes)})

    return driver(Doing(prepare), effects=[type(effect) for effect in effects], **options)


async def hang() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError("must be set by the test")
