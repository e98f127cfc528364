"""A driver's name without its code: what the node role runs where nothing else is left of the driver."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from dra_kit.author.devices.device import Device
from dra_kit.author.devices.provider import DeviceProvider
from dra_kit.author.driver import Driver
from dra_kit.author.preparing.claim import AllocatedDevice, Claim, PreparedDevice
from dra_kit.author.preparing.prepared import Prepared
from dra_kit.author.preparing.preparer import Preparer
from dra_kit.errors import PermanentError, TransientError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.undertaking.effects import REMEDY

logger: logging.Logger = logging.getLogger(__name__)


class _NoDevices(DeviceProvider[Device]):
    def discover(self) -> Iterator[Sequence[Device]]:
        yield []


class _NoCode(Preparer):
    """Releases claims that the driver's code has nothing to undo of.

    Args:
        imperative: UIDs of claims that only the driver's ``unprepare`` can release.
        abandon: forget those, too.
    """

    def __init__(self, imperative: Collection[str], *, abandon: bool) -> None:
        self._imperative = frozenset(imperative)
        self._abandon = abandon

    def prepare(self, claim: Claim, device: AllocatedDevice) -> Prepared:
        raise PermanentError(f"claim {claim} is not prepared with {device.name}: the driver's code is not here")

    def unprepare(self, claim: ClaimReference, devices: Sequence[PreparedDevice]) -> None:
        if claim.uid not in self._imperative:
            return
        names = ", ".join(f"{item.pool}/{item.device}" for item in devices)
        if not self._abandon:
            raise TransientError(
                f"claim {claim} can only be released by the driver's unprepare (devices {names}); {REMEDY}",
                code="no-driver-code",
            )
        logger.warning("claim abandoned", extra={"claim": str(claim), "devices": names})


def driver_without_code(name: str, imperative: Collection[str], *, abandon: bool) -> Driver[Any, Any]:
    """Return a driver that has no devices and prepares nothing.

    Args:
        name: of the driver whose state is there.
        imperative: UIDs of claims that only its own ``unprepare`` can release.
        abandon: release them all the same.

    Raises:
        ConfigurationError: the name is none.
    """
    return Driver(name, provider=_NoDevices(), preparer=_NoCode(imperative, abandon=abandon))
