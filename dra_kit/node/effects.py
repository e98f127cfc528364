"""The effect engine: intents and outcomes written down, references counted, conflicts refused, undone in reverse."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, TypeVar

from pydantic import ValidationError

from dra_kit.author.calling import call
from dra_kit.author.effect import Effect
from dra_kit.errors import ConfigurationError, DraKitError, PermanentError, TransientError
from dra_kit.node.calls import to_its_end
from dra_kit.node.locks import Locks
from dra_kit.node.records import EffectRecord
from dra_kit.node.steps import Step, reached
from dra_kit.node.store import Store
from dra_kit.process.tracebacks import from_author, raised
from dra_kit.resource.reference import ClaimReference

ResultT = TypeVar("ResultT")
logger = logging.getLogger(__name__)


class EffectEngine:
    """Makes effects true and undoes them; the one place that calls ``apply`` and ``revert``.

    Args:
        store: where intents and outcomes are written down.
        known: the driver's effect classes by their stable id.
        boot_id: of this boot; effects of an earlier boot are applied again.
        locks: of what effects touch.

    Raises:
        ConfigurationError: when the store holds an effect whose id the driver does not know.
    """

    def __init__(self, store: Store, known: Mapping[str, type[Effect[Any]]], *, boot_id: str, locks: Locks) -> None:
        self._store = store
        self._known = known
        self._boot_id = boot_id
        self._keys = locks
        _check(store.effects(), known)

    async def ensure(
        self, claim: ClaimReference, effect: Effect[ResultT], *, admin_access: bool, ensured: set[int]
    ) -> ResultT:
        """Make an effect true for a claim; see :meth:`dra_kit.AllocatedDevice.ensure`.

        Its number is added to ``ensured``. Other effects that this claim alone needed before make way for it: they are
        of an earlier preparation, which was cut off, or of the device that was there before a replug.

        Raises:
            PrepareError: it conflicts with an effect of another claim, or ``apply`` failed.
        """
        cls = type(effect)
        if self._known.get(cls.effect_id) is not cls:
            raise ConfigurationError(
                f"effect {cls.__name__} is not one of the driver's; add it to Driver(effects=[{cls.__name__}])",
                code="unknown-effect",
            )
        keys, spec = _keys(effect), effect.model_dump_json()
        if admin_access:
            async with self._locked(keys):
                return self._in_force(claim, effect, spec)
        locked = set(keys)
        while True:
            async with self._locked(locked):
                conflicts = self._conflicts(claim, effect, spec, keys, ensured)
                needed = locked.union(*(other.keys for other in conflicts))
                if needed == locked:
                    for other in conflicts:
                        await self._revert(other)
                    return await self._apply(claim, effect, spec, keys, ensured)
                locked = needed

    def _in_force(self, claim: ClaimReference, effect: Effect[ResultT], spec: str) -> ResultT:
        """The outcome of an effect that is in force; what has admin access changes nothing."""
        identity = (type(effect).effect_id, spec)
        for record in self._store.effects():
            in_force = record.phase == "applied" and record.boot_id == self._boot_id
            if (record.effect, record.spec) == identity and in_force and record.outcome is not None:
                return type(effect).outcome_adapter().validate_json(record.outcome)
        raise PermanentError(
            f"effect {_title(*identity)} is not in force, and claim {claim} has admin access only, which changes "
            "nothing; prepare the device for an ordinary claim first",
            code="effect-not-in-force",
        )

    async def _apply(
        self, claim: ClaimReference, effect: Effect[ResultT], spec: str, keys: Sequence[str], ensured: set[int]
    ) -> ResultT:
        cls, adapter = type(effect), type(effect).outcome_adapter()
        record = await self._store.intend(cls.effect_id, spec, keys, claim=claim, boot_id=self._boot_id)
        ensured.add(record.number)
        reached(Step.EFFECT_INTENDED)
        previous = adapter.validate_json(record.outcome) if record.outcome is not None else None
        if record.phase == "applied" and record.boot_id == self._boot_id and record.outcome is not None:
            return adapter.validate_json(record.outcome)
        outcome = await call(effect.apply, previous)
        reached(Step.EFFECT_APPLIED)
        try:
            text = adapter.dump_json(adapter.validate_python(outcome)).decode()
        except ValueError as error:  # pydantic's errors are of that class too
            raise ConfigurationError(
                f"effect {cls.__name__}.apply returned {outcome!r:.200}, which is not the type it declares; "
                "return what dra_kit.Effect[<type>] says",
                code="invalid-outcome",
            ) from error
        await self._store.applied(record.number, text, boot_id=self._boot_id)
        reached(Step.OUTCOME_STORED)
        logger.info("effect applied", extra={"effect": cls.effect_id, "keys": list(keys)})
        return adapter.validate_json(text)  # the same whether it was applied now or before

    async def release(self, claim: ClaimReference, *, keep: Collection[int] = ()) -> None:
        """Undo what only this claim needs, newest first, but for the effects whose numbers are in ``keep``.

        Raises:
            TransientError: when something could not be undone; it is kept, and tried again with the next call.
        """
        failures = []
        for record in self._store.effects_of(claim.uid):
            if record.number in keep:
                continue
            async with self._locked(record.keys):
                try:
                    unneeded = await self._store.release_effect(record.number, claim.uid)
                    reached(Step.EFFECT_RELEASED)
                    if unneeded is not None:
                        await self._revert(unneeded)
                except DraKitError as error:
                    failures.append(str(error))
        if failures:
            raise TransientError(f"claim {claim}: {'; '.join(failures)}", code="revert-failed")

    async def undo_unneeded(self) -> None:
        """Undo what no claim needs any more; what cannot be undone is told, and tried when its keys are wanted."""
        for unneeded in [record for record in self._store.effects() if not record.claims]:
            async with self._locked(unneeded.keys):
                await self._undo_if_unneeded(unneeded.number)

    async def _undo_if_unneeded(self, number: int) -> None:
        for record in self._store.effects():
            if record.number == number and not record.claims:
                with suppress(DraKitError):  # told there
                    await self._revert(record)

    async def _revert(self, record: EffectRecord) -> None:
        """Undo an effect and forget it, whatever time that takes."""
        await to_its_end(self._undo(record))

    async def _undo(self, record: EffectRecord) -> None:
        cls = self._known[record.effect]
        effect = cls.model_validate_json(record.spec)
        outcome = cls.outcome_adapter().validate_json(record.outcome) if record.outcome is not None else None
        try:
            await call(effect.revert, outcome)
            reached(Step.EFFECT_REVERTED)
        except Exception as error:
            text = raised(error, cls.__module__)
            await self._store.revert_failed(record.number, text.removeprefix("raised "))
            expected = isinstance(error, DraKitError)
            logger.warning(
                "effect not undone",
                extra={"effect": record.effect, "error": text.removeprefix("raised ")},
                exc_info=None if expected else from_author(error, cls.__module__),
            )
            raise TransientError(
                f"effect {_title(record.effect, record.spec)} could not be undone: {cls.__name__}.revert {text}; it is "
                "tried again",
                code="revert-failed",
            ) from error
        await self._store.forget_effect(record.number)
        reached(Step.EFFECT_FORGOTTEN)
        logger.info("effect undone", extra={"effect": record.effect, "keys": list(record.keys)})

    def _conflicts(
        self, claim: ClaimReference, effect: Effect[Any], spec: str, keys: Sequence[str], ensured: Collection[int]
    ) -> list[EffectRecord]:
        """Other effects on these keys that nobody needs any more, so that they can be undone to make way.

        Raises:
            TransientError: when another effect is needed, naming who needs it.
        """
        identity = (type(effect).effect_id, spec)
        in_the_way = []
        for other in self._store.effects():
            shared = sorted(set(other.keys) & set(keys))
            if (other.effect, other.spec) == identity or not shared:
                continue
            holders = [str(item) for item in other.claims if item.uid != claim.uid]
            if other.phase == "reverting" or (not holders and other.number not in ensured):
                in_the_way.append(other)
                continue
            who = f"claim {', '.join(holders)}" if holders else "the same claim"
            raise TransientError(
                f"claim {claim} needs {_title(*identity)}, but {who} holds {', '.join(shared)} with "
                f"{_title(other.effect, other.spec)}; ask for the same, or wait until that claim is released",
                code="effect-conflict",
            )
        return in_the_way

    @asynccontextmanager
    async def _locked(self, keys: Iterable[str]) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for key in sorted(set(keys)):  # one order for everybody, so that nobody waits in a circle
                await stack.enter_async_context(self._keys.hold(key))
            yield


class ClaimEffects:
    """Where the effects of one claim are ensured while it is being prepared.

    Args:
        engine: what makes them true.
        claim: that needs them.
        admin_access: they are only looked at.

    Attributes:
        ensured: numbers of the effects that this preparation asked for.
    """

    def __init__(self, engine: EffectEngine, claim: ClaimReference, *, admin_access: bool) -> None:
        self._engine = engine
        self._claim = claim
        self._admin_access = admin_access
        self.ensured: set[int] = set()
        self._running: set[asyncio.Future[None]] = set()
        self._closed = False
        self.loop = asyncio.get_running_loop()

    async def ensure(self, effect: Effect[ResultT]) -> ResultT:
        """See :meth:`EffectEngine.ensure`."""
        if self._closed:
            raise ConfigurationError(
                f"ensure({type(effect).__name__}) came after prepare of claim {self._claim} had ended; ensure effects "
                "in prepare itself and await them there",
                code="effect-too-late",
            )
        ended: asyncio.Future[None] = self.loop.create_future()
        self._running.add(ended)
        try:
            return await self._engine.ensure(self._claim, effect, admin_access=self._admin_access, ensured=self.ensured)
        finally:
            self._running.discard(ended)
            ended.set_result(None)

    async def close(self) -> None:
        """Refuse further effects and wait for those that are being ensured: what is undone next is complete."""
        self._closed = True
        if self._running:
            await asyncio.wait(self._running)


def _check(stored: Sequence[EffectRecord], known: Mapping[str, type[Effect[Any]]]) -> None:
    """Refuse effects in force that the driver could not undo.

    Raises:
        ConfigurationError: naming them.
    """
    unknown = sorted({record.effect for record in stored} - set(known))
    if unknown:
        raise ConfigurationError(
            f"effects {', '.join(unknown)} are in force and this driver does not know how to undo them; "
            "add their classes to Driver(effects=[…]), or drain the node with the release that made them",
            code="unknown-effect",
        )
    for record in stored:
        cls = known[record.effect]
        try:
            cls.model_validate_json(record.spec)
            if record.outcome is not None:
                cls.outcome_adapter().validate_json(record.outcome)
        except ValidationError as error:
            text = "; ".join(
                f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors(include_url=False)
            )
            raise ConfigurationError(
                f"effect {_title(record.effect, record.spec)} is in force and {cls.__name__} no longer understands it: "
                f"{text}; keep its fields readable, or drain the node with the release that made it",
                code="incompatible-effect",
            ) from error


def _keys(effect: Effect[Any]) -> list[str]:
    keys = list(effect.keys())
    if not keys or not all(isinstance(key, str) and key for key in keys):
        raise ConfigurationError(
            f"effect {type(effect).__name__}.keys() gave {keys!r}; name what it touches, for example ['gpu/0']",
            code="invalid-effect-keys",
        )
    return keys


def _title(effect: str, spec: str) -> str:
    return f"{effect} {spec}"
