"""The effect engine: intents and outcomes written down, references counted, conflicts refused, undone in reverse."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from pydantic import ValidationError

from dra_kit.author.calling import call
from dra_kit.author.claim import ClaimReference
from dra_kit.author.effect import Effect
from dra_kit.errors import ConfigurationError, DraKitError, PermanentError, TransientError
from dra_kit.node.locks import Locks
from dra_kit.node.records import EffectRecord
from dra_kit.node.store import Store

ResultT = TypeVar("ResultT")
logger = logging.getLogger(__name__)


class EffectEngine:
    """Makes effects true and undoes them; the one place that calls ``apply`` and ``revert``.

    Args:
        store: where intents and outcomes are written down.
        known: the driver's effect classes by their stable id.
        boot_id: of this boot; effects of an earlier boot are applied again.

    Raises:
        ConfigurationError: when the store holds an effect whose id the driver does not know.
    """

    def __init__(self, store: Store, known: Mapping[str, type[Effect[Any]]], *, boot_id: str) -> None:
        self._store = store
        self._known = known
        self._boot_id = boot_id
        self._keys = Locks()
        unknown = sorted({record.effect for record in store.effects()} - set(known))
        if unknown:
            raise ConfigurationError(
                f"effects {', '.join(unknown)} are in force and this driver does not know how to undo them; "
                "add their classes to Driver(effects=[…]), or drain the node with the release that made them",
                code="unknown-effect",
            )

    def scope(self, claim: ClaimReference, *, admin_access: bool) -> ClaimEffects:
        """Where one claim's effects are ensured."""
        return ClaimEffects(self, claim, admin_access=admin_access)

    async def ensure(self, claim: ClaimReference, effect: Effect[ResultT], *, admin_access: bool) -> ResultT:
        """Make an effect true for a claim; see :meth:`dra_kit.AllocatedDevice.ensure`.

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
        adapter = cls.outcome_adapter()
        async with self._locked(keys):
            if admin_access:
                record = self._find(cls.effect_id, spec)
                if record is None or record.phase != "applied" or record.outcome is None:
                    raise PermanentError(
                        f"effect {_title(cls.effect_id, spec)} is not in force, and claim {claim} has admin access "
                        "only, which changes nothing; prepare the device for an ordinary claim first",
                        code="effect-not-in-force",
                    )
                return adapter.validate_json(record.outcome)
            await self._refuse_conflicts(claim, cls.effect_id, spec, keys)
            record = await self._store.intend(cls.effect_id, spec, keys, claim=claim, boot_id=self._boot_id)
            if record.phase == "applied" and record.boot_id == self._boot_id and record.outcome is not None:
                return adapter.validate_json(record.outcome)
            previous = adapter.validate_json(record.outcome) if record.outcome is not None else None
            outcome = await call(effect.apply, previous)
            try:
                text = adapter.dump_json(adapter.validate_python(outcome)).decode()
            except (ValidationError, ValueError) as error:
                raise ConfigurationError(
                    f"effect {cls.__name__}.apply returned {outcome!r}, which is not the type it declares; "
                    "return what dra_kit.Effect[<type>] says",
                    code="invalid-outcome",
                ) from error
            await self._store.applied(record.number, text, boot_id=self._boot_id)
            logger.info("effect applied", extra={"effect": cls.effect_id, "keys": list(keys)})
            return outcome

    async def release(self, claim: ClaimReference) -> None:
        """Undo what only this claim needs, newest first.

        Raises:
            TransientError: when something could not be undone; it is kept, and tried again with the next call.
        """
        failures = []
        for record in self._store.effects_of(claim.uid):
            async with self._locked(record.keys):
                try:
                    if await self._store.release_effect(record.number, claim.uid):
                        await self._revert(record)
                except DraKitError as error:
                    failures.append(str(error))
        if failures:
            raise TransientError(f"claim {claim}: {'; '.join(failures)}", code="revert-failed")

    async def _revert(self, record: EffectRecord) -> None:
        cls = self._known[record.effect]
        effect = cls.model_validate_json(record.spec)
        outcome = cls.outcome_adapter().validate_json(record.outcome) if record.outcome is not None else None
        try:
            await call(effect.revert, outcome)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            await self._store.revert_failed(record.number, text)
            logger.warning("effect not undone", extra={"effect": record.effect, "error": text})
            raise TransientError(
                f"effect {_title(record.effect, record.spec)} could not be undone: {text}; it is tried again",
                code="revert-failed",
            ) from error
        await self._store.forget_effect(record.number)
        logger.info("effect undone", extra={"effect": record.effect, "keys": list(record.keys)})

    async def _refuse_conflicts(self, claim: ClaimReference, effect: str, spec: str, keys: Sequence[str]) -> None:
        for other in self._store.effects():
            if (other.effect, other.spec) == (effect, spec) or not set(other.keys) & set(keys):
                continue
            holders = [str(item) for item in other.claims if item.uid != claim.uid]
            if not holders and other.phase == "reverting":
                await self._revert(other)
                continue
            who = f"claim {', '.join(holders)}" if holders else f"the same claim {claim}"
            raise TransientError(
                f"claim {claim} needs {_title(effect, spec)}, but {who} holds "
                f"{', '.join(sorted(set(other.keys) & set(keys)))} with {_title(other.effect, other.spec)}; "
                "ask for the same, or wait until that claim is released",
                code="effect-conflict",
            )

    def _find(self, effect: str, spec: str) -> EffectRecord | None:
        return next((item for item in self._store.effects() if (item.effect, item.spec) == (effect, spec)), None)

    @asynccontextmanager
    async def _locked(self, keys: Sequence[str]) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for key in sorted(set(keys)):  # one order for everybody, so that nobody waits in a circle
                await stack.enter_async_context(self._keys.hold(key))
            yield


class ClaimEffects:
    """The effects of one claim, as an author's ``ensure`` reaches them."""

    def __init__(self, engine: EffectEngine, claim: ClaimReference, *, admin_access: bool) -> None:
        self._engine = engine
        self._claim = claim
        self._admin_access = admin_access
        self.loop = asyncio.get_running_loop()

    async def ensure(self, effect: Effect[ResultT]) -> ResultT:
        """See :meth:`EffectEngine.ensure`."""
        return await self._engine.ensure(self._claim, effect, admin_access=self._admin_access)


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
