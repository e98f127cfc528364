"""``dra-kit replay`` and ``dra-kit snapshot``."""

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

from dra_kit import __version__
from dra_kit.cli.app import CUT_OFF
from dra_kit.cli.options import Bytes, NewFile, Seconds, credentials_of, path, source_options
from dra_kit.client.api import Client
from dra_kit.client.resources import PODS
from dra_kit.diagnosis.explain.cluster import COPY_KINDS, KINDS, ClusterDocuments
from dra_kit.diagnosis.live_cluster import ReadScope, read_live
from dra_kit.diagnosis.snapshot import check_destination, save
from dra_kit.errors import ConfigurationError, DraKitError
from dra_kit.kubernetes.release import UNMODIFIED, KubernetesVersion, Release
from dra_kit.kubernetes.resource.objects import object_key, object_name, phase, pod_claims
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.dev.panes import CallHistory, ClaimEdits, Pane, claims_pane, devices_pane, pods_pane
from dra_kit.sandbox.page.history import PageHistory
from dra_kit.sandbox.page.server import PageServer
from dra_kit.sandbox.records import (
    ObjectChanged,
    PodScheduled,
    PodUnschedulable,
    Record,
    ResourceNotRecorded,
    RunReported,
    object_uid,
)
from dra_kit.sandbox.timeline.follow import ClusterRecorder, RecordingEnd
from dra_kit.sandbox.timeline.recording import RecordFile, Recording
from dra_kit.sandbox.views.live import LiveView, not_recorded
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
    history, interrupted = PageHistory(_gates(recording)), _interruption()
    async with PageServer(history, port=port, mode="replay", title=file.name) as server:
        for count, _ in enumerate(_fill(history, recording, None)):
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)
                if interrupted.is_set():
                    return
        history.close()
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


def _gates(recording: Recording) -> Release:
    """Return the release and gates of the recorded cluster; the default if it is not recorded.

    Raises:
        ConfigurationError: the release is not known.
    """
    header = recording.header
    if header is None:
        return UNMODIFIED
    try:
        return Release(KubernetesVersion.parse(header.version), frozenset(header.gates))
    except ValueError as error:
        raise ConfigurationError(
            f"nothing can be explained: the recording is of no known release: {error}; without --at and --ui it can be "
            "played"
        ) from None


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


# --- recording a cluster


@click.command
@click.argument("destination", metavar="[PATH]", type=path(), required=False)
@source_options
@click.option("--alpha", is_flag=True, help="record that the cluster's alpha features of resource.k8s.io are on")
@click.option("--all-events", is_flag=True, help="save or record Events of all namespaces, not only of --namespace")
@click.option("--follow", is_flag=True, help="record all changes into the file of -o, until Ctrl-C")
@click.option("-o", "--output", type=NewFile(), metavar="FILE", help="with --follow: the file, for 'dra-kit replay'")
@click.option(
    "--for", "seconds", type=Seconds(), metavar="TIME", help="with --follow: stop after this time, such as 10m"
)
@click.option(
    "--max-size",
    type=Bytes(1 << 20),
    metavar="SIZE",
    help="with --follow: limit of the file; older changes make room  [default: 100MiB]",
)
@click.pass_context
def snapshot(ctx: click.Context, /, destination: Path | None, **options: Any) -> None:
    """Save the objects that 'dra-kit explain --from PATH' reads, so that another person can analyze them.

    PATH is a directory, or an archive if it ends in .tar.gz or .tgz. The command saves ResourceSlices, DeviceClasses,
    DeviceTaintRules, claims and their templates; labels, taints and allocatable resources of nodes; requests and
    conditions of pods, why containers do not run, and mounted folders of kubelet plugins, but no commands, environments
    or images; Events of the namespace, or of all namespaces with --all-events; labels of namespaces, ResourceQuotas and
    PodGroups, for 'dra-kit sandbox --from PATH'. It saves no Secrets and no ConfigMaps.
    Opaque configuration of claims and classes is saved unchanged. Only you can read the files.

    With --follow, the command records how these objects change, for 'dra-kit replay'. Opaque configuration is removed,
    as in a support bundle. Resources that you may not list and watch in all namespaces are
    recorded for --namespace, or not at all, which is printed.

    Exit code 0: everything is saved; 1: the recording stopped early, because the disk or the file is full, or the
    cluster does not answer; 2: the destination or the credentials are invalid.

    \b
      dra-kit snapshot cluster.tar.gz
      dra-kit explain claim lunch --from cluster.tar.gz
      dra-kit snapshot --follow --for 10m -o cluster.jsonl
      dra-kit replay cluster.jsonl --ui
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    given = [f"--{name}" for name in ("output", "for", "max-size") if options[_PARAMETERS[name]] is not None]
    if not options["follow"]:
        if given:
            raise click.UsageError(f"{given[0]} requires --follow.")
        if destination is None:
            raise click.UsageError("Missing argument 'PATH': where to save the objects.")
        _save(destination, options)
        return
    if options["output"] is None:
        raise click.UsageError("--follow requires -o FILE: where to record the changes.")
    if destination is not None:
        raise click.UsageError("--follow cannot be combined with PATH; it writes the file of -o.")
    end = asyncio.run(_follow(options))
    if not end.records and not end.problem:
        click.echo("nothing is recorded: the cluster had not answered", err=True)
        return
    click.echo(f"{counted(end.records, 'record')} in {options['output']}")
    if end.problem:
        click.echo(
            f"the recording stopped early: {options['output']}: {end.problem}; free some space, or use a larger "
            "--max-size; what is recorded can be played",
            err=True,
        )
        ctx.exit(1)


_PARAMETERS: Final = {"output": "output", "for": "seconds", "max-size": "max_size"}
_MAX_SIZE: Final = 100 << 20


def _save(destination: Path, options: Mapping[str, Any]) -> None:
    async def read() -> ClusterDocuments:
        credentials = await credentials_of(options["kubeconfig"], options["context"])
        of = options["namespace"] or credentials.connection.namespace or "default"
        scope = ReadScope(of, kinds=(*KINDS, *COPY_KINDS), all_events=options["all_events"])
        return await read_live(credentials, scope, alpha=options["alpha"])

    check_destination(destination)
    objects = asyncio.run(read())
    count = save(objects, destination)
    click.echo(f"{count} objects saved in {destination}")
    for gap in objects.gaps:
        click.echo(escape_unprintable(f"{gap.text}: {gap.consequence}"), err=True)


async def _follow(options: Mapping[str, Any]) -> RecordingEnd:
    def report(missing: ResourceNotRecorded | RunReported) -> None:
        if isinstance(missing, RunReported):
            parts = [missing.text]
        else:
            title, details = not_recorded(missing)
            parts = [title, *(item.text for item in details)]
        click.echo(escape_unprintable(": ".join(parts)), err=True)

    def open_file() -> RecordFile:
        try:
            file = RecordFile(output, options["max_size"] or _MAX_SIZE, fixed=True)
        except OSError as error:
            raise ConfigurationError(f"-o {output} cannot be written: {error.strerror}; use another path") from None
        until = "until Ctrl-C" if options["seconds"] is None else f"for {options['seconds']:g} s, or until Ctrl-C"
        click.echo(f"recording in {output} {until}")
        return file

    credentials = await credentials_of(options["kubeconfig"], options["context"])
    connection, output, interrupted = credentials.connection, options["output"], _interruption()
    async with Client(credentials, user_agent=f"dra-kit/{__version__} snapshot", timeout=60) as client:
        namespace = options["namespace"] or connection.namespace or "default"
        recorder = ClusterRecorder(
            client,
            open_file,
            namespace=namespace,
            all_events=options["all_events"],
            alpha=options["alpha"],
            report=report,
        )
        return await recorder.run(options["seconds"], interrupted, server=connection.server)


def _interruption() -> asyncio.Event:
    """Return an event that is set when the process is interrupted or terminated."""
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    return interrupted
