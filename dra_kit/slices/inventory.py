"""The latest complete inventory: prepare looks up devices in it, and the publisher publishes it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from msgspec import Struct
from pydantic import JsonValue, ValidationError

from dra_kit.author.device import Device, stable_json, valid_v1
from dra_kit.author.driver import Driver
from dra_kit.author.inventory import Inventory, Pool
from dra_kit.author.model import copy_json, invalid_device, short_repr, snake_case_path
from dra_kit.author.provider import DeviceProvider, ProviderCapabilities
from dra_kit.errors import InvalidDevice, TransientError
from dra_kit.kubernetes.resource.field_errors import duplicate

logger: logging.Logger = logging.getLogger(__name__)


def validate_inventory(
    source: ProviderSource, yielded: object, dropped: Callable[[str, str], None]
) -> Inventory[Device]:
    """Return what ``discover`` yielded as an inventory whose pools all have names and valid devices of this scope.

    Objects that no constructor validated are validated here: pydantic's ``model_copy`` and ``model_construct`` bypass
    constructors. ``dropped`` is called with the name of each dropped device and the rule that it violates.

    Raises:
        InvalidDevice: it is neither a sequence of devices nor an Inventory, holds a pool that cannot be served in
            its scope, violates a rule across devices, or has an invalid device that must not be dropped.
    """
    valid = _Validation(source, dropped if source.drops_invalid else None)
    if isinstance(yielded, Inventory):
        return Inventory(pools=[valid.pool(pool) for pool in yielded.pools])
    provider = type(source.provider).__name__
    if isinstance(yielded, Sequence) and not isinstance(yielded, str | bytes):
        if source.unnamed is None:
            raise InvalidDevice(
                f"{provider}.discover yielded devices without a pool, which belong to no node; yield "
                "dra_kit.Inventory(pools=[dra_kit.Pool(name=…, all_nodes=True, devices=…)])"
            )
        return Inventory(pools=[Pool(name=source.unnamed, devices=valid.devices(yielded))])
    if isinstance(yielded, Device):
        raise InvalidDevice(
            f"{provider}.discover yielded one Device, {short_repr(yielded.name)}, in place of all of them; write "
            "'yield [device, ...]'"
        )
    raise InvalidDevice(
        f"{provider}.discover yielded {short_repr(yielded)}; yield a sequence of dra_kit.Device, or a dra_kit.Inventory"
    )


class _Validation:
    """Validates one inventory; without ``drop`` an invalid device is an error."""

    def __init__(self, source: ProviderSource, drop: Callable[[str, str], None] | None) -> None:
        self._source = source
        self._drop = drop

    def pool(self, pool: Pool[Device]) -> Pool[Device]:
        source = self._source
        name = pool.name or source.unnamed
        if name is None:
            raise InvalidDevice(
                f"{type(source.provider).__name__}.discover yielded a Pool without a name, which would be that of a "
                "node; write Pool(name=…)"
            )
        if problem := source.serving.problem(pool):
            raise InvalidDevice(f"Pool {short_repr(name)}: {problem}")
        fields = {field: getattr(pool, field) for field in type(pool).model_fields}
        return type(pool)(**{**fields, "name": name, "devices": self.devices(pool.devices)})

    def devices(self, devices: Sequence[object]) -> list[Device]:
        """Return the valid devices; without ``drop``, Pool's constructor rejects duplicate names."""
        valid: list[Device] = []
        names: set[str] = set()
        for item in devices:
            try:
                device = validate_device(item, self._source.serving)
                if self._drop is not None and device.name in names:
                    raise invalid_device(
                        _title(device), [duplicate("name", device.name, "devices must be unique in a pool")]
                    )
            except InvalidDevice as error:
                if self._drop is None:
                    raise
                self._drop(str(getattr(item, "name", "")), error.message)
                continue
            names.add(device.name)
            valid.append(device)
        return valid


def validate_device(item: object, serving: ProviderCapabilities) -> Device:
    """Return a validated device, no matter how it was created.

    Raises:
        InvalidDevice: it is not a device, or violates a rule.
    """
    if not isinstance(item, Device):
        raise InvalidDevice(f"{short_repr(item)} is not a dra_kit.Device; write dra_kit.Device(name=…)")
    try:
        valid_v1(item)
        problem = serving.problem(item)
    except InvalidDevice:
        raise
    except Exception as error:  # an object that bypassed the constructor may hold anything
        text = _problem(error) if isinstance(error, ValidationError) else f"{type(error).__name__}: {error}"
        raise InvalidDevice(f"{_title(item)}: {text}; create it with its constructor") from error
    if problem:
        raise InvalidDevice(f"{_title(item)}: {problem}")
    return item


def _title(device: Device) -> str:
    return f"{type(device).__name__} {short_repr(getattr(device, 'name', None))}"


def _problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    return f"{snake_case_path('.'.join(map(str, problem['loc'])))}: {problem['msg']}"


class DeviceIdentity(Struct, frozen=True):
    """Identifies one device.

    Attributes:
        hashes: hashes of the author's ``identity``, by key.
        fingerprint: of everything it advertises, as releases up to 0.1 record and compare it.
    """

    hashes: Mapping[str, str]
    fingerprint: str


_UNKNOWN: Final = DeviceIdentity({}, "")


class CurrentInventory:
    """Holds the latest inventory; used only in the main loop.

    Attributes:
        latest: None until ``discover`` has yielded once.
        problem: why the last ``discover`` failed; empty if it did not.
    """

    def __init__(self) -> None:
        self.latest: Inventory[Device] | None = None
        self._first = asyncio.Event()
        self._index: dict[tuple[str, str], Device] = {}
        self._identities: Mapping[tuple[str, str], DeviceIdentity] = {}
        self._listeners: list[Callable[[Inventory[Device]], None]] = []
        self.problem: str = ""

    def listen(self, listener: Callable[[Inventory[Device]], None]) -> None:
        """Call ``listener`` with each new inventory."""
        self._listeners.append(listener)

    def replace(self, inventory: Inventory[Device], identities: Mapping[tuple[str, str], DeviceIdentity]) -> None:
        """Replace the inventory, with the identities of its devices by pool and name."""
        self.problem = ""
        self.latest = inventory
        self._identities = identities
        self._index = {(pool.name or "", device.name): device for pool in inventory.pools for device in pool.devices}
        self._first.set()
        logger.info("inventory", extra={"devices": len(self._index), "pools": len(inventory.pools)})
        for listener in self._listeners:
            listener(inventory)

    def confirm(self) -> None:
        """Record that the latest inventory was found again unchanged."""
        self.problem = ""

    def identity(self, pool: str, name: str) -> DeviceIdentity:
        """Return the identity of a device; None if it is gone."""
        return self._identities.get((pool, name), _UNKNOWN)

    def has(self, pool: str, name: str) -> bool:
        """Return whether a device is in the latest inventory."""
        return (pool, name) in self._index

    def find(self, pool: str, name: str) -> Device | None:
        """Return a device of the latest inventory; None if it is not in it."""
        return self._index.get((pool, name))

    def is_replugged(self, pool: str, name: str, recorded: Mapping[str, str]) -> bool:
        """Return whether a different device than the recorded one has its name; False if no device has it."""
        return identity_differs(recorded, self.identity(pool, name).hashes)

    async def publishes(self, pool: str) -> bool:
        """Return whether a pool is in the latest inventory; wait for the first one."""
        await self._first.wait()
        return self.latest is not None and any(each.name == pool for each in self.latest.pools)

    async def device(self, pool: str, name: str) -> Device:
        """Return a device of the latest inventory; wait for the first one.

        Raises:
            TransientError: the device is not in it (code ``device-gone``).
        """
        await self._first.wait()
        device = self._index.get((pool, name))
        if device is None:
            raise TransientError(
                f"device {pool}/{name} is not in the driver's inventory any more; it can be prepared when it is back, "
                "or delete the pod to get another device",
                code="device-gone",
            )
        return device


_BYTES: Final = 6
"""Length of each hash: the chance of missing a change is 1 in 10^14."""


def device_identity(device: Device) -> DeviceIdentity:
    """Call the author's ``identity``; done at discovery, not for each claim.

    Raises:
        InvalidDevice: it returned something other than JSON values by name.
    """
    try:
        given = copy_json(dict(device.identity()))
        hashes = {key: _hash(value) for key, value in cast("dict[str, JsonValue]", given).items()}
    except Exception as error:  # the author's code may raise anything
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InvalidDevice(f"{_title(device)}: identity: {text}; return a dict of JSON values by name") from error
    return DeviceIdentity(hashes, _fingerprint(device))


def identity_differs(recorded: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Return whether it is a different device, by the keys both have; a key of only one release is ignored."""
    return any(now.get(key, value) != value for key, value in recorded.items())


def _hash(value: JsonValue) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=_BYTES).hexdigest()


def _fingerprint(device: Device) -> str:
    """Compute it as those releases do, so that they recognize the device after a rollback."""
    own = {name: stable_json(getattr(device, name)) for name in type(device).model_fields.keys() - Device.model_fields}
    text = json.dumps([device.to_v1().to_json(), own], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class ProviderSource(Struct, frozen=True):
    """A provider, and how its devices are published.

    Attributes:
        serving: the features that can be published.
        unnamed: the name of a pool without a name; None if each pool must have one.
        drops_invalid: an invalid device is dropped, not the whole inventory.
        rescan_every: seconds after which ``discover`` is restarted; None means never.
    """

    provider: DeviceProvider[Any, Any, Any]
    serving: ProviderCapabilities
    unnamed: str | None
    drops_invalid: bool
    rescan_every: float | None


def node_source(driver: Driver[Any, Any], node_name: str) -> ProviderSource:
    """Return the source of a driver's devices on a node; a pool without a name gets the name of the node."""
    return _source(driver, driver.provider, node_name)


def cluster_source(driver: Driver[Any, Any]) -> ProviderSource | None:
    """Return the source of a driver's devices that belong to no node, if it has a provider for them."""
    return None if driver.cluster_provider is None else _source(driver, driver.cluster_provider, None)


def _source(driver: Driver[Any, Any], provider: DeviceProvider[Any, Any, Any], unnamed: str | None) -> ProviderSource:
    serving = ProviderCapabilities(provider.provider_scope, binds=driver.binds)
    return ProviderSource(provider, serving, unnamed, driver.invalid_devices == "drop", driver.rescan_every)
