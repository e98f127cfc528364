"""``dra-kit replay``."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from msgspec.structs import replace

from dra_kit.cli.app import CUT_OFF
from dra_kit.cli.options import Seconds, path
from dra_kit.client.resources import PODS
from dra_kit.errors import ConfigurationError, DraKitError
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.release import FeatureGates
from dra_kit.kubernetes.resource.objects import object_key, object_name, phase, pod_claims
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.dev.panes import CallHistory, ClaimEdits, Pane, claims_pane, devices_pane, pods_pane
from dra_kit.sandbox.page.history import PageHistory
from dra_kit.sandbox.page.server import PageServer
from dra_kit.sandbox.records import ObjectChanged, PodScheduled, PodUnschedulable, Record, object_uid
from dra_kit.sandbox.timeline.recording import Recording
from dra_kit.sandbox.views.live import LiveView
from dra_kit.text import counted, escape_unprintable

_INVALID: Final = (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError)
"""What views raise for an object that no API server would have stored: a file may contain anything."""
_LONGEST_WAIT: Final = 86_400.0  # seconds
_ROWS: Final = 200
_EXPLANATIONS: Final = 20
_AT_ONCE: Final = 500  # records


@click.command
@click.argument("file", type=path(exists=True, dir_okay=False))
@click.option(
    "--speed", type=click.FloatRange(0.01, 1e6), metavar="FACTOR", help="play at this speed  [default: at once]"
)
@click.option("--until", type=Seconds(), metavar="TIME", help="stop at this time, such as +12.5s")
@click.option(
    "--at", "moment", type=Seconds(), metavar="TIME", help="show devices, claims and pods at this time instead"
)
@click.option("--ui", is_flag=True, help="serve the page of the sandbox, which plays the recording")
@click.option(
    "--ui-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="port of the page; implies --ui  [default: a free one]",
)
@click.pass_context
def replay(ctx: click.Context, /, file: Path, **options: Any) -> None:
    """Print a recorded run again, or show the state of its cluster at any moment.

    FILE was written by 'dra-kit sandbox --record' or 'dra-kit snapshot --follow'. A run is printed as the sandbox
    printed it. Times are in seconds since the recording began, as printed at the beginning of each line. --at prints
    tables of devices, claims and pods, and explains the pods that were pending.

    A recording that ends in the middle, because it was interrupted, is played up to its end. Corrupt and unknown
    records are skipped and counted.

    Exit code 0: the recording is shown; 2: FILE is not a recording, or has a newer format.

    \b
      dra-kit replay run.jsonl
      dra-kit replay run.jsonl --speed 2 --until +30s
      dra-kit replay run.jsonl --at +12.5s
      dra-kit replay run.jsonl --ui
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    ui = options["ui"] or options["ui_port"] is not None
    chosen = [f"--{name}" for name in ("speed", "until") if options[name] is not None]
    chosen += ["--at"] if options["moment"] is not None else []
    if ui and chosen:
        raise click.UsageError(f"--ui cannot be combined with {chosen[0]}: the page has its own controls.")
    if options["moment"] is not None and len(chosen) > 1:
        raise click.UsageError(f"--at cannot be combined with {chosen[0]}.")
    recording = Recording(file)
    if ui:
        asyncio.run(_serve(recording, file, options["ui_port"] or 0))
    elif options["moment"] is not None:
        _show_moment(recording, file, options["moment"])
    elif not _play(recording, options["speed"], options["until"]):
        ctx.exit(CUT_OFF)
    _show_problems(recording, file)


def _show_problems(recording: Recording, file: Path) -> None:
    for problem in recording.problems:
        click.echo(escape_unprintable(f"{file}: {problem}"), err=True)


def _play(recording: Recording, speed: float | None, until: float | None) -> bool:
    """Print the records, and return whether the reader of the output is still there."""
    view, begin, now = LiveView(sys.stdout), time.monotonic(), 0.0
    for record in recording.records():
        if until is not None and record.seconds > until:
            break
        if speed is not None and record.seconds > now:
            now = record.seconds
            time.sleep(min(max(begin + now / speed - time.monotonic(), 0.0), _LONGEST_WAIT))
        try:
            view.read(record)
        except _INVALID as error:
            recording.rejected(record, _problem(error))
        if view.cut_off.is_set():
            # writing the remaining buffer when the process exits would fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return False
    return True


def _problem(error: Exception) -> str:
    return f"its object is not one that an API server stores ({type(error).__name__}: {error})"


# --- the page


async def _serve(recording: Recording, file: Path, port: int) -> None:
    """Serve the page until the process is interrupted."""
    history, interrupted = PageHistory(_gates(recording)), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    async with PageServer(history, port=port, mode="replay", title=file.name) as server:
        for count, _ in enumerate(_fill(history, recording, None)):
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)
                if interrupted.is_set():
                    return
        history.close()
        _show_problems(recording, file)
        click.echo(f"page: {server.url}")
        click.echo("it is served until Ctrl-C")
        await interrupted.wait()


def _fill(history: PageHistory, recording: Recording, until: float | None) -> Iterator[Record]:
    """Yield the records up to a time, after a history has read each of them."""
    for record in recording.records():
        if until is not None and record.seconds > until:
            return
        # a history finds records by number
        numbered = record if record.number > history.last else replace(record, number=history.last + 1)
        try:
            history.read(numbered)
        except _INVALID as error:
            recording.rejected(record, _problem(error))
        else:
            yield numbered


def _gates(recording: Recording) -> FeatureGates | AllocatorRules | None:
    """Return the gates of the recorded cluster; None for the default ones.

    Raises:
        ConfigurationError: they are not known for its release.
    """
    header = recording.header
    if header is None:
        return None
    if header.gates or header.source == "sandbox":
        return FeatureGates(frozenset(header.gates))
    try:
        return AllocatorRules.of(header.version.removeprefix("v"))
    except ValueError as error:
        raise ConfigurationError(f"the recorded cluster: {error}") from None


# --- the state at a moment


def _show_moment(recording: Recording, file: Path, moment: float) -> None:
    history, calls, got = PageHistory(_gates(recording)), CallHistory(), ClaimEdits()
    waiting: dict[str, str] = {}  # messages of the scheduler, by UID of the pod
    last: Record | None = None
    for record in _fill(history, recording, moment):
        last = record
        try:
            calls.read(record)
            got.read(record)
        except _INVALID as error:
            recording.rejected(record, _problem(error))
        match record:
            case PodUnschedulable(pod=pod, message=message):
                waiting[pod.uid] = message
            case PodScheduled(pod=pod):
                waiting.pop(pod.uid, None)
            case ObjectChanged(change="DELETED", resource=PODS.full_name, object=obj):
                waiting.pop(object_uid(obj), None)
            case _:
                pass
    if last is None:
        raise ConfigurationError(f"--at +{moment:g}s: {file} has no record up to this time; use a later time")
    click.echo(f"+{moment:g} s: record {last.number}, {last.at:%Y-%m-%d %H:%M:%S.%f} UTC")
    try:
        panes = _panes(history.objects(history.last), calls, got, waiting)
    except _INVALID as error:
        raise ConfigurationError(f"{file}: an object at +{moment:g}s is invalid: {error}") from None
    for pane in panes:
        _show_pane(pane)
    _explain(history)


def _panes(
    objects: Mapping[str, Sequence[ObjectView]], calls: CallHistory, got: ClaimEdits, waiting: Mapping[str, str]
) -> list[Pane]:
    slices, claims, rules = objects["ResourceSlice"], objects["ResourceClaim"], objects["DeviceTaintRule"]
    drivers = sorted({item["spec"]["driver"] for item in slices})
    devices = [devices_pane(driver, slices, claims, rules) for driver in drivers or [""]]
    named = [
        Pane(f"{pane.title} of {driver}" if driver else pane.title, pane.rows, pane.summary)
        for driver, pane in zip(drivers or [""], devices, strict=True)
    ]
    reasons = {
        (object_key(pod)[0], item.claim): waiting.get(object_uid(pod), "")
        for pod in objects["Pod"]
        if phase(pod) == "Pending"
        for item in pod_claims(pod)
        if item.claim
    }
    return [
        *named,
        claims_pane(claims, reasons, calls.prepared),
        pods_pane(objects["Pod"], got.by_uid, waiting, hint="none"),
    ]


def _show_pane(pane: Pane) -> None:
    click.echo()
    click.secho(escape_unprintable(f"{pane.title}  {pane.summary}".rstrip()), bold=True)
    shown = pane.rows[:_ROWS]
    widths = [
        max((len(row.cells[column]) for row in shown if len(row.cells) > column + 1), default=0)
        for column in range(max((len(row.cells) for row in shown), default=0))
    ]
    for row in shown:
        *cells, rest = (escape_unprintable(cell, keep="") for cell in row.cells)
        text = "".join(f"{cell:<{width}}  " for cell, width in zip(cells, widths, strict=False))
        click.echo(f"  {text}{rest}".rstrip())
    if len(pane.rows) > _ROWS:
        click.echo(f"  … and {len(pane.rows) - _ROWS} more")


def _explain(history: PageHistory) -> None:
    """Explain the pods that were pending."""
    pending = [pod for pod in history.objects(history.last)["Pod"] if phase(pod) == "Pending"]
    for pod in pending[:_EXPLANATIONS]:
        explanation = history.explanation(object_uid(pod), history.last)
        try:
            text = str(explanation()) if explanation is not None else ""
        except (DraKitError, *_INVALID) as error:
            text = f"Pod {object_name(pod)} cannot be explained: {error}"
        click.echo()
        click.echo(text)
    if len(pending) > _EXPLANATIONS:
        more = counted(len(pending) - _EXPLANATIONS, "more pending pod")
        click.echo(f"\n… and {more}; the page of --ui explains each")
