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
from dra_kit.node.calls.deadlines import to_its_end
from dra_kit.node.locks.named import Locks
from dra_kit.node.state.records import EffectRecord
from dra_kit.node.state.store import Store
from dra_kit.node.steps import Step, reached
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

    def __init__(
        self, store: Store, known: Mapping[str, type[Effect[Any, Any]]], *, boot_id: str, locks: Locks
    ) -> None:
        self._store = store
        self._known = known
        self._boot_id = boot_id
        self._keys = locks
        _check(store.effects(), known)

    async def ensure(
        self, claim: ClaimReference, effect: Effect[ResultT, Any], *, admin_access: bool, ensured: set[int]
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
                stored = self._store.effects()
                same = _same(effect, spec, stored)
                others = [record for record in stored if record is not same]
                conflicts = _conflicts(claim, _title(cls.effect_id, spec), keys, others, ensured)
                touched = [*conflicts, same] if same is not None else conflicts
                needed = locked.union(*(record.keys for record in touched))
                if needed == locked:
                    for other in conflicts:
                        await self._revert(other)
                    # the text it was first stored with stays: it is what tells one row from another
                    return await self._apply(claim, effect, same.spec if same is not None else spec, keys, ensured)
                locked = needed

    def _in_force(self, claim: ClaimReference, effect: Effect[ResultT, Any], spec: str) -> ResultT:
        """The outcome of an effect that is in force; what has admin access changes nothing."""
        cls = type(effect)
        record = _same(effect, spec, self._store.effects())
        if record is not None and self._is_in_force(record) and record.outcome is not None:
            return _outcome(cls, record, record.outcome)
        raise PermanentError(
            f"effect {_title(cls.effect_id, spec)} is not in force, and claim {claim} has admin access only, which "
            "changes nothing; prepare the device for an ordinary claim first",
            code="effect-not-in-force",
        )

    def _is_in_force(self, record: EffectRecord) -> bool:
        return record.phase == "applied" and record.boot_id == self._boot_id

    async def _apply(
        self, claim: ClaimReference, effect: Effect[ResultT, Any], spec: str, keys: Sequence[str], ensured: set[int]
    ) -> ResultT:
        cls, adapter = type(effect), type(effect).outcome_adapter()
        record = await self._store.intend(cls.effect_id, spec, keys, claim=claim, boot_id=self._boot_id)
        ensured.add(record.number)
        reached(Step.EFFECT_INTENDED)
        previous = None
        if record.outcome is not None:
            previous = _outcome(cls, record, record.outcome)
            if self._is_in_force(record):
                return previous
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

        What is damaged is not undone: nobody knows what it would undo. It is kept for people to look at, and told.

        Raises:
            TransientError: when something could not be undone; it is kept, and tried again with the next call.
        """
        stored = self._store.effects_of(claim.uid)
        for number in self._store.needs(claim.uid) - {record.number for record in stored} - set(keep):
            await self._store.release_effect(number, claim.uid)
            remedy = "see --dump-state, and undo it by hand where it still is in force"
            told = {"effect": number, "code": "damaged-record", "remedy": remedy}
            logger.error("effect not undone, its record is damaged", extra=told)
        failures: list[DraKitError] = []
        for record in stored:
            if record.number in keep:
                continue
            async with self._locked(record.keys):
                try:
                    if {item.uid for item in record.claims} == {claim.uid}:
                        self._understood(record)  # what cannot be undone here stays as it is for who can
                    unneeded = await self._store.release_effect(record.number, claim.uid)
                    reached(Step.EFFECT_RELEASED)
                    if unneeded is not None:
                        await self._revert(unneeded)
                except DraKitError as error:
                    failures.append(error)
        if failures:
            codes = {error.code for error in failures}
            raise TransientError(
                f"claim {claim}: {'; '.join(map(str, failures))}",
                code=codes.pop() if len(codes) == 1 else "revert-failed",
            )

    async def undo_unneeded(self) -> None:
        """Undo what no claim needs any more; what cannot be undone is told, and tried when its keys are wanted."""
        for unneeded in [record for record in self._store.effects() if not record.claims]:
            async with self._locked(unneeded.keys):
                await self._undo_if_unneeded(unneeded.number)

    async def _undo_if_unneeded(self, number: int) -> None:
        for record in self._store.effects():
            if record.number == number and not record.claims:
                try:
                    await self._revert(record)
                except DraKitError as error:
                    if error.code != "revert-failed":  # which is told with its traceback
                        told = {"effect": record.effect, "error": str(error), "code": error.code}
                        logger.warning("effect not undone", extra=told)

    async def _revert(self, record: EffectRecord) -> None:
        """Undo an effect and forget it, whatever time that takes."""
        await to_its_end(self._undo(record))

    async def _undo(self, record: EffectRecord) -> None:
        effect, outcome = self._understood(record)
        cls = type(effect)
        if record.phase != "reverting":
            # what is half undone is not in force: whoever needs it next has it applied again
            await self._store.begin_revert(record.number)
            reached(Step.EFFECT_REVERTING)
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

    def _understood(self, record: EffectRecord) -> tuple[Effect[Any, Any], Any]:
        """An effect and its outcome, None where it has none.

        Raises:
            TransientError: when another release of the driver made it, whose process may run beside this one.
        """
        cls = self._known.get(record.effect)
        if cls is None:
            raise TransientError(
                f"effect {_title(record.effect, record.spec)} was made by another release of the driver, and this one "
                "has no class for it; run that release, which has to undo it",
                code="unknown-effect",
            )
        try:
            effect = cls.model_validate_json(record.spec)
        except ValidationError as error:
            raise _incompatible(cls, record, error) from error
        return effect, _outcome(cls, record, record.outcome) if record.outcome is not None else None

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

    async def ensure(self, effect: Effect[ResultT, Any]) -> ResultT:
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


def _check(stored: Sequence[EffectRecord], known: Mapping[str, type[Effect[Any, Any]]]) -> None:
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
            raise ConfigurationError(
                f"effect {_title(record.effect, record.spec)} is in force and {cls.__name__} no longer understands it: "
                f"{_problems(error)}; keep its fields readable, or drain the node with the release that made it",
                code="incompatible-effect",
            ) from error


def _same(effect: Effect[Any, Any], spec: str, stored: Sequence[EffectRecord]) -> EffectRecord | None:
    """What is stored of an effect, by whatever process and release; ``spec`` is its text here.

    Equal fields may have another text: the order of a set differs between processes, and a field that a newer release
    added is missing.
    """
    alike = [record for record in stored if record.effect == type(effect).effect_id]
    for record in alike:
        if record.spec == spec:
            return record
    for record in alike:
        with suppress(ValidationError):  # another one, which a newer release made
            if type(effect).model_validate_json(record.spec) == effect:
                return record
    return None


def _conflicts(
    claim: ClaimReference, wanted: str, keys: Sequence[str], others: Sequence[EffectRecord], ensured: Collection[int]
) -> list[EffectRecord]:
    """Other effects on these keys that nobody needs any more, so that they can be undone to make way.

    Raises:
        TransientError: when another effect is needed, naming who needs it.
    """
    in_the_way = []
    for other in others:
        shared = sorted(set(other.keys) & set(keys))
        if not shared:
            continue
        holders = [str(item) for item in other.claims if item.uid != claim.uid]
        if other.phase == "reverting" or (not holders and other.number not in ensured):
            in_the_way.append(other)
            continue
        who = f"claim {', '.join(holders)}" if holders else "the same claim"
        raise TransientError(
            f"claim {claim} needs {wanted}, but {who} holds {', '.join(shared)} with "
            f"{_title(other.effect, other.spec)}; ask for the same, or wait until that claim is released",
            code="effect-conflict",
        )
    return in_the_way


def _outcome(cls: type[Effect[ResultT, Any]], record: EffectRecord, text: str) -> ResultT:
    try:
        return cls.outcome_adapter().validate_json(text)
    except ValidationError as error:
        raise _incompatible(cls, record, error) from error


def _incompatible(cls: type[Effect[Any, Any]], record: EffectRecord, error: ValidationError) -> TransientError:
    return TransientError(
        f"effect {_title(record.effect, record.spec)} was made by another release of the driver, and {cls.__name__} "
        f"does not understand it: {_problems(error)}; run that release, which has to undo it",
        code="incompatible-effect",
    )


def _problems(error: ValidationError) -> str:
    return "; ".join(
        ": ".join(filter(None, (".".join(map(str, item["loc"])), item["msg"])))
        for item in error.errors(include_url=False)
    )


def _keys(effect: Effect[Any, Any]) -> list[str]:
    keys = list(effect.keys())
    if not keys or not all(isinstance(key, str) and key for key in keys):
        raise ConfigurationError(
            f"effect {type(effect).__name__}.keys() gave {keys!r}; name what it touches, for example ['gpu/0']",
            code="invalid-effect-keys",
        )
    return keys


def _title(effect: str, spec: str) -> str:
    return f"{effect} {spec}"
