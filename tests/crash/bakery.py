"""The driver that is killed: hardware in a directory, hot-plug by a file, effects of claims and of devices.

``BAKERY`` names the directory; ``BAKERY_STYLE`` how much of the framework the driver uses. Files in the directory let
calls wait and fail: ``gates/NAME.open`` lets those go on that wait at a gate, ``gates/CLAIM.closed`` holds up the
release of a claim until ``gates/CLAIM.open`` is there, ``gates/discover.closed`` the first inventory of a process that
starts, and ``failures/CLAIM`` has as many lines as its prepares fail.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import dra_kit as dra

ROOT = Path(os.environ["BAKERY"])
STYLE: Literal["full", "effects", "plain"] = os.environ["BAKERY_STYLE"]  # type: ignore[assignment]
HARDWARE = ROOT / "hardware"
GATES = ROOT / "gates"
FAILURES = ROOT / "failures"
DOUGH = ROOT / "dough"


class BakeConfig(dra.OpaqueConfig, api_version="bakery.example/v1"):
    """What a claim asks for: an oven, the coating of its pans, and a prepare that waits for a gate of that name.

    ``gate`` is passed before there is any effect, ``hot_gate`` when the oven is hot and no pan is coated.
    """

    oven: str = "left"
    temperature: int = 200
    coating: str = "none"
    gate: str = ""
    hot_gate: str = ""


class Switch:
    """A file that is there when something is in force; made in two steps, as hardware is."""

    def __init__(self, name: str) -> None:
        self._path = HARDWARE / f"{name}.json"
        self._half = HARDWARE / f"{name}.half"

    def on(self, what: str) -> str:
        if self._path.exists():
            found = json.loads(self._path.read_text())
            if found["what"] != what:
                _violation(f"{what} over {found['what']}")
            return str(found["serial"])
        serial = secrets.token_hex(4)
        self._half.write_text(json.dumps({"what": what, "serial": serial}))
        self._half.replace(self._path)
        return serial

    def is_on(self, serial: str) -> bool:
        return bool(self._path.exists() and json.loads(self._path.read_text())["serial"] == serial)

    def off(self, what: str, serial: str | None) -> None:
        if self._path.exists():
            found = json.loads(self._path.read_text())
            if found["what"] != what or serial not in {None, found["serial"]}:
                _violation(f"{what} {serial} undone while {found} is in force")
        self._path.unlink(missing_ok=True)
        self._half.unlink(missing_ok=True)


class Heat(dra.Effect[str], id="heat"):
    """An oven at a temperature, for every claim that asks for the same; the outcome is the number of its flame."""

    oven: str
    temperature: int

    def keys(self) -> Iterable[str]:
        return [f"oven/{self.oven}"]

    async def apply(self, previous: str | None) -> str:
        return Switch(f"oven-{self.oven}").on(f"{self.temperature}")

    async def holds(self, outcome: str) -> bool:
        return Switch(f"oven-{self.oven}").is_on(outcome)

    async def revert(self, outcome: str | None) -> None:
        Switch(f"oven-{self.oven}").off(f"{self.temperature}", outcome)


class Coat(dra.Effect[str], id="coat"):
    """A pan, by its make, with a coating; blocking, in a thread."""

    pan: str
    make: str
    coating: str

    def keys(self) -> Iterable[str]:
        return [f"pan/{self.pan}"]

    def apply(self, previous: str | None) -> str:
        return Switch(f"pan-{self.pan}").on(f"{self.make} {self.coating}")

    def holds(self, outcome: str) -> bool:
        return Switch(f"pan-{self.pan}").is_on(outcome)

    def revert(self, outcome: str | None) -> None:
        Switch(f"pan-{self.pan}").off(f"{self.make} {self.coating}", outcome)


class Pan(dra.Device):
    """A device whose make changes when it is replugged."""

    make: str


def _pool(name: str, pans: Mapping[str, str]) -> dra.Pool[Pan]:
    devices = [Pan(name=pan, make=make, attributes={"make": make}) for pan, make in pans.items()]
    return dra.Pool(name=name, devices=devices)


class Pantry(dra.DeviceProvider[Pan]):
    """Reads ``menu.json``, pools with the makes of their pans, again whenever it has changed."""

    def startup(self, context: dra.Context[Any]) -> None:
        self._context = context

    def discover(self) -> Iterator[dra.Inventory[Pan]]:
        seen = ""
        while (GATES / "discover.closed").exists() and not self._context.stopping:
            time.sleep(0.01)
        while not self._context.stopping:
            self._report_facts()
            text = (ROOT / "menu.json").read_text()
            if text != seen:
                seen = text
                yield dra.Inventory(pools=[_pool(name, pans) for name, pans in json.loads(text).items()])
            time.sleep(0.01)

    def _report_facts(self) -> None:
        """Report facts about prepared pans."""
        facts = ROOT / "facts.json"
        if not facts.exists():
            return
        for pan, attributes in json.loads(facts.read_text()).items():
            self._context.update(pan, metadata=dra.DeviceMetadata(attributes=attributes))
        facts.unlink()


class Nose(dra.HealthSource[Pan]):
    """Reports the pans in ``smoke.json``; they recover only when ``put-out.json`` lists them."""

    policy = {"smoke": dra.HealthRule(taint="NoSchedule", sticky=True)}

    def watch(self) -> Iterator[dra.Healthy | dra.Unhealthy]:
        while not self.context.stopping:
            smoking = _pans("smoke.json")
            for pan in self.devices:
                yield dra.Unhealthy(pan, "smoke") if pan.name in smoking else dra.Healthy(pan)
            time.sleep(0.01)

    def recovered(self, pan: Pan, reason: str, /) -> bool:
        return pan.name in _pans("put-out.json")


def _pans(name: str) -> list[str]:
    path = ROOT / name
    found: list[str] = json.loads(path.read_text()) if path.exists() else []
    return found


class Baker(dra.Preparer[BakeConfig, Pan]):
    """Edits of the CDI spec that name what the hardware says, metadata, a status, and a state."""

    async def prepare_claim(
        self, claim: dra.Claim, devices: Sequence[dra.AllocatedDevice[BakeConfig, Pan]]
    ) -> list[dra.Prepared]:
        config = devices[0].config
        if config.gate:
            await _gate(config.gate)
        edits: dict[str, str] = {}
        if STYLE != "plain":
            edits = {"FLAME": await claim.ensure(Heat(oven=config.oven, temperature=config.temperature))}
        if config.hot_gate:
            await _gate(config.hot_gate)
        _fail_if_requested(claim.name)
        return [await self._one(device, edits) for device in devices]

    async def _one(self, device: dra.AllocatedDevice[BakeConfig, Pan], edits: dict[str, str]) -> dra.Prepared:
        make, coating = device.advertised.make, device.config.coating
        env = {f"{device.env_name}_MAKE": make}
        if STYLE == "plain":
            return dra.Prepared(env=env)
        env[f"{device.env_name}_COAT"] = await device.ensure(Coat(pan=device.name, make=make, coating=coating))
        return dra.Prepared(
            env=env,
            claim_edits=dra.ContainerEdits(env=edits),
            metadata=dra.DeviceMetadata(attributes={"make": make}),
            status=dra.DeviceStatus(data={"make": make}),
            state=device.name,
            hardware_ids=[f"serial-{device.name}"],
        )


class TidyBaker(Baker):
    """Has work of its own as well, which only its ``unprepare`` undoes: a lump of dough for each pan of a claim."""

    async def prepare_claim(
        self, claim: dra.Claim, devices: Sequence[dra.AllocatedDevice[BakeConfig, Pan]]
    ) -> list[dra.Prepared]:
        for device in devices:
            _dough(claim, device.name).touch()
        return await super().prepare_claim(claim, devices)

    async def unprepare(self, claim: dra.ClaimReference, devices: Sequence[dra.PreparedDevice]) -> None:
        if (GATES / f"{claim.name}.closed").exists():
            await _gate(claim.name)
        for item in devices:
            if item.state not in {None, item.device}:
                _violation(f"{item} has the state of another device")
            _dough(claim, item.device).unlink(missing_ok=True)


def _dough(claim: dra.ClaimReference, pan: str) -> Path:
    return DOUGH / f"{claim.uid}.{pan}"


async def _gate(name: str) -> None:
    (GATES / f"{name}.entered").touch()
    while not (GATES / f"{name}.open").exists():  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(0.01)


def _fail_if_requested(claim: str) -> None:
    path = FAILURES / claim
    failures = path.read_text().splitlines() if path.exists() else []
    if failures:
        path.write_text("".join(f"{line}\n" for line in failures[1:]))
        raise dra.TransientError(failures[0])


def _violation(text: str) -> None:
    with (ROOT / "violations").open("a") as file:
        file.write(text + "\n")


DOUGH.mkdir(exist_ok=True)
driver = dra.Driver(
    "dra.bakery",
    provider=Pantry(),
    preparer=TidyBaker() if STYLE == "full" else Baker(),
    effects=[] if STYLE == "plain" else [Heat, Coat],
    health=Nose() if STYLE == "full" else None,
)
