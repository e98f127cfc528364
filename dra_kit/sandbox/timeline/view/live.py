"""The live view: what happens in the sandbox, printed while it happens, in a terminal and in a log alike.

Each line that begins an entry has the seconds since the start; what belongs to it follows indented.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TextIO

import click

from dra_kit.kube.resources import PODS
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
from dra_kit.values.printable import printable

_INDENT: Final = " " * 9


class LiveView:
    """Prints an entry for each record that people want to see; :meth:`read` is a reader of a timeline.

    Args:
        stream: to print to.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._closed = False
        self._coloured = stream.isatty()
        self._begin = time.monotonic()
        self._detailed = False
        self._names = Names()
        self._objects = ObjectEntries(self._names)
        self._calls = CallEntries(self._names)
        self._containers = ContainerEntries(self._names)
        self.cut_off: Final = asyncio.Event()
        """Set when nobody reads any more."""

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
        self._begin = time.monotonic() - record.seconds
        for entry in self._entries(record):
            self._print(entry, record.seconds)
        if isinstance(record, ClusterEnding):
            self._closed = True  # what happens from now on is that the cluster ends

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
        self._title(text, time.monotonic() - self._begin, style)

    def detail(self, text: str, **style: Any) -> None:
        """Print what belongs to the entry before: a line, or several."""
        self._details([(text, style)])

    def details(self, texts: Iterable[str]) -> None:
        """Print several of them."""
        if found := list(texts):
            self.detail("\n".join(found))

    def _details(self, details: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        self._detailed = True
        shown = (self._shown(line, style) for text, style in details for line in text.split("\n"))
        self._line("\n".join(f"{_INDENT}  {line}" for line in shown))

    def _print(self, entry: Entry, seconds: float) -> None:
        self._title(entry.text, seconds, {"fg": entry.colour, "bold": entry.bold})
        if entry.details:
            self._details((item.text, {"fg": item.colour}) for item in entry.details)

    def _title(self, text: str, seconds: float, style: Mapping[str, Any]) -> None:
        if self._detailed:
            self._line("")
        self._detailed = False
        self._line(f"{seconds:6.2f} s {self._shown(text, style)}")

    def _shown(self, text: str, style: Mapping[str, Any]) -> str:
        """Return text without control characters: names, messages and output are what others wrote."""
        text = printable(text, keep="\t")
        style = {name: value for name, value in style.items() if value}
        return click.style(text, **style) if self._coloured and style else text

    def _line(self, text: str) -> None:
        if self._closed:
            return
        try:
            print(text, file=self._stream, flush=True)
        except BrokenPipeError:
            self._closed = True
            self.cut_off.set()
