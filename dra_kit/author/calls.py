"""How the framework calls the author's code: methods, generators in threads, and descriptions of their exceptions."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import os
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ClassVar, Final, ParamSpec, TypeAlias, TypeVar

from msgspec import Struct
from pydantic import ValidationError

from dra_kit.errors import ConfigurationError, DraKitError, TransientError
from dra_kit.text import without_paths

logger: logging.Logger = logging.getLogger(__name__)
_LOOK_EVERY: Final = 1.0
"""Seconds between two looks whether the event loop that a thread waits for is closed."""
RETRY_SECONDS: Final = (1.0, 2.0, 5.0, 15.0, 60.0)


class GeneratorMessages(Struct, frozen=True):
    """The log messages about a generator.

    Attributes:
        title: such as ``Oven.discover``.
        failed: the message when it raised.
        again: the message when it raised the same error again.
        returns: what to write instead of returning a list.
        empty: what to write when there is nothing to yield; a run without a yield is then an error. Empty to allow it.
        code: the error code of a violation.
    """

    title: str
    failed: str
    again: str
    returns: str
    empty: str
    code: str


class GeneratorThread:
    """The thread of one generator method, ``def`` or ``async def``.

    ``deliver`` receives what it yields, in its thread; an exception raised there counts as the generator's. ``failed``
    is called in the main loop with the error. A generator that has returned is restarted after ``every`` seconds, or on
    request if that is None.
    """

    def __init__(
        self,
        method: Callable[[], object],
        deliver: Callable[[object], None],
        *,
        failed: Callable[[str], None],
        words: GeneratorMessages,
        logger: logging.Logger,
        every: float | None = None,
    ) -> None:
        self._method = method
        self._module = type(getattr(method, "__self__", method)).__module__
        self._deliver_item = deliver
        self._on_failure = failed
        self._words = words
        self._logger = logger
        self._every = every
        self._wake = threading.Condition()
        self._rescan = False
        self._stopping = False
        self._async_loop: asyncio.AbstractEventLoop | None = None
        self._async_wake: asyncio.Event | None = None
        self._sleeper: threading.Event | None = None  # of its own code, which sleeps
        self._must_wake = False  # once for each restart
        self._produced: object = None  # the generator
        self.failure: str = ""
        """Why it failed the last time; empty if it did not fail."""
        self.asked: float | None = None
        """When it was asked for something that has not arrived yet, by :func:`time.monotonic`."""

    @property
    def place(self) -> str:
        """Its position in the author's code, `` at file:line``; empty if unknown."""
        frame = getattr(self._produced, "gi_frame", None) or getattr(self._produced, "ag_frame", None)
        return f" at {frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""

    def restart(self) -> None:
        """Restart it from its beginning; a running async generator is closed first. May be called from any thread.

        A plain one is restarted when it yields next; it wakes up if it sleeps in :meth:`sleeping`.
        """
        self._interrupt(stop=False)

    @contextmanager
    def sleeping(self) -> Iterator[threading.Event]:
        """Give an event, in the thread of a plain generator, that is set when it has to be restarted or to stop."""
        woken = threading.Event()
        with self._wake:
            if self._must_wake:
                woken.set()
            self._sleeper = woken
        try:
            yield woken
        finally:
            with self._wake:
                self._sleeper, self._must_wake = None, False

    async def run(self) -> None:
        """Run until cancelled; a thread that blocks in the author's code ends with the process."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        name = self._words.title.rpartition(".")[2]
        work = partial(contextvars.copy_context().run, self._work, loop, ended)
        threading.Thread(target=work, name=name, daemon=True).start()
        try:
            await ended
        finally:
            self._interrupt(stop=True)

    def _interrupt(self, *, stop: bool) -> None:
        with self._wake:
            self._rescan = True
            self._stopping = self._stopping or stop
            self._wake.notify_all()
            self._must_wake = True
            if self._sleeper is not None:
                self._sleeper.set()
            loop, event = self._async_loop, self._async_wake
            if loop is not None and event is not None:
                call_threadsafe(loop, event.set)

    def _work(self, loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
        attempt = 0
        _of_thread.generator = self
        while not self._stopping:
            self._rescan = self._must_wake = False
            delay = self._every
            began = self.asked = time.monotonic()
            try:
                self._once()
                attempt, self.failure = 0, ""
            except BaseException as raised:  # noqa: BLE001 - the author's code may raise anything; logged and retried
                error = contained_exception(raised)
                if time.monotonic() - began > RETRY_SECONDS[-1]:
                    attempt, self.failure = 0, ""  # it worked for a while: this is a new failure
                delay = RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]
                attempt += 1
                self._report(loop, error, delay)
            self.asked = None
            with self._wake:
                self._wake.wait_for(lambda: self._rescan or self._stopping, timeout=delay)
        call_threadsafe(loop, lambda: None if ended.done() else ended.set_result(None))

    def _report(self, loop: asyncio.AbstractEventLoop, error: Exception, delay: float) -> None:
        text = error_text(error)
        if text == self.failure:
            self._logger.info(self._words.again, extra={"again_in": delay})  # nothing new to report
        else:
            fields = {**error_fields(error, self._module), "again_in": delay}
            self._logger.error(self._words.failed, extra=fields, exc_info=unexpected_exc_info(error, self._module))
        self.failure = text
        call_threadsafe(loop, lambda: self._on_failure(text))

    def _once(self) -> None:
        """Run the generator once, from start to end."""
        self._produced = produced = self._method()
        seen = False
        if isinstance(produced, AsyncIterable):
            seen = asyncio.run(self._drain(produced))
        elif inspect.isgenerator(produced):
            with closing(produced):
                for yielded in produced:
                    seen = True
                    self._deliver(yielded)
                    if self._rescan:
                        break
        else:
            if inspect.iscoroutine(produced):
                produced.close()
            raise ConfigurationError(
                f"{self._words.title} must be a generator; {self._words.returns}", code=self._words.code
            )
        if self._words.empty and not seen and not self._rescan:
            raise ConfigurationError(f"{self._words.title} ended without {self._words.empty}", code=self._words.code)

    async def _drain(self, produced: AsyncIterable[object]) -> bool:
        wake = asyncio.Event()
        with self._wake:
            self._async_loop, self._async_wake = asyncio.get_running_loop(), wake
            if self._rescan:
                wake.set()
        seen = ending = False

        async def iterate() -> None:
            """Run the generator in one task: task groups, timeouts and context variables span its yields."""
            nonlocal seen, ending
            iterator = aiter(produced)
            try:
                async for yielded in iterator:
                    self._deliver(yielded)
                    seen = True
                    if self._rescan:
                        break
            finally:
                ending = True
                close = getattr(iterator, "aclose", None)
                if close is not None:
                    await close()

        iterating, interrupted = asyncio.ensure_future(iterate()), asyncio.ensure_future(wake.wait())
        try:
            await asyncio.wait({iterating, interrupted}, return_when=asyncio.FIRST_COMPLETED)
            if iterating.done():
                iterating.result()
            else:
                if not ending:
                    iterating.cancel()
                await asyncio.gather(iterating, return_exceptions=True)
        finally:
            interrupted.cancel()
            with self._wake:
                self._async_loop = self._async_wake = None
        return seen

    def _deliver(self, yielded: object) -> None:
        self.asked = None
        self._deliver_item(yielded)


_of_thread: Final = threading.local()


def running_generator() -> GeneratorThread | None:
    """Return the generator that the current thread runs; None in other threads."""
    found: GeneratorThread | None = getattr(_of_thread, "generator", None)
    return found


def call_threadsafe(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Call ``function`` in a loop, from any thread; do nothing if the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class RunningCall:
    """A call of an author's method that has not returned.

    Attributes:
        method: ``Class.method``.
        since: when it began, by :func:`time.monotonic`.
        loop: that of the caller.
        context: the caller's context variables, which identify what the call is about.
        owner: the object whose method it is; None for a function.
        thread: identifies the thread of a ``def`` method; None for ``async def``.
        awaited: what the method returned if it is awaited.
    """

    method: str
    since: float
    loop: asyncio.AbstractEventLoop
    context: contextvars.Context
    owner: object = None
    thread: int | None = None
    awaited: object = None

    def place(self, module: str = "") -> str:
        """Return ``file:line`` in the author's code where the call is now; empty if unknown.

        ``module`` is as for :func:`author_location`. Call it in the loop of the call.
        """
        frames: list[FrameType] = []
        if self.awaited is None:
            frame = sys._current_frames().get(self.thread or 0)  # noqa: SLF001 - the only way to see another thread
            while frame is not None:
                frames.append(frame)
                frame = frame.f_back
        waiting = self.awaited
        while waiting is not None:
            frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
            if frame is not None:
                frames.insert(0, frame)
            waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
        own = (f"{item.f_code.co_filename}:{item.f_lineno}" for item in frames if _is_authors(item, module))
        return next(own, "")


_under_way: dict[RunningCall, None] = {}


def running_calls(loop: asyncio.AbstractEventLoop) -> list[RunningCall]:
    """Return the calls made from a loop that have not returned, oldest first. May be called from any thread."""
    return [item for item in list(_under_way) if item.loop is loop]


async def call(function: Callable[P, T | Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of an author's method; ``def`` methods run in their own thread.

    The thread is a daemon: a call that never returns blocks neither other calls nor the exit of the process. Until it
    returns, :func:`running_calls` lists it.
    """
    owner = _owner(function)
    item = RunningCall(
        _title(function, owner), time.monotonic(), asyncio.get_running_loop(), contextvars.copy_context(), owner
    )
    _under_way[item] = None

    @wraps(function)
    def in_thread() -> T | Awaitable[T]:
        item.thread = threading.get_ident()
        return function(*args, **kwargs)

    try:
        result: Any
        if inspect.iscoroutinefunction(inspect.unwrap(function)):
            result = function(*args, **kwargs)
        else:
            result = await run_in_thread(in_thread)
        if inspect.isawaitable(result):
            item.awaited = result
            result = await result
    except GeneratorExit:
        raise  # the awaiting task is gone
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, Exception) or (
            isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling()
        ):
            raise
        raise contained_exception(error) from None
    else:
        outcome: T = result
        return outcome
    finally:
        del _under_way[item]


class EscapedException(RuntimeError):
    """Replaces an exception that must not leave an author's call, described as ``SystemExit(1)``."""

    def __init__(self, what: str) -> None:
        super().__init__(f"raised {what}")
        self.what = what


def contained_exception(error: BaseException) -> Exception:
    """Return the exception of the author's code as an error that stops only the call.

    SystemExit and similar exceptions would stop the process, CancelledError would look like a cancelled caller, and
    StopIteration cannot pass through a future.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return EscapedException(f"{type(error).__name__}({error})").with_traceback(error.__traceback__)


def _owner(function: Callable[..., object]) -> object:
    """Return the object of a method, also of one that a function of dra-kit wraps."""
    found: object = getattr(function, "__self__", None)
    return found if found is not None else getattr(getattr(function, "__wrapped__", None), "__self__", None)


def _title(function: Callable[..., object], owner: object) -> str:
    name = getattr(function, "__name__", "author")
    return name if owner is None else f"{type(owner).__name__}.{name}"


async def run_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking function in a daemon thread, with the caller's context variables."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    future.add_done_callback(lambda done: done.cancelled() or done.exception())  # for the case that no caller is left
    context = contextvars.copy_context()

    def run() -> None:
        try:
            result = context.run(function, *args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            call_threadsafe(loop, partial(future.set_exception, contained_exception(error)))
        else:
            call_threadsafe(loop, partial(future.set_result, result))

    threading.Thread(target=run, name=getattr(function, "__qualname__", "author"), daemon=True).start()
    try:
        await asyncio.wait({future})
    except asyncio.CancelledError:
        # A thread cannot be stopped. A caller that holds a lock around this call must hold it until the thread has
        # ended. A second cancellation (the process exits) stops the wait.
        await asyncio.wait({future})
        raise
    return future.result()


class PendingResult(Awaitable[T]):
    """A result that is not there yet: ``await`` it in ``async def``, or call ``result()`` in ``def``.

    The framework creates it. Its work begins when it is awaited or asked for its result. It runs in the event loop of
    the process, which the author's code cannot block. A result that is never requested is logged.
    """

    _reports_unused: ClassVar[bool] = True

    def __init__(
        self,
        start: Callable[[], Coroutine[Any, Any, T]],
        loop: Callable[[], asyncio.AbstractEventLoop],
        title: str,
        awaited: str,
    ) -> None:
        self._begun = False
        self._start = start
        self._loop = loop
        self._title = title
        self._awaited = awaited

    def __del__(self) -> None:
        if self._reports_unused and not self._begun:
            logger.warning(
                "result never requested: nothing was sent",
                extra={"call": self._title, "remedy": f"write 'await {self._awaited}', or in def .result()"},
            )

    def __await__(self) -> Generator[Any, None, T]:
        self._begun = True
        if asyncio.get_running_loop() is self._loop():
            return self._start().__await__()
        return self._elsewhere().__await__()

    def result(self) -> T:
        """Wait for the result, from a worker thread, in which ``def`` methods run.

        Raises:
            ConfigurationError: when called in an event loop, where it would wait for itself.
            TransientError: the process of the driver stops.
        """
        self._begun = True
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._in_thread()
        raise ConfigurationError(
            f"{self._title}.result() blocks the event loop; in async def write 'await {self._awaited}'"
        )

    def _in_thread(self) -> T:
        started = self._start()
        future = self._in_its_loop(started)
        # a loop that is closed runs nothing any more, and nothing wakes those that wait for it
        while not wait([future], timeout=_LOOK_EVERY).done:
            if self._loop().is_closed():
                if inspect.getcoroutinestate(started) == inspect.CORO_CREATED:
                    started.close()
                raise self._stopped()
        try:
            return future.result()
        except CancelledError:
            raise self._stopped() from None

    async def _elsewhere(self) -> T:
        future = self._in_its_loop(self._start())
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise self._stopped() from None

    def _in_its_loop(self, started: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            return asyncio.run_coroutine_threadsafe(started, self._loop())
        except RuntimeError:  # the loop is closed
            started.close()
            raise self._stopped() from None

    def _stopped(self) -> TransientError:
        return TransientError(
            f"{self._title} has no result: the process of the driver is stopping; it is called again after the restart"
        )


ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None]
_FOREIGN: Final = (
    "<",
    *(
        f"{path}{os.sep}"
        for path in (Path(__file__).parents[1], *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
    ),
)
"""Directories of code that the author did not write: dra-kit, the standard library, installed packages."""


def author_location(error: BaseException, module: str = "") -> str:
    """Return ``file:line`` in the author's code where an error was raised; empty if it was raised elsewhere.

    For a SyntaxError, return the place in the file that does not parse, with the column. ``module`` is one of the
    author's modules: an installed driver is next to third-party packages.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return ":".join(map(str, filter(None, (error.filename, error.lineno, error.offset))))
    own = [f"{frame.f_code.co_filename}:{line}" for frame, line in traceback.walk_tb(error.__traceback__)
           if _is_authors(frame, module)]  # fmt: skip
    return own[-1] if own else ""


def describe_error(error: BaseException) -> str:
    """Return ``KeyError: 'clock'``, on one line; pydantic's errors without the values, which may be secrets."""
    if isinstance(error, EscapedException):
        return " ".join(error.what.split())
    text = " ".join(_text(error).split())
    return f"{type(error).__name__}{f': {text}' if text else ''}"


def _text(error: BaseException) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    return f"{error.title}: " + "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in problems)


def describe_located_error(error: BaseException, module: str = "", *, public: bool = False) -> str:
    """Return ``KeyError: 'clock' at file:line``, on one line; ``module`` as for :func:`author_location`.

    ``public`` omits paths of the host from the message, because users of a claim read it.
    """
    place = author_location(error, module)
    text = without_paths(describe_error(error)) if public else describe_error(error)
    return f"{text}{f' at {place}' if place else ''}"


def describe_raised_error(error: BaseException, module: str = "", *, public: bool = False) -> str:
    """Return the same with ``raised`` in front, for a text that begins with the name of the author's method."""
    return f"raised {describe_located_error(error, module, public=public)}"


def error_text(error: BaseException) -> str:
    """Return the message of a DraKitError, which is complete; :func:`describe_error` of any other exception."""
    return str(error) if isinstance(error, DraKitError) else describe_error(error)


def error_fields(error: BaseException, module: str = "") -> dict[str, object]:
    """Return the log fields of an exception of the author's code; ``module`` as for :func:`author_location`."""
    fields: dict[str, object] = {"error": error_text(error)}
    if isinstance(error, DraKitError):
        fields["code"] = error.code
    if place := author_location(error, module):
        fields["at"] = place
    return fields


def unexpected_exc_info(error: BaseException, module: str = "") -> ExcInfo | None:
    """Return ``exc_info`` for a log; None for a DraKitError, whose message is complete."""
    return None if isinstance(error, DraKitError) else author_exc_info(error, module)


def author_exc_info(error: BaseException, module: str = "") -> ExcInfo:
    """Return ``exc_info`` for a log, without the frames above the author's first frame; complete if there is none."""
    found = error.__traceback__
    while found is not None and not _is_authors(found.tb_frame, module):
        found = found.tb_next
    return type(error), error, found or error.__traceback__


def _is_authors(frame: FrameType, module: str) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return (bool(module) and package == module.partition(".")[0]) or not frame.f_code.co_filename.startswith(_FOREIGN)
