"""Where it is shown what happens to the driver under development: lines, or a screen."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol, TextIO

import click

from dra_kit.sandbox.sandbox import Sandbox
from dra_kit.sandbox.timeline.records import DriverLogged, Record
from dra_kit.sandbox.timeline.view.live import LiveView
from dra_kit.text import escape_unprintable

_NAMED: Final = 3  # files that are named of those that changed


class Display(Protocol):
    """A reader of the timeline that people look at."""

    def read(self, record: Record) -> None:
        """Take a record."""
        ...

    async def show(self, sandbox: Sandbox) -> None:
        """Show it, as long as there is something to show."""
        ...


class Lines:
    """The live view, with the driver's log beside it.

    Args:
        view: shows everything else.
        errors: where the driver's log goes.
    """

    def __init__(self, view: LiveView, errors: TextIO) -> None:
        self._view = view
        self._errors = errors

    def read(self, record: Record) -> None:
        """See :class:`Display`."""
        if isinstance(record, DriverLogged):
            click.echo(escape_unprintable(record.text, keep="\t"), file=self._errors)
        self._view.read(record)

    async def show(self, sandbox: Sandbox) -> None:
        """See :class:`Display`: until it is cancelled."""
        del sandbox
        await asyncio.get_running_loop().create_future()


def named(files: Sequence[Path]) -> str:
    """Return files by name, for people."""
    names = list(dict.fromkeys(path.name for path in files))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
