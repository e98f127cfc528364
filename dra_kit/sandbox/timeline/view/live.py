"""The live view: what happens in the sandbox, printed while it happens, in a terminal and in a log alike."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, TextIO

from dra_kit.client.resources import PODS
from dra_kit.sandbox.driver.roles.role_thread import HANGING_SECONDS
from dra_kit.sandbox.timeline.records import (
    ClusterEnding,
    ClusterStarted,
    ContainerEnded,
    ObjectChanged,
    Record,
)
from dra_kit.sandbox.timeline.view.call_entries import CallEntries
from dra_kit.sandbox.timeline.view.container_entries import ContainerEntries
from dra_kit.sandbox.timeline.view.driver_entries import driver_entries
from dra_kit.sandbox.timeline.view.entries import Detail, Entry, Names, lines
from dra_kit.sandbox.timeline.view.object_entries import ObjectEntries
from dra_kit.sandbox.timeline.view.printer import EntryPrinter


class LiveView:
    """Prints an entry for each record that people want to see; :meth:`read` is a reader of a timeline.

    Args:
        output: a stream, or what has printed to it so far.
    """

    def __init__(self, output: TextIO | EntryPrinter) -> None:
        self._printer = output if isinstance(output, EntryPrinter) else EntryPrinter(output)
        self._names = Names()
        self._objects = ObjectEntries(self._names)
        self._calls = CallEntries(self._names)
        self._containers = ContainerEntries(self._names)
        self.cut_off: Final = asyncio.Event()
        """Set when nobody reads any more."""
        self._printer.when_cut_off(self.cut_off.set)

    @property
    def begin(self) -> float:
        """From which its seconds are counted, by ``time.monotonic``."""
        return self._printer.begin

    @property
    def namespace(self) -> str:
        """Names of objects in this namespace are shown without it."""
        return self._names.namespace

    @namespace.setter
    def namespace(self, namespace: str) -> None:
        self._names.namespace = namespace

    def name(self, name: str) -> str:
        """Return ``namespace/name`` as it is shown."""
        return self._names.short(name)

    # --- records

    def read(self, record: Record) -> None:
        """Print what is to be seen of a record."""
        self._printer.begin = time.monotonic() - record.seconds
        for entry in self._entries(record):
            self._print(entry, record.seconds)
        if isinstance(record, ClusterEnding):
            self._printer.closed = True  # what happens from now on is that the cluster ends

    def _entries(self, record: Record) -> Iterator[Entry]:
        match record:
            case ClusterStarted(version=version, kubeconfig=kubeconfig, drivers=drivers):
                self._names.drivers = drivers
                title = f"Kubernetes {version} in one process: API server, scheduler, controllers"
                yield Entry(title, (Detail(f"kubectl --kubeconfig {kubeconfig} get pods"),), bold=True)
            case ClusterEnding(calls=calls) if calls:
                title = f"waiting up to {HANGING_SECONDS:.0f} s for the driver's code"
                yield Entry(title, lines(calls), "yellow", bold=True)
            case ObjectChanged():
                yield from self._objects.read(record)
                if record.resource == PODS.full_name and record.change == "DELETED":
                    self._calls.forget(record.object["metadata"]["uid"])
            case _:
                deleted = isinstance(record, ContainerEnded) and self._objects.is_deleted(record.container.pod.uid)
                yield from self._calls.read(record)
                yield from self._containers.read(record, deleted=deleted)
                yield from driver_entries(record)

    # --- lines

    def entry(self, text: str, **style: Any) -> None:
        """Print a line that begins an entry."""
        self._printer.entry(text, **style)

    def detail(self, text: str, **style: Any) -> None:
        """Print what belongs to the entry before: a line, or several."""
        self._printer.details([(text, style)])

    def details(self, texts: Iterable[str]) -> None:
        """Print several of them."""
        if found := list(texts):
            self.detail("\n".join(found))

    def _print(self, entry: Entry, seconds: float) -> None:
        self._printer.entry(entry.text, seconds, fg=entry.colour, bold=entry.bold)
        if entry.details:
            self._printer.details((item.text, {"fg": item.colour}) for item in entry.details)
