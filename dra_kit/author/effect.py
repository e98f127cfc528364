"""``Effect``: a change to hardware that outlives the call that made it. ``ChildProcess``: a program as an effect."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, final

from pydantic import BaseModel, ConfigDict, PrivateAttr, PydanticUserError, TypeAdapter
from typing_extensions import TypeVar

from dra_kit.author.calls import PendingResult, call
from dra_kit.author.model import HardwareT
from dra_kit.errors import ConfigurationError, InvalidPrepared, NotYet

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


@dataclass(frozen=True, slots=True)
class RunningProcess:
    """The outcome of a :class:`ChildProcess`.

    Attributes:
        pid: its process ID, as the driver sees it.
        started: when it was started, in clock ticks since boot (field 22 of proc_pid_stat(5)). Together with the
            process ID it identifies the process uniquely within this boot.
    """

    pid: int
    started: int


class ChildRunner(Protocol):
    """Starts, finds and stops programs; the node role and ``dra_kit.testing`` implement it."""

    async def start(self, child: ChildProcess[Any]) -> RunningProcess:
        """Find the program if it still runs; otherwise call its ``clear`` and start it.

        Raises:
            PrepareError: it cannot be started, or exited immediately.
        """
        ...

    async def runs(self, child: ChildProcess[Any], process: RunningProcess) -> bool:
        """Return whether this exact process still runs."""
        ...

    async def is_ready(self, child: ChildProcess[Any], *, ready: bool) -> str:
        """Record whether the program is ready; return the last output it wrote, empty if there is none.

        Raises:
            TransientError: it is not ready, and has exited.
        """
        ...

    async def end(self, child: ChildProcess[Any], *, hangs: bool = False) -> None:
        """Stop the program, no matter which process started it; do nothing if it does not run.

        Args:
            child: the effect.
            hangs: it does not respond, so its own ``stop`` is skipped.

        Raises:
            TransientError: it belongs to the driver's other process, which has not stopped it in time.
        """
        ...


class ChildProcess(Effect[RunningProcess, HardwareT]):
    """A foreground program, such as a daemon that shares a device, supervised as an effect::

        class MpsDaemon(dra.ChildProcess, id="mps"):
            gpu: str

            def keys(self) -> list[str]:
                return [f"gpu/{self.gpu}/sharing"]

            def command(self) -> list[str]:
                return ["nvidia-cuda-mps-control", "-f"]

            def environment(self) -> dict[str, str]:
                return {"CUDA_MPS_PIPE_DIRECTORY": f"/run/mps/{self.gpu}"}

            def ready(self) -> bool:
                return Path(f"/run/mps/{self.gpu}/control").exists()

    It is started once for all claims that ensure it, in its own session, with /dev/null as its input. Its output goes
    to the driver's log. ``prepare`` continues when ``ready`` returns True. If it exits by itself, it is started
    again, and claims that use it get an Event. It survives a killed driver, and the next process finds it. During a
    rolling update one of the two processes owns it and the other takes it over. In a container it stops with the
    container: the driver in the replacement pod starts it again. When the last claim is released, ``stop`` is called.
    If the program has not exited within ``end_within`` seconds it gets SIGTERM, and after the same time again SIGKILL,
    together with everything it started in its session.

    ``keys()`` identifies it: one program for each set of keys.
    """

    end_within: ClassVar[float] = 10.0
    _runner: ChildRunner | None = PrivateAttr(default=None)

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the program, by its path or its name on PATH, and its arguments; it must stay in the foreground."""

    def environment(self) -> Mapping[str, str]:
        """Return variables to add to the driver's own environment for the program."""
        return {}

    def ready(self) -> bool | Awaitable[bool]:
        """Return whether the program is ready; by default as soon as it runs. Called again until it returns True."""
        return True

    def alive(self) -> bool | Awaitable[bool]:
        """Return whether the running program still works; called when ``holds`` is, and True by default.

        A hung program still has a process, so send it a request. False: it is stopped and started again. An exception
        means that its state is unknown, and changes nothing.
        """
        return True

    def stop(self) -> bool | Awaitable[bool]:
        """Ask the program to exit through its own interface, if it has one; return whether it was asked and will exit.

        Called before SIGTERM if the program is ready and does not hang; by default it does nothing. The call and the
        exit of the program share ``end_within`` seconds. An exception is logged, and SIGTERM follows immediately.
        """
        return False

    def clear(self) -> Awaitable[None] | None:
        """Remove what a killed program leaves behind: a socket, a PID file, anything ``ready`` checks.

        Called before each start, and after the program was stopped; by default it does nothing.
        """

    def log_level(self, line: str) -> int:
        """Return the level at which a line of its output is logged, as in :mod:`logging`; by default INFO.

        Return DEBUG for lines that it writes repeatedly in normal operation, such as each time ``alive`` queries it.
        """
        del line
        return logging.INFO

    def with_runner(self, runner: ChildRunner) -> Self:
        """Return the same effect run by this runner; the framework calls it."""
        bound = self.model_copy()
        bound._runner = runner  # noqa: SLF001 - of the same class
        return bound

    @final
    async def apply(self, previous: RunningProcess | None) -> RunningProcess:
        """Find or start the program and wait until it is ready; stop it first if it runs but no longer works."""
        runner = self._run_by()
        process = await runner.start(self)  # a running program is found by its keys
        if process == previous and not await call(self.alive):
            await runner.end(self, hangs=True)
            process = await runner.start(self)
        ready = await call(self.ready)
        words = await runner.is_ready(self, ready=ready)
        if not ready:
            raise NotYet(f"{self.title()} is not ready yet" + (f"; it says: {words}" if words else ""))
        return process

    @final
    async def holds(self, outcome: RunningProcess) -> bool:
        """Return whether the process is still the one that was started, and works."""
        return await self._run_by().runs(self, outcome) and await call(self.alive)

    @final
    async def revert(self, outcome: RunningProcess | None) -> None:
        """Stop the program."""
        del outcome
        await self._run_by().end(self)
        await call(self.clear)

    def _run_by(self) -> ChildRunner:
        if self._runner is None:
            raise ConfigurationError(
                f"effect {type(self).__name__}: nothing runs its program; ensure it in prepare, in a test with "
                "dra_kit.testing.unit"
            )
        return self._runner
