"""Runs coroutines in a thread, so that tests can call them as plain functions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Self, TypeVar

from dra_kit.errors import DraKitError, InternalError

R = TypeVar("R")
C = TypeVar("C")
__tracebackhide__ = True  # pytest shows the test's own line instead


class Background:
    """An event loop in a thread; a context manager that runs it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dra-kit testing", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in the background loop, and return its result or raise its error; an interrupt cancels it.

        Errors with a complete message are raised without the traceback of the background thread, which would not help.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except InternalError:
            raise
        except (DraKitError, AssertionError) as error:
            raise error.with_traceback(None) from None
        except BaseException:
            future.cancel()
            raise

    def iterate(self, source: AsyncIterator[R]) -> Iterator[R]:
        """Yield what an asynchronous iterator yields in the background loop, one by one."""
        while True:
            try:
                yield self.call(_next(source))
            except StopAsyncIteration:
                return

    @contextmanager
    def entered(self, manager: AbstractAsyncContextManager[C]) -> Iterator[C]:
        """Enter an asynchronous context manager in the background loop for the duration of the block."""
        value = self.call(manager.__aenter__())
        try:
            yield value
        finally:
            self.call(manager.__aexit__(None, None, None))


async def _next(source: AsyncIterator[R]) -> R:
    return await anext(source)
