"""``Effect``: a change to hardware that outlives the call that made it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self

from pydantic import BaseModel, ConfigDict, PrivateAttr, PydanticUserError, TypeAdapter
from typing_extensions import TypeVar

from dra_kit.author.calls import PendingResult
from dra_kit.author.model import HardwareT
from dra_kit.errors import ConfigurationError, InvalidPrepared

if TYPE_CHECKING:
    from dra_kit.author.context import Context

OutcomeT = TypeVar("OutcomeT", default=None)
ResultT = TypeVar("ResultT")


class Effect(BaseModel, ABC, Generic[OutcomeT, HardwareT]):  # noqa: PLW1641 - pydantic hashes frozen models
    """A change to hardware: a time-slice, a partition, a daemon, a virtual function.

    ``Effect[str]`` has a text as its outcome, ``Effect[str, Nvml]`` also ``self.hardware``, an ``Nvml`` from
    ``Driver(hardware=…)``. Every effect has ``self.context``.

    A small model whose fields describe the desired state. In ``prepare``::

        partition = await device.ensure(CreatePartition(gpu=device.advertised.uuid, profile="1g"))

    The framework records the intent before ``apply`` and the outcome after it, counts the claims that need the
    same effect, rejects different effects on one key, reverts in reverse order when preparing fails or the last
    claim is released, and applies again after a reboot.

    Class arguments:
        id: a name that stays the same when the class is renamed; it is stored.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)
    effect_id: ClassVar[str] = ""
    _hardware: Any = PrivateAttr(default=None)
    _context: Any = PrivateAttr(default=None)

    def __init_subclass__(cls, *, id: str | None = None, **kwargs: Any) -> None:  # noqa: A002 - the class argument
        super().__init_subclass__(**kwargs)
        if id is not None:
            cls.effect_id = id

    def __eq__(self, other: object) -> bool:
        # the hardware and context it is bound to do not make it a different effect
        return type(self) is type(other) and isinstance(other, Effect) and [*self] == [*other]

    @property
    def hardware(self) -> HardwareT:
        """The node's handle to the hardware; available in ``apply``, ``holds`` and ``revert``.

        Raises:
            ConfigurationError: when the driver has none, or the effect was called manually without
                :meth:`with_hardware`.
        """
        if self._hardware is None:
            raise ConfigurationError(
                f"effect {type(self).__name__} has no hardware; write Driver(…, hardware=<its factory>), in a test "
                "effect.with_hardware(…)"
            )
        hardware: HardwareT = self._hardware
        return hardware

    def with_hardware(self, hardware: HardwareT) -> Self:
        """Return the same effect with this handle as ``self.hardware``. The framework and tests call it."""
        bound = self.model_copy()
        bound._hardware = hardware  # noqa: SLF001 - of the same class
        return bound

    @property
    def context(self) -> Context[Any]:
        """What the framework reports about the node, with the author's settings; available where ``hardware`` is.

        Raises:
            ConfigurationError: when the effect was called manually without :meth:`with_context`.
        """
        if self._context is None:
            raise ConfigurationError(
                f"effect {type(self).__name__} has no context: only apply, holds and revert have it; in a test write "
                "effect.with_context(…)"
            )
        context: Context[Any] = self._context
        return context

    def with_context(self, context: Context[Any]) -> Self:
        """Return the same effect with this context as ``self.context``. The framework and tests call it."""
        bound = self.model_copy()
        bound._context = context  # noqa: SLF001 - of the same class
        return bound

    @abstractmethod
    def keys(self) -> Iterable[str]:
        """Return what this effect changes, for example ``["gpu/GPU-6f2c"]``; one namespace for the whole driver."""

    def locks(self) -> Iterable[str]:
        """Return locks to hold exclusively while this effect is applied, checked or reverted; empty by default.

        Locks share the namespace of ``keys()``, but never cause a conflict: effects with a lock in common run one at a
        time and may all be in force. For example, an effect that takes "any free function" locks the card and has the
        claim's UID as one of its fields.
        """
        return ()

    def title(self) -> str:
        """Return a description for conflicts, Events and logs; by default its id and fields."""
        fields = f" {self.model_dump_json()}" if type(self).model_fields else ""
        return f"{self.effect_id or type(self).__name__}{fields}"

    @abstractmethod
    def apply(self, previous: OutcomeT | None) -> OutcomeT | Awaitable[OutcomeT]:
        """Apply it and return what a container or ``revert`` needs to know (anything pydantic can store).

        Must be idempotent, and able to find its own half-done work: it may be called again after a crash in the
        middle, or after a reboot with the earlier outcome in ``previous``. Raise :class:`dra_kit.NotYet` while it is
        not ready yet: it is called again soon.
        """

    def holds(self, outcome: OutcomeT) -> bool | Awaitable[bool]:
        """Return whether the result of ``apply`` is still in force; True by default.

        Called at startup, when a claim is prepared again, and periodically. False: ``apply`` is called again with the
        outcome in ``previous``. An exception means that the state is unknown, and changes nothing.
        """
        del outcome
        return True

    @abstractmethod
    def revert(self, outcome: OutcomeT | None) -> Awaitable[None] | None:
        """Undo it. ``outcome`` is None if ``apply`` never finished, including a repeated call that was interrupted.

        Must succeed if there is nothing to undo. It may exceed the kubelet's timeout and is not interrupted then.
        """

    @classmethod
    def outcome_adapter(cls) -> TypeAdapter[OutcomeT]:
        """Return the type adapter that stores the outcome.

        Raises:
            ConfigurationError: when the outcome's type cannot be stored as JSON.
        """
        adapter: TypeAdapter[OutcomeT] = _adapter(cls)
        return adapter


@cache
def _adapter(cls: type[Effect[Any, Any]]) -> TypeAdapter[Any]:
    outcome = _outcome_type(cls)
    if isinstance(outcome, TypeVar):
        raise ConfigurationError(
            f"effect {cls.__name__}: its outcome type is open; derive it from dra_kit.Effect[<type>]"
        )
    try:
        return TypeAdapter(outcome)
    except PydanticUserError:  # also raised for a schema that cannot be built
        raise ConfigurationError(
            f"effect {cls.__name__}: its outcome type {getattr(outcome, '__name__', outcome)} cannot be stored; use "
            "what pydantic can write as JSON, such as str, a dataclass or a pydantic model"
        ) from None


def _outcome_type(cls: type[BaseModel]) -> Any:
    """Return the argument that ``cls`` gives for the parameter of ``Effect``; None if it gives none."""
    for base in cls.__mro__:
        metadata = base.__dict__.get("__pydantic_generic_metadata__") or {}
        if metadata.get("origin") is Effect:
            return metadata["args"][0]
        if metadata.get("origin") is not None:  # an intermediate generic base: resolve its argument
            between: type[BaseModel] = metadata["origin"]
            inherited = _outcome_type(between)
            parameters = between.__pydantic_generic_metadata__["parameters"]
            known: dict[Any, Any] = dict(zip(parameters, metadata["args"], strict=False))
            return known.get(inherited, inherited) if isinstance(inherited, TypeVar) else inherited
    return None


class EffectScope(Protocol):
    """Ensures the effects of one claim; the node role implements it."""

    def ensure(self, effect: Effect[ResultT, Any]) -> Coroutine[Any, Any, ResultT]:
        """Ensure the effect for this claim, durably, and return its outcome."""
        ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop in which ``ensure`` runs."""
        ...


class PendingEffect(PendingResult[ResultT]):
    """An effect being ensured: ``await`` it in ``async def prepare``, or call ``result()`` in ``def prepare``."""

    _reports_unused: ClassVar[bool] = False  # the claim fails

    def __init__(self, scope: EffectScope, effect: Effect[ResultT, Any], used: Callable[[], None]) -> None:
        def start() -> Coroutine[Any, Any, ResultT]:
            used()
            return scope.ensure(effect)

        super().__init__(start, lambda: scope.loop, f"ensure({type(effect).__name__})", "device.ensure(…)")


def may_be_unawaited_effect(error: Exception) -> bool:
    """Return whether an error may be caused by a :class:`PendingEffect` used in place of its outcome.

    Of Python's built-in errors only AttributeError names the object. For the others the caller also checks whether an
    effect was never awaited, which is an error itself.
    """
    if isinstance(error, AttributeError):
        return isinstance(error.obj, PendingEffect)
    return isinstance(error, InvalidPrepared | TypeError)
