"""Asks the author's policy about each device, and hands on what is left."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from dra_kit.author.calling import call
from dra_kit.author.devices.device import Device
from dra_kit.author.devices.inventory import Inventory, Pool
from dra_kit.author.devices.policy import DevicePolicy
from dra_kit.author.devices.unserved import Serving
from dra_kit.errors import InvalidDevice
from dra_kit.kubernetes.resource.validation.devices import TAINTS_MAX
from dra_kit.node.policy.watched import Watched
from dra_kit.process.tracebacks import from_author, named, place_of
from dra_kit.publishing.inventory import CurrentInventory, valid_device

logger: logging.Logger = logging.getLogger(__name__)

AGAIN: Final = 10.0
"""Seconds until a policy that failed is asked again."""

_OF_NODE: Final = Serving("node")

Key: TypeAlias = tuple[str, str]
"""Pool and name of a device."""


class PolicyFilter:
    """A part of the node process, between the inventory with its health and the publisher; belongs to the main loop.

    Args:
        policy: the author's.
        current: knows the devices as ``discover`` yielded them.
        publish: takes what is to be published.
        serving: what can be served of the devices.
        again: seconds until a policy that failed is asked again.
    """

    name = "policy"

    def __init__(
        self,
        policy: DevicePolicy[Any, Any, Any],
        current: CurrentInventory,
        publish: Callable[[Inventory[Device]], None],
        *,
        serving: Serving = _OF_NODE,
        again: float = AGAIN,
    ) -> None:
        self._policy = policy
        self._serving = serving
        self._current = current
        self._publish = publish
        self._again = again
        self._wanted: Inventory[Device] | None = None
        self._news = asyncio.Event()
        self._decided: dict[Key, Device] = {}
        self._reported: dict[str, str] = {}

    def publish(self, inventory: Inventory[Device]) -> None:
        """Publish this from now on, as far as the policy lets it through."""
        self._wanted = inventory
        self._news.set()

    def watched_changed(self) -> None:
        """Note that what the policy reads has changed."""
        self._news.set()

    async def run(self, ready: asyncio.Event, watched: Watched | None = None) -> None:
        """Ask again whenever something changes.

        Args:
            ready: set when something was published for the first time.
            watched: what the policy looks at.
        """
        while True:
            await self._news.wait()
            self._news.clear()
            if self._wanted is None or (watched is not None and not watched.known):
                continue
            failed = await self._decide(self._wanted, watched.object if watched is not None else None)
            ready.set()
            if failed:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._again):
                        await self._news.wait()
                self._news.set()

    async def _decide(self, inventory: Inventory[Device], watched: Mapping[str, Any] | None) -> bool:
        """Publish what the policy makes of the inventory; return whether it failed somewhere."""
        raw = {(pool.name or "", device.name): device for pool in self._found() for device in pool.devices}
        shown = {(pool.name or "", device.name): device for pool in inventory.pools for device in pool.devices}
        asked = {key: raw.get(key, device) for key, device in shown.items()}
        answers = await self._answers(asked, watched)
        decided: dict[Key, Device] = {}
        failed = False
        for key, answer in answers.items():
            device = _checked(asked[key], answer, self._serving)
            if isinstance(device, Exception):
                failed = True
                self._report(key, device)
                device = self._decided.get(key)
            if device is not None:
                decided[key] = device
        self._decided = decided
        try:
            pools = [_pool(pool, self._of_pool(pool, asked)) for pool in inventory.pools]
        except InvalidDevice as error:  # each device is valid, all of them together are not
            self._report(("", ""), error)
            return True
        if not failed:
            self._reported.clear()
        logger.info("policy asked", extra={"devices": len(shown), "withheld": len(shown) - len(decided)})
        self._publish(inventory.model_copy(update={"pools": tuple(pools)}))
        return failed

    def _of_pool(self, pool: Pool[Device], asked: Mapping[Key, Device]) -> list[Device]:
        keys = [((pool.name or "", device.name), device) for device in pool.devices]
        return [_with_taints(self._decided[key], asked[key], device) for key, device in keys if key in self._decided]

    def _found(self) -> Sequence[Pool[Device]]:
        return self._current.latest.pools if self._current.latest is not None else ()

    async def _answers(self, devices: Mapping[Key, Device], watched: Mapping[str, Any] | None) -> dict[Key, object]:
        if inspect.iscoroutinefunction(inspect.unwrap(self._policy.advertise)):
            return {key: await self._answer(device, watched) for key, device in devices.items()}
        answers = await call(self._all, devices, watched)
        return {key: await _of(answer) for key, answer in answers.items()}

    def _all(self, devices: Mapping[Key, Device], watched: Mapping[str, Any] | None) -> dict[Key, object]:
        """Run a ``def`` in one thread for all devices: one for each would cost more than what it does."""
        answers: dict[Key, object] = {}
        for key, device in devices.items():
            try:
                answers[key] = self._policy.advertise(device, watched)
            except Exception as error:  # noqa: BLE001 - the author's code may raise anything; reported by the caller
                answers[key] = error
        return answers

    async def _answer(self, device: Device, watched: Mapping[str, Any] | None) -> object:
        try:
            return await call(self._policy.advertise, device, watched)
        except Exception as error:  # noqa: BLE001 - likewise
            return error

    def _report(self, key: Key, error: Exception) -> None:
        text = str(error) if isinstance(error, InvalidDevice) else named(error)
        device = "/".join(key)
        if self._reported.get(device) == text:
            return
        self._reported[device] = text
        module = type(self._policy).__module__
        extra: dict[str, object] = {
            "device": device,
            "method": f"{type(self._policy).__name__}.advertise",
            "error": text,
        }
        if place := place_of(error, module):
            extra["at"] = place
        expected = isinstance(error, InvalidDevice)
        logger.error("policy failed", extra=extra, exc_info=None if expected else from_author(error, module))


async def _of(answer: object) -> object:
    if not inspect.isawaitable(answer):
        return answer
    try:
        return await answer
    except Exception as error:  # noqa: BLE001 - the author's code may raise anything
        return error


def _checked(device: Device, answer: object, serving: Serving) -> Device | Exception | None:
    """Return what the policy returned, if it may be published; else why not."""
    if answer is None or answer is device:
        return device if answer is not None else None
    if isinstance(answer, Exception):
        return answer
    try:
        made = valid_device(answer, serving)
    except InvalidDevice as error:
        return error
    if made.name == device.name:
        return made
    return InvalidDevice(
        f"device {device.name}: the policy returned one that is called {made.name}; a device keeps its name, which "
        "claims and preparer know it by"
    )


def _with_taints(decided: Device, raw: Device, shown: Device) -> Device:
    """Return a device with the taints that health has added to what ``discover`` yielded."""
    added = shown.taints[len(raw.taints) :] if shown is not raw else ()
    if not added:
        return decided
    fields = {field: getattr(decided, field) for field in Device.model_fields}
    return Device(**{**fields, "taints": (*decided.taints, *added)[:TAINTS_MAX]})


def _pool(pool: Pool[Device], devices: Sequence[Device]) -> Pool[Device]:
    if len(devices) == len(pool.devices) and all(new is old for new, old in zip(devices, pool.devices, strict=True)):
        return pool
    fields = {field: getattr(pool, field) for field in type(pool).model_fields}
    return type(pool)(**{**fields, "devices": devices})
