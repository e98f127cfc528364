"""The author's device policy: a part of the process, between the inventory and the publisher."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from dra_kit.author.calls import author_exc_info, author_location, call, describe_error
from dra_kit.author.context import NodeInfo
from dra_kit.author.device import Device
from dra_kit.author.inventory import Inventory, Pool
from dra_kit.author.provider import DevicePolicy, ProviderCapabilities
from dra_kit.client.api import Client
from dra_kit.client.informer import wait_for_event
from dra_kit.errors import InvalidDevice
from dra_kit.node.followers import ObjectFollower, watched_object_follower
from dra_kit.node.health_ledger import Key, with_taints
from dra_kit.slices.inventory import CurrentInventory, validate_device

logger: logging.Logger = logging.getLogger(__name__)
ASK_AGAIN: Final = 10.0
"""Seconds until a policy that failed is called again."""


class PolicyPart:
    """A part of the node process, between the health-checked inventory and the publisher; used in the main loop.

    ``current`` has the devices as ``discover`` yielded them. ``labels`` returns those of the Node, None while
    they are not known, and ``settings`` are the author's; the watched object may depend on both. A policy that failed
    is called again after ``again`` seconds.
    """

    name = "policy"

    def __init__(
        self,
        policy: DevicePolicy[Any, Any, Any],
        client: Client,
        node_name: str,
        *,
        current: CurrentInventory,
        publish: Callable[[Inventory[Device]], None],
        serving: ProviderCapabilities,
        settings: Any = None,
        labels: Callable[[], Mapping[str, str] | None] = dict,
        again: float = ASK_AGAIN,
    ) -> None:
        self._policy = policy
        self._serving = serving
        self._current = current
        self._publish = publish
        self._again = again
        self._labels = labels
        self._needs_labels = policy.watches is not None and policy.watches.node_selector is not None
        self._wanted: Inventory[Device] | None = None
        self._news = asyncio.Event()
        self._watched: ObjectFollower | None = None
        if policy.watches is not None:
            self._watched = watched_object_follower(
                client, policy.watches, lambda: NodeInfo(node_name, labels() or {}), self._news.set, settings=settings
            )
        self._decided: dict[Key, Device] = {}
        self._reported: dict[str, str] = {}

    def publish(self, inventory: Inventory[Device]) -> None:
        """Publish this inventory from now on, as far as the policy allows."""
        self._wanted = inventory
        self._news.set()

    def node_changed(self) -> None:
        """Apply the policy again: the labels of the Node have changed."""
        if self._watched is not None:
            self._watched.look_again()
        self._news.set()

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready when an inventory was published for the first time."""
        async with asyncio.TaskGroup() as group:
            if self._watched is not None:
                group.create_task(self._watched.follow(), name="watched object")
            await self._decide_on_changes(ready)

    async def _decide_on_changes(self, ready: asyncio.Event) -> None:
        watched = self._watched
        while True:
            await self._news.wait()
            self._news.clear()
            if self._wanted is None or (watched is not None and not watched.known):
                continue
            if self._needs_labels and self._labels() is None:
                continue  # the chosen objects would be others than those for this node
            failed = await self._decide(self._wanted, watched.object if watched is not None else None)
            ready.set()
            if failed:
                await wait_for_event(self._news, self._again)
                self._news.set()

    async def _decide(self, inventory: Inventory[Device], watched: Mapping[str, Any] | None) -> bool:
        """Publish the inventory as the policy changes it; return whether the policy failed for any device."""
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
        except InvalidDevice as error:  # each device is valid, but their combination is not
            self._report(("", ""), error)
            return True
        if not failed:
            self._reported.clear()
        logger.info("policy applied", extra={"devices": len(shown), "withheld": len(shown) - len(decided)})
        self._publish(inventory.model_copy(update={"pools": tuple(pools)}))
        return failed

    def _of_pool(self, pool: Pool[Device], asked: Mapping[Key, Device]) -> list[Device]:
        keys = [((pool.name or "", device.name), device) for device in pool.devices]
        return [
            _with_health_taints(self._decided[key], asked[key], device) for key, device in keys if key in self._decided
        ]

    def _found(self) -> Sequence[Pool[Device]]:
        return self._current.latest.pools if self._current.latest is not None else ()

    async def _answers(self, devices: Mapping[Key, Device], watched: Mapping[str, Any] | None) -> dict[Key, object]:
        advertise = self._policy.advertise
        if inspect.iscoroutinefunction(inspect.unwrap(advertise)):
            return {key: await _outcome(call(advertise, device, watched)) for key, device in devices.items()}
        answers = await call(self._all, devices, watched)
        return {
            key: await _outcome(answer) if inspect.isawaitable(answer) else answer for key, answer in answers.items()
        }

    def _all(self, devices: Mapping[Key, Device], watched: Mapping[str, Any] | None) -> dict[Key, object]:
        """Run a sync policy in one thread for all devices: a thread for each would cost more than the policy itself."""
        answers: dict[Key, object] = {}
        for key, device in devices.items():
            try:
                answers[key] = self._policy.advertise(device, watched)
            except Exception as error:  # noqa: BLE001 - author's code may raise anything; the caller reports it
                answers[key] = error
        return answers

    def _report(self, key: Key, error: Exception) -> None:
        text = str(error) if isinstance(error, InvalidDevice) else describe_error(error)
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
        if place := author_location(error, module):
            extra["at"] = place
        expected = isinstance(error, InvalidDevice)
        logger.error("policy failed", extra=extra, exc_info=None if expected else author_exc_info(error, module))


async def _outcome(answer: Awaitable[object]) -> object:
    try:
        return await answer
    except Exception as error:  # noqa: BLE001 - the author's code may raise anything
        return error


def _checked(device: Device, answer: object, serving: ProviderCapabilities) -> Device | Exception | None:
    """Return what the policy returned if it may be published, or the reason why not."""
    if answer is None or answer is device:
        return device if answer is not None else None
    if isinstance(answer, Exception):
        return answer
    try:
        made = validate_device(answer, serving)
    except InvalidDevice as error:
        return error
    if made.name == device.name:
        return made
    return InvalidDevice(
        f"device {device.name}: the policy returned a device named {made.name}; return it with its name, which claims "
        "and the preparer refer to"
    )


def _with_health_taints(decided: Device, raw: Device, shown: Device) -> Device:
    """Return a device with the taints that health has added to the discovered device."""
    return with_taints(decided, shown.taints[len(raw.taints) :] if shown is not raw else ())


def _pool(pool: Pool[Device], devices: Sequence[Device]) -> Pool[Device]:
    if len(devices) == len(pool.devices) and all(new is old for new, old in zip(devices, pool.devices, strict=True)):
        return pool
    fields = {field: getattr(pool, field) for field in type(pool).model_fields}
    return type(pool)(**{**fields, "devices": devices})
