"""The effect engine: stores intents and outcomes, counts references, rejects conflicts, reverts effects.

It also judges whether an effect failed because its hardware does not exist any more.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeAlias, TypeVar

from dra_kit.author.calls import author_exc_info, call, describe_located_error
from dra_kit.author.context import EffectInForce
from dra_kit.author.effect import Effect
from dra_kit.errors import (
    ConfigurationError,
    DraKitError,
    HardwareGone,
    NotYet,
    PermanentError,
    StoreError,
    TransientError,
)
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.context import HardwareHandle
from dra_kit.node.deadlines import retry_deadline, run_to_completion
from dra_kit.node.effects.classes import (
    EffectClasses,
    find_stored,
    keys_of,
    locks_of,
    outcome_of,
    public_text,
    public_title,
    stored_undo,
    title_of,
    write_outcome,
)
from dra_kit.node.failpoints import Failpoint, hit
from dra_kit.node.locks import NamedLocks
from dra_kit.node.state.records import EffectRecord
from dra_kit.node.state.store import StateStore
from dra_kit.process.tracing import span
from dra_kit.slices.inventory import CurrentInventory

ResultT = TypeVar("ResultT")
Replaced = Callable[[Effect[Any, Any], Sequence[ClaimReference]], None]
logger: logging.Logger = logging.getLogger(__name__)


class EffectEngine:
    """Applies effects; the only place that calls ``apply``. Effects of an earlier boot are applied again.

    ``locks`` are of what effects touch. ``reverter`` reverts effects that conflict and that no claim needs.
    ``replaced`` receives an effect whose outcome has changed, and the claims that were prepared with the former one.

    Raises:
        ConfigurationError: the store has an effect whose id the driver does not know.
    """

    def __init__(
        self,
        store: StateStore,
        classes: EffectClasses,
        hardware: HardwareHandle,
        reverter: EffectReverter,
        *,
        boot_id: str,
        locks: NamedLocks,
        replaced: Replaced,
    ) -> None:
        self.reverter = reverter
        self.gone: GoneHardware = reverter.gone
        self._store = store
        self._classes = classes
        self._hardware = hardware
        self._boot_id = boot_id
        self._locks = locks
        self._replaced = replaced
        classes.check(store.effects())

    async def ensure(
        self, claim: ClaimReference, effect: Effect[ResultT, Any], outcomes: MutableMapping[int, str | None]
    ) -> ResultT:
        """Apply an effect for a claim, once, and add its outcome by number to ``outcomes`` of this preparation.

        Conflicting effects that only this claim needed before are reverted first: they belong to an earlier preparation
        that was interrupted, or to the device before a replug.

        Raises:
            NotYet: raised by ``apply``; the intent stays stored.
            PrepareError: it conflicts with an effect of another claim, or ``apply`` failed.
        """
        spec, defaults = self._classes.stored_fields(effect)
        effect = await self._hardware.bound(effect)
        keys = keys_of(effect)
        locked = {*keys, *locks_of(effect)}
        while True:
            async with self._locks.hold_all(locked):
                stored = self._store.effects()
                known = find_stored(effect, spec, stored)
                others = [record for record in stored if record is not known]
                conflicts = self._classes.conflicts(claim, effect, keys, others, outcomes)
                touched = [*conflicts, known] if known is not None else conflicts
                needed = locked.union(*map(self._classes.touched, touched))
                if needed == locked:
                    for other in conflicts:
                        await self._revert_conflicting(other, claim, effect)
                    # the text that was stored first stays: it identifies the row
                    text = known.spec if known is not None else spec
                    record = await self._store.intend(
                        type(effect).effect_id, text, keys, claim=claim, boot_id=self._boot_id, defaults=defaults,
                        undo=stored_undo(effect),
                    )  # fmt: skip
                    outcomes.setdefault(record.number, None)
                    hit(Failpoint.EFFECT_INTENDED)
                    return await self._in_force_now(effect, record, outcomes)
                locked = needed

    async def _revert_conflicting(self, other: EffectRecord, claim: ClaimReference, effect: Effect[Any, Any]) -> None:
        """Revert an effect that no claim needs any more; users of this claim must not learn about it."""
        try:
            await self.reverter.revert(other)
        except DraKitError as error:
            error.public = (
                f"claim {claim} needs {public_title(effect)}, and the effect before it could not be reverted; the "
                "driver's log has the reason, and the kubelet tries again"
            )
            raise

    async def in_force(
        self, claim: ClaimReference, effect: Effect[ResultT, Any], outcomes: MutableMapping[int, str | None]
    ) -> ResultT:
        """Return the outcome of an effect in force, and add it to ``outcomes``: admin access applies nothing.

        Raises:
            PermanentError: it is not in force.
        """
        spec, _ = self._classes.stored_fields(effect)
        effect = await self._hardware.bound(effect)
        async with self._locks.hold_all((*keys_of(effect), *locks_of(effect))):
            record = find_stored(effect, spec, self._store.effects())
            if record is not None and self.is_in_force(record):
                outcomes[record.number] = record.outcome
                return outcome_of(type(effect), record)
        why = (
            f"is not in force, and claim {claim} has admin access only, which changes nothing; prepare the device for "
            "an ordinary claim first"
        )
        raise PermanentError(
            f"effect {title_of(effect)} {why}",
            code="effect-not-in-force",
            public=f"effect {public_title(effect)} {why}",
        )

    def known(self) -> list[EffectInForce]:
        """Return the stored effects for the author's code, except those that cannot be interpreted. Thread-safe."""
        found = []
        for record in self._store.effects():
            with suppress(DraKitError):
                effect, outcome = self._classes.load(record)
                bound = self._hardware.bound_now(effect)
                found.append(EffectInForce(bound, outcome, record.claims, self.is_in_force(record)))
        return found

    def is_in_force(self, record: EffectRecord) -> bool:
        """Return whether an effect is in force, as far as is known."""
        return record.phase == "applied" and record.boot_id == self._boot_id and record.outcome is not None

    async def _in_force_now(
        self, effect: Effect[ResultT, Any], record: EffectRecord, outcomes: MutableMapping[int, str | None]
    ) -> ResultT:
        if not self.is_in_force(record):
            try:
                record = await self._apply(effect, record)
            except NotYet:
                raise
            except Exception:
                del outcomes[record.number]  # if caught, another effect may replace this one
                raise
        outcomes[record.number] = record.outcome
        return outcome_of(type(effect), record)  # the same outcome, whether applied now or before

    async def apply_again(self, record: EffectRecord) -> None:
        """Apply an effect again that does not hold any more; the caller holds its keys and locks.

        Raises:
            NotYet: raised by ``apply``.
        """
        effect, _ = self._classes.load(record)
        await self._apply(await self._hardware.bound(effect), record)

    async def _apply(self, effect: Effect[Any, Any], record: EffectRecord) -> EffectRecord:
        """Return the record of an effect after applying it; the caller holds its keys and locks."""
        cls = type(effect)
        previous, former = None, None
        if record.outcome is not None:
            previous = outcome_of(cls, record)
            former = write_outcome(cls, previous)
        try:
            with span("apply effect", effect=cls.effect_id):
                outcome = await call(effect.apply, previous)
        except NotYet as error:
            raise NotYet(
                f"effect {title_of(effect)} is still coming up: {error}; nothing is undone, and the driver retries it",
                code=error.code,
                public=f"effect {public_title(effect)} is still coming up: {error.public}; nothing is undone, and the "
                "driver retries it",
            ) from error
        except Exception as error:
            if not self.gone.is_cause(error, record.claims):
                raise
            where = f"{self.gone.names(record.claims)} does not exist any more"
            remedy = "it can be applied when the device is back, or delete the pod to get another device"
            raise HardwareGone(
                f"effect {title_of(effect)} cannot be applied, because {where}: {cls.__name__}.apply raised "
                f"{describe_located_error(error, cls.__module__)}; {remedy}",
                public=f"effect {public_title(effect)} cannot be applied, because {where}; {remedy}",
            ) from None
        hit(Failpoint.EFFECT_APPLIED)
        text = write_outcome(cls, outcome)
        replaces = former is not None and text != former
        claims = await self._store.applied(record.number, text, boot_id=self._boot_id, replaces=replaces)
        hit(Failpoint.OUTCOME_STORED)
        if claims:
            hit(Failpoint.EFFECT_REPLACED)
            self._replaced(effect, claims)
        logger.info("effect applied", extra={"effect": title_of(effect), "keys": list(record.keys)})
        return record.model_copy(update={"phase": "applied", "outcome": text, "boot_id": self._boot_id})


class EffectReverter:
    """Reverts effects; the only place that calls ``revert``; ``locks`` are of what effects touch."""

    def __init__(
        self,
        store: StateStore,
        classes: EffectClasses,
        hardware: HardwareHandle,
        locks: NamedLocks,
        gone: GoneHardware,
    ) -> None:
        self.gone = gone
        self._store = store
        self._classes = classes
        self._hardware = hardware
        self._locks = locks

    async def release(self, claim: ClaimReference, *, keep: Collection[int] = ()) -> None:
        """Revert the effects that only this claim needs, newest first, except those whose numbers are in ``keep``.

        A corrupt effect is not reverted, since what that would change is unknown. It stays stored for people to look
        at, and is reported.

        Raises:
            TransientError: an effect could not be reverted; it stays recorded, and the next call tries again.
        """
        stored = self._store.effects_of(claim.uid)
        for number in self._store.needs(claim.uid) - {record.number for record in stored} - set(keep):
            await self._store.release_effect(number, claim.uid)
            remedy = "see --dump-state, and revert it manually if it is still in force"
            fields = {"effect": number, "code": "corrupt-record", "remedy": remedy}
            logger.error("effect not reverted, its record is corrupt", extra=fields)
        failures: list[DraKitError] = []
        for record in stored:
            if record.number in keep:
                continue
            try:
                await self._release(record, claim)
            except DraKitError as error:
                failures.append(error)
        if failures:
            codes = {error.code for error in failures}
            raise TransientError(
                f"claim {claim}: {'; '.join(map(str, failures))}",
                public=f"claim {claim}: {'; '.join(map(public_text, failures))}",
                code=codes.pop() if len(codes) == 1 else "revert-failed",
            )
        if not keep:
            self.gone.released(claim)

    async def _release(self, record: EffectRecord, claim: ClaimReference) -> None:
        async with self._locks.hold_all(self._classes.touched(record)):
            if {item.uid for item in record.claims} == {claim.uid}:
                effect, _ = self._classes.load(record)  # else it stays for a release that can
                await self._hardware.bound(effect)
            unneeded = await self._store.release_effect(record.number, claim.uid)
            hit(Failpoint.EFFECT_RELEASED)
            if unneeded is not None:
                await self.revert(unneeded)

    async def undo_unneeded(self) -> None:
        """Revert effects that no claim needs any more; a failure is reported, and retried when its keys are needed."""
        for unneeded in [record for record in self._store.effects() if not record.claims]:
            async with self._locks.hold_all(self._classes.touched(unneeded)):
                await self._undo_if_unneeded(unneeded.number)

    async def _undo_if_unneeded(self, number: int) -> None:
        for record in self._store.effects():
            if record.number == number and not record.claims:
                try:
                    await self.revert(record)
                except DraKitError as error:
                    if error.code != "revert-failed":  # that one is reported with its traceback
                        fields = {"effect": self._classes.title(record), "error": str(error), "code": error.code}
                        logger.warning("effect not reverted", extra=fields)

    async def revert(self, record: EffectRecord) -> None:
        """Revert an effect and forget it, however long that takes; the caller holds its keys and locks.

        An effect whose hardware does not exist any more is only forgotten.

        Raises:
            TransientError: it could not be reverted, or another release of the driver stored it.
        """
        await run_to_completion(self._revert(record))

    async def _revert(self, record: EffectRecord) -> None:
        effect, _ = self._classes.load(record)
        effect = await self._hardware.bound(effect)
        cls = type(effect)
        if record.phase != "reverting":
            # a half-reverted effect is not in force: the next claim that needs it applies it again
            record = await self._store.begin_revert(record)
            hit(Failpoint.EFFECT_REVERTING)
        _, outcome = self._classes.load(record)
        try:
            await call(effect.revert, outcome)
            hit(Failpoint.EFFECT_REVERTED)
        except Exception as error:
            text = describe_located_error(error, cls.__module__)
            if self.gone.is_cause(error, record.claims):
                await self._forget(record, "effect not reverted, its hardware does not exist any more", error=text)
                return
            expected = isinstance(error, DraKitError) or record.error == text  # the same as the last time
            await self._store.revert_failed(record.number, text)
            logger.warning(
                "effect not reverted",
                extra={"effect": self._classes.title(record), "error": text},
                exc_info=None if expected else author_exc_info(error, cls.__module__),
            )
            raise TransientError(
                f"effect {self._classes.title(record)} could not be reverted: {cls.__name__}.revert raised {text}; it "
                "is retried",
                code="revert-failed",
                public=f"effect {public_title(effect)} could not be reverted: {cls.__name__}.revert raised "
                f"{describe_located_error(error, cls.__module__, public=True)}; it is retried",
            ) from error
        await self._forget(record, "effect reverted")

    async def _forget(self, record: EffectRecord, why: str, **fields: str) -> None:
        await self._store.forget_effect(record.number)
        hit(Failpoint.EFFECT_FORGOTTEN)
        level = logging.WARNING if fields else logging.INFO
        logger.log(level, why, extra={"effect": self._classes.title(record), "keys": list(record.keys), **fields})


FIRST_PAUSE = 0.02
"""Seconds until an effect that is still coming up is retried, doubled each time."""
LAST_PAUSE = 2.0


class ClaimEffects:
    """Ensures effects for one claim, and retries those that are still coming up until the call's deadline.

    With ``admin_access`` effects are only looked up.

    Attributes:
        outcomes: the outcomes of the effects that this preparation ensured, by effect number; None until it has one.
    """

    def __init__(self, engine: EffectEngine, claim: ClaimReference, *, admin_access: bool) -> None:
        self._engine = engine
        self._claim = claim
        self._admin_access = admin_access
        self._coming_up: dict[int, str] = {}
        self._running: set[asyncio.Future[None]] = set()
        self._closed = False
        self._until = retry_deadline()
        self.outcomes: dict[int, str | None] = {}
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()

    @property
    def coming_up(self) -> str:
        """What is still coming up and must not be reverted at the deadline, as text for users; empty if nothing is."""
        return next(iter(self._coming_up.values()), "")

    async def ensure(self, effect: Effect[ResultT, Any]) -> ResultT:
        """See :meth:`dra_kit.AllocatedDevice.ensure`."""
        if self._closed:
            raise ConfigurationError(
                f"ensure({type(effect).__name__}) was called after prepare of claim {self._claim} had returned; ensure "
                "effects in prepare itself and await them there",
                code="effect-too-late",
            )
        ended: asyncio.Future[None] = self.loop.create_future()
        self._running.add(ended)
        try:
            if self._admin_access:
                return await self._engine.in_force(self._claim, effect, self.outcomes)
            return await self._tried(effect)
        finally:
            self._running.discard(ended)
            ended.set_result(None)

    async def _tried(self, effect: Effect[ResultT, Any]) -> ResultT:
        pause = FIRST_PAUSE
        while True:
            try:
                outcome = await self._engine.ensure(self._claim, effect, self.outcomes)
            except NotYet as error:
                self._coming_up[id(effect)] = error.public
                if self._closed or (self._until is not None and self.loop.time() + pause > self._until):
                    raise
            except Exception:
                self._coming_up.pop(id(effect), None)
                raise
            else:
                self._coming_up.pop(id(effect), None)
                return outcome
            await asyncio.sleep(pause)
            pause = min(pause * 2, LAST_PAUSE)

    async def close(self) -> None:
        """Reject further effects and wait for those in progress, so that what is reverted next is complete."""
        self._closed = True
        if self._running:
            await asyncio.wait(self._running)


_Key: TypeAlias = tuple[str, str]
"""Pool and name of a device."""
_KERNEL: Final = ("/dev/", "/sys/")
_SYS_DEVICE: Final = re.compile(r"/sys/(bus/[^/]+/devices|class/(?!net/)[^/]+|block|dev/[^/]+)/[^/]+")
"""Folders of devices. Those of network interfaces are also missing while an interface is in another namespace."""


class GoneHardware:
    """Judges the exceptions of effects; used only in the main loop.

    Hardware is gone if the author's code says so (:class:`dra_kit.HardwareGone`). It is also gone if a file is missing
    (``ENOENT``, or ``ENODEV`` and ``ENXIO`` for one of the kernel), and the inventory lacks the device of the claim, or
    the folder of the device is missing, too. Any other missing file may be a mistake, such as a mount that the driver's
    pod lacks, or a kernel module that is not loaded yet, and Linux answers ``ENODEV`` for a present device without its
    driver, too (``unbind_store`` and ``bind_store`` in ``drivers/base/bus.c``): the effect must not be forgotten then.
    The same holds before the first inventory, and if the devices are unknown because the record of the claim is lost.

    Args:
        inventory: None if there is never one, as in the tests of a driver; then each missing folder is of the device.
        look_again: called if a file is missing although the inventory has the device: it may be out of date.
    """

    def __init__(
        self, store: StateStore, inventory: CurrentInventory | None, *, look_again: Callable[[], None]
    ) -> None:
        self._store = store
        self._inventory = inventory
        self._look_again = look_again
        self._preparing: dict[str, tuple[_Key, ...]] = {}  # by UID of a claim that may have no record
        self._pools: set[str] = set()  # that the inventory has, or had
        if inventory is not None:
            inventory.listen(lambda found: self._pools.update(pool.name or "" for pool in found.pools))

    def preparing(self, claim: ClaimReference, devices: Iterable[_Key]) -> None:
        """Remember the devices of a claim that is being prepared."""
        self._preparing[claim.uid] = tuple(devices)

    def released(self, claim: ClaimReference) -> None:
        """Forget the devices of a claim."""
        self._preparing.pop(claim.uid, None)

    def is_cause(self, error: BaseException, claims: Iterable[ClaimReference]) -> bool:
        """Return whether an effect of these claims failed because its hardware is gone."""
        if isinstance(error, HardwareGone):
            return True
        if not isinstance(error, OSError) or _starts_program(error.__traceback__):
            return False
        of_kernel = error.errno in {errno.ENODEV, errno.ENXIO} and _is_kernel_path(error.filename)
        if error.errno != errno.ENOENT and not of_kernel:
            return False
        path = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None
        if self._inventory is None:
            return of_kernel or (path is not None and _may_be_of_device(path))
        devices = self._devices(claims)
        if self._lacks_device_of(path, devices) or (path is not None and _is_device_folder(path, _names(devices))):
            return True
        self._look_again()
        return False

    def _lacks_device_of(self, path: Path | None, devices: Mapping[_Key, tuple[str, ...]]) -> bool:
        """Return whether the inventory lacks one of these devices, and the path is not of one that it has."""
        # devices of pools without a node are never in the inventory
        if not any(key[0] in self._pools and not self._has(key) for key in devices):
            return False
        present = _names({key: ids for key, ids in devices.items() if self._has(key)})
        return path is None or present.isdisjoint(path.parts)

    def _has(self, key: _Key) -> bool:
        return self._inventory is not None and self._inventory.has(*key)

    def names(self, claims: Iterable[ClaimReference]) -> str:
        """Return the devices of claims that the inventory lacks, or all of them, for people."""
        devices = list(self._devices(claims))
        missing = [key for key in devices if not self._has(key)] or devices
        noun = "device" if len(missing) == 1 else "devices"
        return f"{noun} {', '.join('/'.join(key) for key in missing)}" if missing else "its hardware"

    def _devices(self, claims: Iterable[ClaimReference]) -> dict[_Key, tuple[str, ...]]:
        """Return the devices of claims, each with the names by which the hardware knows it."""
        found: dict[_Key, tuple[str, ...]] = {}
        for claim in claims:
            found |= dict.fromkeys(self._preparing.get(claim.uid, ()), ())
            try:
                record = self._store.claim(claim.uid)
            except StoreError:  # reported where the record is needed
                continue
            if record is not None:
                found |= {(item.pool, item.device): item.hardware_ids for item in record.devices}
        return found


def _starts_program(trace: TracebackType | None) -> bool:
    """Return whether the exception comes from starting a program, which may be the missing file."""
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == subprocess.__name__:
            return True
        trace = trace.tb_next
    return False


def _is_kernel_path(filename: object) -> bool:
    """Return whether a path is below /dev or /sys, or missing as for an ioctl; others may be pipes and sockets."""
    return filename is None or (isinstance(filename, str | bytes) and os.fsdecode(filename).startswith(_KERNEL))


def _names(devices: Mapping[_Key, tuple[str, ...]]) -> set[str]:
    """Return the names of devices, and those by which the hardware knows them."""
    return {name for (_, device), ids in devices.items() for name in (device, *ids)}


def _missing(path: Path) -> list[Path]:
    """Return the path, if it is missing, and its parents that are, too."""
    return [place for place in (path, *path.parents) if not os.path.lexists(place)]


def _is_device_folder(path: Path, names: set[str]) -> bool:
    """Return whether the uppermost missing folder of a path is that of a device."""
    missing = _missing(path)
    if not missing:
        return False
    return _SYS_DEVICE.fullmatch(str(missing[-1])) is not None or (len(missing) > 1 and missing[-1].name in names)


def _may_be_of_device(path: Path) -> bool:
    """Return whether a path is missing with its folder, or in /dev."""
    missing = _missing(path)
    return len(missing) > 1 or (bool(missing) and path.is_relative_to("/dev"))
