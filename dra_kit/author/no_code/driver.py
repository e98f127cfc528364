"""The driver that a file of globs is."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, Field

from dra_kit.author.config.opaque import NoConfig
from dra_kit.author.devices.inventory import Inventory, Pool
from dra_kit.author.devices.provider import DeviceProvider
from dra_kit.author.driver import Driver
from dra_kit.author.preparing.claim import AllocatedDevice, Claim
from dra_kit.author.preparing.prepared import Prepared
from dra_kit.author.preparing.preparer import Preparer
from dra_kit.errors import ConfigurationError
from dra_kit.globs.devices import GlobDevice, device_of
from dra_kit.globs.matching import Match, TooManyDevicesError, matches
from dra_kit.globs.model import DeviceEntry, GlobFile
from dra_kit.globs.naming import device_names
from dra_kit.globs.reading import located, read_globs
from dra_kit.globs.templates import filled

logger: logging.Logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 2.0
"""How late a device node that comes or goes is noticed: the globs are matched again so often."""

_SETTLING: Final = 5
"""For so many looks after a change attributes are read again: udev tells of a device after its node is there."""

_LOOKS: Final = 30
"""After so many looks attributes are read again in any case."""


class GlobSettings(BaseModel):
    """Settings of every driver that is a file of globs."""

    root: Path = Field(Path("/"), description="folder that holds the node's dev, sys and run")


class GlobProvider(DeviceProvider[GlobDevice, Any, GlobSettings]):
    """What the globs match.

    Args:
        file: where it was written, for texts.
        globs: what it says.
    """

    def __init__(self, file: Path, globs: GlobFile) -> None:
        self._file = file
        self._entries = globs.devices
        self._names: dict[str, str] = {}
        self._logged: dict[tuple[str, str], str] = {}

    async def discover(self) -> AsyncIterator[Inventory[GlobDevice]]:
        """Yield all devices, again whenever something of them has changed."""
        root = self.context.settings.root
        before: list[Match] | None = None
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

    def _matches(self, root: Path) -> list[Match]:
        try:
            return matches(self._entries, root)
        except TooManyDevicesError as error:
            raise ConfigurationError(located(self._file, error.path, error.rule), code=error.code) from None

    def _devices(self, found: list[Match], root: Path) -> list[GlobDevice]:
        wanted = {match.file.path: _wanted_name(match, self._entries[match.entry]) for match in found}
        self._names = device_names(wanted, self._names)
        devices = []
        reasons: dict[tuple[str, str], str] = {}
        for match in found:
            device, lacks = device_of(match, self._entries[match.entry], self._names[match.file.path], root)
            devices.append(device)
            reasons |= {(device.name, attribute): reason for attribute, reason in lacks.items()}
        self._log_lacks(reasons)
        return devices

    def _log_lacks(self, lacks: Mapping[tuple[str, str], str]) -> None:
        """Tell once why a device lacks an attribute."""
        for (device, attribute), reason in lacks.items():
            if self._logged.get((device, attribute)) != reason:
                logger.info(
                    "device has no value for an attribute",
                    extra={"device": device, "attribute": attribute, "reason": reason},
                )
        self._logged = dict(lacks)


class GlobPreparer(Preparer[NoConfig, GlobDevice, Any, GlobSettings]):
    """Gives a container its device nodes."""

    async def prepare(self, claim: Claim, device: AllocatedDevice[NoConfig, GlobDevice]) -> Prepared:
        """Return the device nodes that were found when the device was discovered."""
        del claim
        edits = device.advertised.edits
        return Prepared(env=edits.env, mounts=edits.mounts, device_nodes=edits.device_nodes)


def load_globs(file: Path) -> Driver[NoConfig, GlobDevice]:
    """Return the driver of a file of globs.

    Args:
        file: of globs; see docs/reference/globs.md.

    Raises:
        ConfigurationError: it cannot be read or is wrong; the text begins with the file and the line (code
            ``invalid-globs``).
    """
    globs = read_globs(file)
    return Driver(globs.driver, provider=GlobProvider(file, globs), preparer=GlobPreparer(), settings=GlobSettings)


def _wanted_name(match: Match, entry: DeviceEntry) -> str:
    return filled(entry.name, match.values) if entry.name is not None else match.file.path.removeprefix("/dev/")
