"""The author's preparer, called: what it returns is checked, and what it raises becomes an error for users."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from dra_kit.author.calling import call
from dra_kit.author.config.opaque import OpaqueConfig
from dra_kit.author.devices.device import Device
from dra_kit.author.driver import Driver
from dra_kit.author.effects.effect import may_come_from_ensuring
from dra_kit.author.preparing.claim import AllocatedDevice, Effects, PreparedDevice
from dra_kit.author.preparing.prepared import Prepared
from dra_kit.author.preparing.preparer import Preparer, config_without_claim, default_for, prepare_all
from dra_kit.errors import (
    ConfigurationError,
    DraKitError,
    NotYet,
    PermanentError,
    PrepareError,
    TransientError,
)
from dra_kit.node.claims.reader import AllocatedClaim
from dra_kit.node.state.records import ClaimRecord
from dra_kit.process.logging import log_context
from dra_kit.process.tracebacks import raised
from dra_kit.process.tracing import span
from dra_kit.text import without_paths


class AuthorCalls(Struct, frozen=True):
    """Calls of one driver's preparer.

    Attributes:
        driver: whose preparer is called.
    """

    driver: Driver[Any, Any]

    async def default_config(self, advertised: Device, *, admin_access: bool = False) -> OpaqueConfig:
        """Return the config of a device whose claim gives none.

        Args:
            advertised: the device.
            admin_access: whether the claim only looks at it.

        Raises:
            PrepareError: the author's code failed.
        """
        try:
            config: OpaqueConfig = await config_without_claim(
                self.driver.preparer, advertised, admin_access=admin_access
            )
        except Exception as error:
            method = default_for(self.driver.preparer, admin_access=admin_access).__name__
            raise self._error(method, error) from error
        return config

    async def prepare(
        self,
        claim: AllocatedClaim,
        devices: Sequence[AllocatedDevice[Any, Any]],
        effects: tuple[Effects, Effects],
        returned: list[Prepared],
    ) -> list[Prepared]:
        """Return what the author's code makes of the devices of a claim.

        Args:
            claim: that has them.
            devices: with their configs.
            effects: where ordinary devices ensure theirs, and where those with admin access look at them.
            returned: gets what the author's code has returned, also of the first devices when it fails for the next.

        Raises:
            PrepareError: with a text for the user.
            ConfigurationError: an effect was ensured and not awaited.
        """
        preparer, (ordinary, admin) = self.driver.preparer, effects
        try:
            # admin access changes nothing, by whatever it is asked
            whole = admin if all(device.admin_access for device in devices) else ordinary
            prepared = await prepare_all(preparer, claim.for_author(whole), devices, returned, _about)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise self._error("prepare", error) from error  # something of the author's was cancelled
        except Exception as error:
            if may_come_from_ensuring(error):
                self._check_all_awaited(ordinary, admin, error)
            failure = self._error("prepare", error)
            raise self._with_unasked_config(failure, claim, devices) from error
        self._check_all_awaited(ordinary, admin)
        returned[:] = prepared
        return returned

    async def unprepare(self, record: ClaimRecord) -> None:
        """Call the author's ``unprepare``.

        Raises:
            PrepareError: it failed; the claim is not released.
        """
        preparer = self.driver.preparer
        devices = [
            PreparedDevice(
                pool=item.pool, device=item.device, share_id=item.share_id, request=item.request, state=item.state
            )
            for item in record.devices
        ]
        try:
            await call(preparer.unprepare, record.reference, devices)
        except PrepareError:
            raise
        except Exception as error:
            full, public = (
                f"{type(preparer).__name__}.unprepare {raised(error, type(preparer).__module__, public=public)}; the "
                "claim is kept and released when the kubelet asks again"
                for public in (False, True)
            )
            raise TransientError(full, code="author-error", public=public) from error

    def _check_all_awaited(self, ordinary: Effects, admin: Effects, cause: Exception | None = None) -> None:
        forgotten = ordinary.never_awaited() + admin.never_awaited()
        if forgotten:
            raise ConfigurationError(
                f"{type(self.driver.preparer).__name__}: ensure({forgotten[0]}) was never awaited; write "
                "'await device.ensure(…)', in a plain def 'device.ensure(…).result()'",
                code="effect-not-awaited",
            ) from cause

    def _error(self, method: str, error: BaseException) -> DraKitError:
        """Return the author's exception as a per-claim error; errors for the user pass as they are."""
        if isinstance(error, PrepareError | ConfigurationError):
            return error
        if isinstance(error, ExceptionGroup) and (still := _not_yet(error)) is not None:
            return still
        preparer = type(self.driver.preparer)
        if isinstance(error, DraKitError):
            where = f"{preparer.__name__}.{method}"
            return PrepareError(f"{where}: {error}", code=error.code, public=f"{where}: {without_paths(error.public)}")
        full, public = (
            f"{preparer.__name__}.{method} {raised(error, preparer.__module__, public=public)}; "
            "the driver's log has the traceback"
            for public in (False, True)
        )
        return PrepareError(full, code="author-error", public=public)

    def _with_unasked_config(
        self, error: DraKitError, claim: AllocatedClaim, devices: Sequence[AllocatedDevice[Any, Any]]
    ) -> DraKitError:
        """Return an error with the remark that a config was none of the claim's: of several kinds it has the first."""
        preparer = type(self.driver.preparer)
        given = [device for device in devices if not device.configs]
        selected = len(self.driver.configs.kinds) == 1 or preparer.default_config is not Preparer.default_config
        if selected or not given or not self.driver.configs.kinds:
            return error
        remark = (
            f" (claim {claim.reference} gives {', '.join(item.name for item in given)} no config, so it got the "
            f"default, a {type(given[0].config).__name__}; override {preparer.__name__}.default_config to choose)"
        )
        kind = PermanentError if isinstance(error, PermanentError) else TransientError
        return kind(f"{error}{remark}", code=error.code, public=f"{error.public}{remark}")


@contextmanager
def _about(devices: Sequence[str]) -> Iterator[None]:
    """Name the devices of a call in lines that the author's code logs, and in traces."""
    names = ",".join(devices)
    with log_context(device=names), span("driver code", device=names):
        yield


def _not_yet(error: BaseException) -> NotYet | None:
    """Return the effect that is still coming up, of those ensured in a TaskGroup; None after a worse error."""
    if isinstance(error, ExceptionGroup):
        found = [_not_yet(item) for item in error.exceptions]
        return found[0] if None not in found else None
    return error if isinstance(error, NotYet) else None
