"""The driver that a file of globs defines: provider, preparer, devices and their names."""

from __future__ import annotations

import hashlib
import itertools
import logging
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, Field

from dra_kit.author.claim import AllocatedDevice, Claim, env_name
from dra_kit.author.config import NoConfig
from dra_kit.author.device import Device
from dra_kit.author.driver import Driver
from dra_kit.author.inventory import Inventory, Pool
from dra_kit.author.no_code.matching import (
    AttributeUnavailable,
    DeviceNodeFile,
    GlobMatch,
    TooManyDevicesError,
    Value,
    find_devices,
    read_attribute,
    read_default,
)
from dra_kit.author.no_code.model import GlobEntry, GlobFile, build_capacity, fill_placeholders
from dra_kit.author.no_code.reader import describe_problem, read_globs
from dra_kit.author.prepared import ContainerEdits, DeviceNode, Mount, Prepared
from dra_kit.author.preparer import Preparer
from dra_kit.author.provider import DeviceProvider
from dra_kit.errors import ConfigurationError

logger: logging.Logger = logging.getLogger(__name__)
LOOK_SECONDS: Final = 2.0
"""Seconds between two matches of the globs: the longest delay until a new or removed device node is noticed."""
_SETTLING: Final = 5
"""Scans after a change in which attributes are read again: udev knows a device only after its node exists."""
_LOOKS: Final = 30
"""Scans after which attributes are read again in any case."""


class GlobSettings(BaseModel):
    """Settings of every driver defined by a file of globs."""

    root: Path = Field(Path("/"), description="folder that holds the node's dev, sys and run")


class GlobDevice(Device):
    """A device, with what a container gets when the device is allocated to it."""

    edits: ContainerEdits


class GlobProvider(DeviceProvider[GlobDevice, Any, GlobSettings]):
    """Finds the devices that match the globs of a file."""

    def __init__(self, file: Path, globs: GlobFile) -> None:
        self._file = file
        self._entries = globs.devices
        self._names: dict[str, str] = {}
        self._logged: dict[tuple[str, str], str] = {}

    async def discover(self) -> AsyncIterator[Inventory[GlobDevice]]:
        """Yield all devices, and again whenever any of them has changed."""
        root = self.context.settings.root
        before: list[GlobMatch] | None = None
        published: list[GlobDevice] | None = None
        looks = 0
        while True:
            found = self._matches(root)
            looks = 0 if found != before else looks + 1
            before = found
            if looks < _SETTLING or looks % _LOOKS == 0:
                devices = self._devices(found, root)
                if devices != published:
                    published = devices
                    yield Inventory(pools=[Pool(devices=devices, may_be_empty=True)])
            if await self.context.stopping.sleep(LOOK_SECONDS):
                return

    def _matches(self, root: Path) -> list[GlobMatch]:
        try:
            return find_devices(self._entries, root)
        except TooManyDevicesError as error:
            raise ConfigurationError(describe_problem(self._file, error.path, error.rule), code=error.code) from None

    def _devices(self, found: list[GlobMatch], root: Path) -> list[GlobDevice]:
        wanted = {match.file.path: _wanted_name(match, self._entries[match.entry]) for match in found}
        self._names = assign_device_names(wanted, self._names)
        devices = []
        reasons: dict[tuple[str, str], str] = {}
        for match in found:
            device, missing = build_device(match, self._entries[match.entry], self._names[match.file.path], root)
            devices.append(device)
            reasons |= {(device.name, attribute): reason for attribute, reason in missing.items()}
        self._log_missing(reasons)
        return devices

    def _log_missing(self, missing: Mapping[tuple[str, str], str]) -> None:
        """Log once why a device is missing an attribute."""
        for (device, attribute), reason in missing.items():
            if self._logged.get((device, attribute)) != reason:
                logger.info(
                    "device has no value for an attribute",
                    extra={"device": device, "attribute": attribute, "reason": reason},
                )
        self._logged = dict(missing)


class GlobPreparer(Preparer[NoConfig, GlobDevice, Any, GlobSettings]):
    """Gives a container its device nodes."""

    async def prepare(self, claim: Claim, device: AllocatedDevice[NoConfig, GlobDevice]) -> Prepared:
        """Return the device nodes that were found when the device was discovered."""
        del claim
        edits = device.advertised.edits
        return Prepared(env=edits.env, mounts=edits.mounts, device_nodes=edits.device_nodes)


def load_globs(file: Path) -> Driver[NoConfig, GlobDevice]:
    """Return the driver of a file of globs; see docs/reference/globs.md.

    Raises:
        ConfigurationError: it cannot be read or is invalid; the text begins with the file and the line (code
            ``invalid-globs``).
    """
    globs = read_globs(file)
    return Driver(globs.driver, provider=GlobProvider(file, globs), preparer=GlobPreparer(), settings=GlobSettings)


def _wanted_name(match: GlobMatch, entry: GlobEntry) -> str:
    return (
        fill_placeholders(entry.name, match.values) if entry.name is not None else match.file.path.removeprefix("/dev/")
    )


def build_device(match: GlobMatch, entry: GlobEntry, name: str, root: Path) -> tuple[GlobDevice, Mapping[str, str]]:
    """Return a device, and the reasons for missing attributes, by their names."""
    values = {**match.values, "device": name, "env": env_name(name)}
    attributes: dict[str, Value] = {}
    missing: dict[str, str] = {}
    for attribute, source in entry.attributes.items():
        try:
            attributes[attribute] = read_attribute(source, match.file, values, root)
        except AttributeUnavailable as error:
            if (default := read_default(source)) is not None:
                attributes[attribute] = default
            else:
                missing[attribute] = str(error)
    device = GlobDevice(
        name=name,
        attributes=attributes,
        capacity={capacity: build_capacity(given) for capacity, given in entry.capacity.items()},
        allow_multiple_allocations=entry.allow_multiple_allocations or None,
        edits=_edits(match, entry, values),
    )
    return device, missing


def _edits(match: GlobMatch, entry: GlobEntry, values: Mapping[str, str]) -> ContainerEdits:
    own = fill_placeholders(entry.container_path, values) if entry.container_path else match.file.path
    nodes = [_node(own, match.file, entry), *(_node(file.path, file, entry) for file in match.companions)]
    return ContainerEdits(
        env={fill_placeholders(name, values): fill_placeholders(text, values) for name, text in entry.env.items()},
        device_nodes=nodes,
        mounts=[
            Mount(
                host_path=fill_placeholders(mount.host_path, values),
                container_path=fill_placeholders(mount.container_path, values),
                options=mount.options,
            )
            for mount in entry.mounts
        ],
    )


def _node(path: str, file: DeviceNodeFile, entry: GlobEntry) -> DeviceNode:
    return DeviceNode(
        path=path,
        host_path=None if path == file.host_path else file.host_path,
        permissions=entry.permissions,
        uid=entry.uid,
        gid=entry.gid,
        file_mode=entry.file_mode,
    )


_LONGEST: Final = 63
_HASH: Final = 8


def assign_device_names(wanted: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """Return the name of each device by path, from the ``wanted`` texts; names in ``known`` are retained.

    Returns:
        A unique DNS label by path. Characters other than lower case letters, digits and dashes become dashes. If the
        result is too long, empty or already in use, a hash of the path makes it valid and unique.
    """
    names = {path: known[path] for path in wanted if path in known}
    taken = set(names.values())
    for path, text in wanted.items():
        if path in names:
            continue
        names[path] = next(name for name in _candidates(path, text) if name not in taken)
        taken.add(names[path])
    return names


def _candidates(path: str, text: str) -> itertools.chain[str]:
    label = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    plain = [label] if 0 < len(label) <= _LONGEST else []
    begin = label[: _LONGEST - _HASH - 1].rstrip("-") or "device"
    return itertools.chain(plain, (f"{begin}-{_hash(path, number)}" for number in itertools.count()))


def _hash(path: str, number: int) -> str:
    content = f"{path}\0{number}".encode(errors="surrogateescape")
    return hashlib.sha256(content).hexdigest()[:_HASH]
