"""The startup of the author's code that runs in the controller."""

from __future__ import annotations

import asyncio
from typing import Any

from dra_kit.author.calling import call
from dra_kit.author.driver import Driver
from dra_kit.controller.context import ControllerContext
from dra_kit.errors import ConfigurationError, DraKitError
from dra_kit.process.tracebacks import raised


class Startup:
    """A part of the controller, in every replica; one whose startup has not returned does not become the active one.

    Args:
        driver: whose provider, binder and taint rules are started.
        context: what they are given.
        ending: set when the process is asked to end.
    """

    name = "startup"

    def __init__(self, driver: Driver[Any, Any], context: ControllerContext, ending: asyncio.Event) -> None:
        self._driver = driver
        self._context = context
        self._ending = ending

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready when all of it has returned.

        Raises:
            ConfigurationError: one of them raised.
        """
        relay = asyncio.create_task(self._relay_ending())
        try:
            for part in self._driver.controller_bound:
                part.context = self._context
                await self._start(part)
            ready.set()
            await asyncio.Event().wait()
        finally:
            relay.cancel()
            self._context.stopping.set()

    async def _relay_ending(self) -> None:
        """Set ``context.stopping`` at once, however long running parts take to stop."""
        await self._ending.wait()
        self._context.stopping.set()

    async def _start(self, part: Any) -> None:
        try:
            await call(part.startup, self._context)
        except DraKitError:
            raise
        except Exception as error:  # the author's code may raise anything
            text = raised(error, type(part).__module__)
            raise ConfigurationError(f"{type(part).__name__}.startup {text}; correct it") from error
