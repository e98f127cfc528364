"""Who tells what happens to the driver under development: lines, or a screen."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol, TextIO

import click

from dra_kit.sandbox.sandbox import Sandbox, SandboxObserver
from dra_kit.sandbox.timeline.live import LiveView
from dra_kit.values.printable import printable

_TARGET: Final = re.compile(r"^TARGET \S+ does not import: ")
_NAMED: Final = 3  # files that are named of those that changed


class Teller(Protocol):
    """Is told, beside what :class:`SandboxObserver` is told."""

    @property
    def observers(self) -> Sequence[SandboxObserver]:
        """Those of the cluster."""
        ...

    def log(self, line: str) -> None:
        """The driver logged or printed a line."""
        ...

    def replacing(self, why: str) -> None:
        """The driver is started, or replaced, because of something."""
        ...

    def serving(self, why: str, seconds: float) -> None:
        """The driver has been started, or replaced, because of something; it took so long until it served."""
        ...

    def refused(self, why: str, text: str, *, serving: bool) -> None:
        """The new code cannot be used.

        Args:
            why: it was started.
            text: what is wrong with it.
            serving: the code before goes on.
        """
        ...

    def ended(self, text: str) -> None:
        """The driver ended by itself."""
        ...

    def waiting(self, text: str) -> None:
        """The driver does not come up, for now."""
        ...

    def applied(self, text: str) -> None:
        """Manifests were applied: what was done; empty when everything was as they say."""
        ...

    def not_applied(self, text: str) -> None:
        """Manifests could not be applied: why."""
        ...

    async def show(self, sandbox: Sandbox) -> None:
        """Show it, as long as there is something to show."""
        ...


class Lines:
    """A line for each, among those of :class:`LiveView`.

    Args:
        view: tells what happens in the cluster.
        errors: where the driver's log goes.
    """

    def __init__(self, view: LiveView, errors: TextIO) -> None:
        self._view = view
        self._errors = errors

    @property
    def observers(self) -> Sequence[SandboxObserver]:
        """See :class:`Teller`."""
        return (self._view,)

    def log(self, line: str) -> None:
        """See :class:`Teller`."""
        click.echo(printable(line, keep="\t"), file=self._errors)

    def replacing(self, why: str) -> None:
        """See :class:`Teller`: that is soon over."""

    def serving(self, why: str, seconds: float) -> None:
        """See :class:`Teller`."""
        self._view.entry(f"{why}: the driver serves after {seconds * 1000:.0f} ms", bold=True, fg="green")

    def refused(self, why: str, text: str, *, serving: bool) -> None:
        """See :class:`Teller`."""
        self._view.entry(f"{why}: {consequence(serving=serving)}", bold=True, fg="red")
        self._view.detail(shortened(text))

    def ended(self, text: str) -> None:
        """See :class:`Teller`."""
        self._view.entry(f"the driver ended: {shortened(text)}", bold=True, fg="red")

    def waiting(self, text: str) -> None:
        """See :class:`Teller`."""
        self._view.entry("the driver does not serve yet", fg="yellow")
        self._view.detail(shortened(text))

    def applied(self, text: str) -> None:
        """See :class:`Teller`."""
        if text:
            self._view.entry(f"manifests: {text}", bold=True)

    def not_applied(self, text: str) -> None:
        """See :class:`Teller`."""
        self._view.entry("manifests: not applied", bold=True, fg="red")
        self._view.detail(shortened(text))

    async def show(self, sandbox: Sandbox) -> None:
        """See :class:`Teller`."""
        del sandbox
        while True:
            self._view.flush()
            await asyncio.sleep(0.05)


def consequence(*, serving: bool) -> str:
    """What it means that new code cannot be used."""
    return "the new code cannot be used; the code before serves on" if serving else "the driver cannot be used"


def shortened(text: str) -> str:
    """A text on one line, with files below the working directory by their short names, and without the only TARGET."""
    return _TARGET.sub("", " ".join(text.replace(f"{Path.cwd()}{os.sep}", "").split()))


def named(files: Sequence[Path]) -> str:
    """Files by name, for people."""
    names = list(dict.fromkeys(path.name for path in files))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
