"""What the live view shows of drivers that start, are replaced and end, and of manifests that are followed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from dra_kit.sandbox.timeline.records import (
    DriverEnded,
    DriverNotServing,
    DriverRefused,
    DriverServing,
    ManifestsApplied,
    ManifestsRefused,
    Record,
)
from dra_kit.sandbox.timeline.view.entries import Detail, Entry, lines


def driver_entries(record: Record) -> Iterator[Entry]:
    """Yield what is shown of a record."""
    match record:
        case DriverServing(why=why, duration=duration):
            yield Entry(f"{why}: the driver serves after {duration * 1000:.0f} ms", colour="green", bold=True)
        case DriverRefused(why=why, message=message, serving=serving):
            title = f"{why}: {consequence(serving=serving)}"
            yield Entry(title, (Detail(shortened(message)),), "red", bold=True)
        case DriverEnded(how="failed", node="", message=message):  # that of one node ends the run, which says why
            yield Entry(f"the driver ended: {shortened(message)}", colour="red", bold=True)
        case DriverNotServing(message="", driver=driver, calls=calls):
            yield Entry(f"{'the' if driver else 'a'} driver publishes nothing yet", lines(calls), "yellow")
        case DriverNotServing(message=message):
            yield Entry("the driver does not serve yet", (Detail(shortened(message)),), "yellow")
        case ManifestsApplied(message=message) if message:
            yield Entry(f"manifests: {message}", bold=True)
        case ManifestsRefused(message=message):
            yield Entry("manifests: not applied", (Detail(shortened(message)),), "red", bold=True)
        case _:
            pass


def consequence(*, serving: bool) -> str:
    """Return what it means that new code cannot be used."""
    return "the new code cannot be used; the code before serves on" if serving else "the driver cannot be used"


def shortened(text: str) -> str:
    """Return a text on one line, with files below the working directory by their short names."""
    return " ".join(text.replace(f"{Path.cwd()}{os.sep}", "").split())
