"""``Effect``: a change to hardware that outlives the call that made it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from concurrent.futures import Future
from functools import cache
from typing import Any, ClassVar, Generic, Protocol, Self

from pydantic import BaseModel, ConfigDict, PrivateAttr, PydanticUserError, TypeAdapter
from typing_extensions import TypeVar

from dra_kit.author.model import HardwareT
from dra_kit.errors import ConfigurationError, InvalidPrepared

OutcomeT = TypeVar("OutcomeT", default=None)
ResultT = TypeVar("ResultT")


class Effect(BaseModel, ABC, Generic[OutcomeT, HardwareT]):  # noqa: PLW1641 - pydantic hashes frozen models
    """A change to hardware: a time-slice, a partition, a daemon, a virtual function.

    ``Effect[str]`` has a text as its outcome, ``Effect[str, Nvml]`` also ``self.hardware``, an ``Nvml`` from
    ``Driver(hardware=…)``.

    A small model whose fields say what should be true. In ``prepare``::

        partition = await device.ensure(CreatePartition(gpu=device.advertised.uuid, profile="1g"))

    The framework writes the intent down before ``apply`` and the outcome after it, counts the claims that need the
    same effect, refuses different effects on one key, reverts in reverse order when preparing fails or the last
    claim is released, and applies again after a reboot.

    Class arguments:
        id: a name that stays the same when the class is renamed; it is stored.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)
    effect_id: ClassVar[str] = ""
    _hardware: Any = PrivateAttr(default=None)

    def __init_subclass__(cls, *, id: str | None = None, **kwargs: Any) -> None:  # noqa: A002 - the class argument
        super().__init_subclass__(**kwargs)
        if id is not None:
            cls.effect_id = id

    def __eq__(self, other: object) -> bool:
        # which hardware it is bound to makes no other effect of it
        return type(self) is type(other) and isinstance(other, Effect) and [*self] == [*other]

    @property
    def hardware(self) -> HardwareT:
        """The node's handle to the hardware; there in ``apply``, ``holds`` and ``revert``.

        Raises:
            ConfigurationError: when the driver has none, or the effect was called by hand without
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
        """Return the same effect with this handle as ``self.hardware``; the framework calls it, and so may tests."""
        bound = self.model_copy()
        bound._hardware = hardware  # noqa: SLF001 - of the same class
        return bound

    @abstractmethod
    def keys(self) -> Iterable[str]:
        """Return what this effect touches, for example ``["gpu/GPU-6f2c"]``; one name space for the whole driver."""

    def locks(self) -> Iterable[str]:
        """Return what nobody else may change while this effect is applied, asked about or reverted; empty by default.

        In the name space of ``keys()``, but never a conflict: effects with a lock in common follow one after another
        and may all be in force. An effect that picks "any free function" locks the card and has the claim's UID among
        its fields.
        """
        return ()

    def title(self) -> str:
        """Return what people read of it in conflicts, Events and logs; by default its id and fields."""
        fields = f" {self.model_dump_json()}" if type(self).model_fields else ""
        return f"{self.effect_id or type(self).__name__}{fields}"

    @abstractmethod
    def apply(self, previous: OutcomeT | None) -> OutcomeT | Awaitable[OutcomeT]:
        """Make it true and return what a container or ``revert`` needs to know of it (anything pydantic can store).

        Must be idempotent, and able to find its own half-done work: it may be called again after a crash in the
        middle, or after a reboot with the outcome of the time before in ``previous``. Raise :class:`dra_kit.NotYet`
        while it is still coming up: it is asked again soon.
        """

    def holds(self, outcome: OutcomeT) -> bool | Awaitable[bool]:
        """Return whether what ``apply`` made is still in force; by default yes.

        Asked at start, when a claim is prepared again, and now and then between. False: ``apply`` is called again,
        with the outcome in ``previous``. An exception means that it is not known, and changes nothing.
        """
        del outcome
        return True

    @abstractmethod
    def revert(self, outcome: OutcomeT | None) -> Awaitable[None] | None:
        """Undo it. ``outcome`` is None when ``apply`` never finished, also when it was called again and cut off.

        Must succeed when there is nothing to undo. It may take longer than the kubelet waits, and is not cut off then.
        """

    @classmethod
    def outcome_adapter(cls) -> TypeAdapter[OutcomeT]:
        """Return how the outcome is stored.

        Raises:
            ConfigurationError: when the outcome's type cannot be stored as JSON.
        """
        adapter: TypeAdapter[OutcomeT] = _adapter(cls)
        return adapter


@cache
def _adapter(cls: type[Effect[Any, Any]]) -> TypeAdapter[Any]:
    outcome = _outcome_type(cls, Effect)
    if isinstance(outcome, TypeVar):
        raise ConfigurationError(
            f"effect {cls.__name__}: its outcome type is open; derive it from dra_kit.Effect[<type>]"
        )
    try:
        return TypeAdapter(outcome)
    except PydanticUserError:  # of a schema that cannot be made, too
        raise ConfigurationError(
            f"effect {cls.__name__}: its outcome type {getattr(outcome, '__name__', outcome)} cannot be stored; use "
            "what pydantic can write as JSON, such as str, a dataclass or a pydantic model"
        ) from None


def _outcome_type(cls: type[BaseModel], origin: type[BaseModel]) -> Any:
    """Return what ``cls`` gives for the one parameter of ``Effect``, None where it gives nothing."""
    for base in cls.__mro__:
        metadata = base.__dict__.get("__pydantic_generic_metadata__") or {}
        if metadata.get("origin") is origin:
            return metadata["args"][0]
        if metadata.get("origin") is not None:  # an intermediate generic base: what its argument stands for
            between: type[BaseModel] = metadata["origin"]
            inherited = _outcome_type(between, origin)
            parameters = between.__pydantic_generic_metadata__["parameters"]
            known: dict[Any, Any] = dict(zip(parameters, metadata["args"], strict=False))
            return known.get(inherited, inherited) if isinstance(inherited, TypeVar) else inherited
    return None


class EffectScope(Protocol):
    """Where effects of one claim are ensured; the node role implements it."""

    def ensure(self, effect: Effect[ResultT, Any]) -> Coroutine[Any, Any, ResultT]:
        """Make the effect true for this claim, durably, and give its outcome."""
        ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop in which ``ensure`` runs."""
        ...


class PendingEffect(Awaitable[ResultT]):
    """An effect being ensured: ``await`` it in ``async def prepare``, or call ``result()`` in ``def prepare``."""

    def __init__(self, scope: EffectScope, effect: Effect[ResultT, Any], used: Callable[[], None]) -> None:
        self._scope = scope
        self._effect = effect
        self._used = used

    def __await__(self) -> Generator[Any, None, ResultT]:
        self._used()
        if asyncio.get_running_loop() is self._scope.loop:
            return self._scope.ensure(self._effect).__await__()
        return asyncio.wrap_future(self._in_its_loop()).__await__()

    def result(self) -> ResultT:
        """Wait for the outcome, from a worker thread.

        Raises:
            ConfigurationError: when called in an event loop, where it would wait for itself.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._used()
            return self._in_its_loop().result()
        raise ConfigurationError(
            f"ensure({type(self._effect).__name__}).result() blocks the event loop; in async def write "
            "'await device.ensure(…)'"
        )

    def _in_its_loop(self) -> Future[ResultT]:
        return asyncio.run_coroutine_threadsafe(self._scope.ensure(self._effect), self._scope.loop)


def may_be_unawaited_effect(error: Exception) -> bool:
    """Return whether an error may come from an :class:`PendingEffect` that stands where its outcome belongs.

    Of Python's own errors only AttributeError says on which object; with the others it is asked next whether an effect
    was never awaited, which is an error of its own.
    """
    if isinstance(error, AttributeError):
        return isinstance(error.obj, PendingEffect)
    return isinstance(error, InvalidPrepared | TypeError)
