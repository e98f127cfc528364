"""The live view: each record as lines for the terminal."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TextIO

from dra_kit.client.resources import DEVICE_CLASSES, EVENTS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kit.kubelet.cdi.spec import SpecEdits
from dra_kit.kubernetes.release import KubernetesVersion
from dra_kit.kubernetes.resource.conversion import compares_distinct_values
from dra_kit.kubernetes.resource.objects import object_name
from dra_kit.kubernetes.scheduler.claims import EXTENDED_CLAIM_ANNOTATION
from dra_kit.kubernetes.scheduler.controllers import POD_CLAIM_ANNOTATION
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.node.claims.guard import IN_CONTAINER
from dra_kit.sandbox.cluster import USER_AGENT
from dra_kit.sandbox.containers.process_runtime import MOUNTS_VARIABLE
from dra_kit.sandbox.containers.processes import MARK_VARIABLE
from dra_kit.sandbox.containers.runtime import HookResources
from dra_kit.sandbox.drivers.roles import HANGING_SECONDS
from dra_kit.sandbox.records import (
    PREPARE,
    CallEnded,
    CallOverdue,
    CdiSpecWritten,
    ClusterCopied,
    ClusterEnding,
    ClusterStarted,
    CommandEnded,
    CommandNotReady,
    CommandOutput,
    CommandStarted,
    ContainerEnded,
    ContainerOutput,
    ContainerReference,
    ContainerStarted,
    ContainerUpdated,
    DriverEnded,
    DriverNotServing,
    DriverRefused,
    DriverServing,
    HookFailed,
    ManifestsApplied,
    ManifestsRefused,
    ObjectChanged,
    PluginConnected,
    PluginDisconnected,
    PluginRefused,
    PodDeletionExplained,
    PodScheduled,
    PodUnschedulable,
    Record,
    RecordingStarted,
    ResourceNotRecorded,
    RunReported,
    StoryBegan,
)
from dra_kit.sandbox.timeline.recording import Timeline
from dra_kit.sandbox.timeline.report import START_ERROR
from dra_kit.sandbox.views.devices import DeviceEntries, counter_lines, device_table, wrapped
from dra_kit.sandbox.views.entries import EntryPrinter, ShortNames, ViewDetail, ViewEntry, count, lines, milliseconds
from dra_kit.text import escape_unprintable

_ORIGINS: Final = {
    POD_CLAIM_ANNOTATION: " (made from a template)",
    EXTENDED_CLAIM_ANNOTATION: " (made for extended resources)",
}
"""Annotations of claims that controllers create."""
_OF_SCHEDULER: Final = frozenset({"FailedScheduling", "Scheduled"})
"""Reasons of Events about what other records say."""


class ObjectEntries:
    """Compares each object with its state before.

    Attributes:
        version: the release of the scheduler; None until it is known.
    """

    def __init__(self, names: ShortNames) -> None:
        self.version: KubernetesVersion | None = None
        self._names = names
        self._slices: dict[str, str] = {}  # what each slice offers, as last shown
        self._classes: dict[str, Any] = {}  # the spec of each
        self._pods: dict[str, tuple[str | None, bool]] = {}  # phase of each, and whether it is deleted, by UID
        self._deletions: dict[str, PodDeletionExplained] = {}  # of pods, by UID

    def read(self, record: ObjectChanged) -> Iterator[ViewEntry]:
        """Yield what is shown of a change."""
        if record.resource == PODS.full_name:
            yield from self._pod(record)
        elif record.resource == RESOURCE_CLAIMS.full_name:
            yield from self._claim(record)
        elif record.resource == RESOURCE_SLICES.full_name:
            yield from self._slice(record)
        elif record.resource == DEVICE_CLASSES.full_name:
            yield from self._class(record)
        elif record.resource == EVENTS.full_name and record.change == "ADDED":
            yield from self._event(record.object)

    def take(self, record: ObjectChanged) -> None:
        """Remember an object of a saved cluster, of which only later changes are shown."""
        metadata, spec = record.object["metadata"], record.object.get("spec", {})
        if record.resource == PODS.full_name:
            phase = record.object.get("status", {}).get("phase")
            self._pods[metadata["uid"]] = (phase, "deletionTimestamp" in metadata)
        elif record.resource == RESOURCE_SLICES.full_name:
            self._slices[metadata["name"]] = _offer(spec)
        elif record.resource == DEVICE_CLASSES.full_name:
            self._classes[metadata["name"]] = spec

    def _slice(self, record: ObjectChanged) -> Iterator[ViewEntry]:
        name, spec = record.object["metadata"]["name"], record.object["spec"]
        if self._names.drivers and spec["driver"] not in self._names.drivers:
            return
        where = f" on {spec['nodeName']}" if "nodeName" in spec else ""
        if spec["pool"]["name"] != spec.get("nodeName"):
            where += f" in pool {spec['pool']['name']}"
        if record.change == "DELETED":
            if self._slices.pop(name, None) is not None:
                yield ViewEntry(
                    f"ResourceSlice {name} is gone: its devices{where} are offered no more", colour="yellow"
                )
            return
        devices, counters = spec.get("devices") or [], spec.get("sharedCounters", [])
        content = _offer(spec)
        if self._slices.get(name) == content:
            return
        alike = next((other for other, known in self._slices.items() if known == content and other != name), None)
        now = "now " if name in self._slices else ""
        self._slices[name] = content
        if counters and not devices:
            what = f"{now}has {count(counters, 'counter set')}"
        else:
            what = f"{now}offers {count(devices, 'device')}"
        table = [f"the same as in {alike}"] if alike else [*wrapped(counter_lines(counters)), *device_table(devices)]
        yield ViewEntry(f"ResourceSlice {name}: {spec['driver']} {what}{where}", lines(table), "cyan")

    def _class(self, record: ObjectChanged) -> Iterator[ViewEntry]:
        name, spec = record.object["metadata"]["name"], record.object["spec"]
        if record.change == "DELETED":
            self._classes.pop(name, None)
            return
        before, self._classes[name] = self._classes.get(name), spec
        if spec == before:
            return
        verb = "selects" if before is None else "now selects"
        selectors = lines(map(_one_line, spec.get("selectors", []))) or (ViewDetail("all devices"),)
        yield ViewEntry(f"DeviceClass {name} {verb}", (*selectors, *self._configs_of_others(spec)), "cyan")

    def _event(self, event: ObjectView) -> Iterator[ViewEntry]:
        reason, about = str(event.get("reason") or ""), event.get("regarding") or {}
        if reason in _OF_SCHEDULER:
            return
        name = self._names.short("/".join(filter(None, (about.get("namespace"), about.get("name")))))
        reporter = event.get("reportingController") or ""
        by = f", of {reporter}" if reporter else ""
        colour = "yellow" if event.get("type") == "Warning" else ""
        details = lines(str(event.get("note") or "").splitlines())
        yield ViewEntry(f"Event {reason} about {about.get('kind', 'an object')} {name}{by}", details, colour)

    def _claim(self, record: ObjectChanged) -> Iterator[ViewEntry]:
        if record.change != "ADDED":
            return
        claim = record.object
        annotations = claim["metadata"].get("annotations") or {}
        made = next((text for name, text in _ORIGINS.items() if name in annotations), "")
        asked = claim["spec"].get("devices", {})
        details = lines(
            [*_requests(asked), *(_constraint(each, self.version) for each in asked.get("constraints", []))]
        )
        title = f"ResourceClaim {self._names.short(object_name(claim))}{made} asks for devices"
        yield ViewEntry(title, (*details, *self._configs_of_others(asked)), "cyan")

    def _configs_of_others(self, spec: Mapping[str, Any]) -> Iterator[ViewDetail]:
        """Yield opaque configs that no driver here ever sees, as they name another one."""
        if not self._names.drivers:
            return  # whichever driver there is was started by others
        own = " and ".join(self._names.drivers)
        named = (item["opaque"]["driver"] for item in spec.get("config", []) if "opaque" in item)
        for other in dict.fromkeys(name for name in named if name not in self._names.drivers):
            yield ViewDetail(f"config for driver {other}, which does not run here: {own} does not get it", "yellow")

    def _pod(self, record: ObjectChanged) -> Iterator[ViewEntry]:
        pod, uid = record.object, record.object["metadata"]["uid"]
        name = f"Pod {self._names.short(object_name(pod))}"
        if record.change == "DELETED":
            _, deleted = self._pods.pop(uid, (None, False))
            cause = self._deletion_cause(uid)
            self._deletions.pop(uid, None)
            yield ViewEntry(f"{name} is gone", () if deleted else cause)
            return
        phase, deleted = pod.get("status", {}).get("phase"), "deletionTimestamp" in pod["metadata"]
        before, self._pods[uid] = self._pods.get(uid), (phase, deleted)
        if record.change == "ADDED":
            yield ViewEntry(f"{name} is created")
        elif before is not None:
            if phase != before[0] and not deleted:
                yield ViewEntry(f"{name} is {phase}", colour="red" if phase == "Failed" else "green")
            if deleted and not before[1]:
                cause = self._deletion_cause(uid)
                yield ViewEntry(f"{name} is being deleted", cause, "yellow" if cause else "")

    def explain(self, deletion: PodDeletionExplained) -> None:
        """Show this with the deletion of the pod, which follows."""
        self._deletions[deletion.pod.uid] = deletion

    def _deletion_cause(self, uid: str) -> tuple[ViewDetail, ...]:
        """Return who deletes a pod, and why; empty if that is the sandbox, or is not known."""
        deletion = self._deletions.get(uid)
        return lines([str(deletion)]) if deletion and deletion.by not in {"", USER_AGENT} else ()

    def is_deleted(self, pod_uid: str) -> bool:
        """Return whether a pod is being deleted, or is gone."""
        return self._pods.get(pod_uid, (None, True))[1]


def _offer(spec: Mapping[str, Any]) -> str:
    """Return what a slice offers, to be compared."""
    return json.dumps([spec.get("devices") or [], spec.get("sharedCounters", [])], sort_keys=True)


def _requests(asked: Mapping[str, Any]) -> Iterator[str]:
    for request in asked.get("requests", []):
        for part in [request["exactly"]] if "exactly" in request else request.get("firstAvailable", []):
            name = request["name"] if "exactly" in request else f"{request['name']}/{part['name']}"
            wanted = "all devices" if part.get("allocationMode") == "All" else _wanted(part.get("count", 1))
            yield f"request {name}: {wanted} of class {part['deviceClassName']}"
            yield from (f"  {_one_line(selector)}" for selector in part.get("selectors", []))
            for capacity, amount in part.get("capacity", {}).get("requests", {}).items():
                yield f"  {amount} of its {capacity}"


def _one_line(selector: Mapping[str, Any]) -> str:
    return " ".join(selector["cel"]["expression"].split())


def _constraint(constraint: Mapping[str, Any], version: KubernetesVersion | None) -> str:
    of = f"devices of {', '.join(constraint['requests'])}" if constraint.get("requests") else "all devices"
    if "distinctAttribute" in constraint:
        ignores = version is not None and not compares_distinct_values(version)
        ignored = f", which Kubernetes {version} does not compare" if ignores else ""
        return f"{of} differ in {constraint['distinctAttribute']}{ignored}"
    return f"{of} have the same {constraint['matchAttribute']}"


def _wanted(number: int) -> str:
    return "a device" if number == 1 else f"{number} devices"


class LiveView:
    """Prints an entry for each record that people want to see; :meth:`read` is a reader of a timeline."""

    def __init__(self, output: TextIO | EntryPrinter) -> None:
        self._printer = output if isinstance(output, EntryPrinter) else EntryPrinter(output)
        self.names: Final = ShortNames()
        self._objects = ObjectEntries(self.names)
        self._devices = DeviceEntries(self.names)
        self._calls = CallEntries(self.names)
        self._containers = ContainerEntries(self.names)
        self.cut_off: Final = asyncio.Event()
        """Set when the reader of the output is gone."""
        self._printer.when_cut_off(self.cut_off.set)
        self._directory = Path.cwd()
        self._append: Callable[[Record], object] | None = None
        early, self._printer.early = self._printer.early, None
        self._early = early or []

    @property
    def begin(self) -> float:
        """From which its seconds are counted, by ``time.monotonic``."""
        return self._printer.begin

    def follow(self, timeline: Timeline) -> None:
        """Print the records of a timeline from now on; what the run itself prints becomes records, too."""
        for seconds, text in self._early:  # printed before
            timeline.append(RunReported(text=text), seconds)
        self._early.clear()
        timeline.subscribe(self.read)
        self._append = timeline.append

    # --- records

    def read(self, record: Record) -> None:
        """Print what is to be seen of a record."""
        self._printer.begin = time.monotonic() - record.seconds
        if isinstance(record, RunReported):
            self._report(record, record.seconds)
        elif isinstance(record, RecordingStarted) and record.directory:
            self._directory = Path(record.directory)
        if isinstance(record, RecordingStarted | ClusterStarted):
            with suppress(ValueError):  # a recording from elsewhere may name any version, or none
                self._objects.version = KubernetesVersion.parse(record.version)
        for entry in self._entries(record):
            self._print(entry, record.seconds)
        if isinstance(record, ClusterEnding):
            self._printer.closed = True  # from now on, only the cluster's shutdown is left

    def _entries(self, record: Record) -> Iterator[ViewEntry]:
        match record:
            case RecordingStarted(source="cluster", title=title, version=version):
                yield ViewEntry(f"Kubernetes {version} at {title} is recorded", bold=True)
            case ResourceNotRecorded():
                yield ViewEntry(*not_recorded(record), colour="yellow")
            case StoryBegan(story=story, namespace=namespace):
                self.names.namespace = namespace
                yield ViewEntry(f"The story: {story.replace('-', ' ')}, in namespace {namespace}", bold=True)
            case ClusterStarted(version=version, kubeconfig=kubeconfig, drivers=drivers):
                self.names.drivers = drivers
                title = f"Kubernetes {version} in one process: API server, scheduler, controllers"
                yield ViewEntry(title, (ViewDetail(f"kubectl --kubeconfig {kubeconfig} get pods"),), bold=True)
            case ClusterEnding(calls=calls) if calls:
                title = f"waiting up to {HANGING_SECONDS:.0f} s for the driver's code"
                yield ViewEntry(title, lines(calls), "yellow", bold=True)
            case ClusterCopied(source=source, version=version, summary=summary, notes=notes, kubelets=kubelets):
                self.names.kubelets = frozenset(kubelets)
                title = f"a copy of the cluster in {source}, of Kubernetes {version}: {summary}"
                yield ViewEntry(title, lines(notes), bold=True)
            case PodDeletionExplained():
                self._objects.explain(record)
            case ObjectChanged(existing=True):
                self._take_existing(record)
            case ObjectChanged():
                yield from self._objects.read(record)
                yield from self._devices.read(record)
                if record.resource == PODS.full_name and record.change == "DELETED":
                    self._calls.forget(record.object["metadata"]["uid"])
            case _:
                deleted = isinstance(record, ContainerEnded) and self._objects.is_deleted(record.container.pod.uid)
                yield from self._calls.read(record)
                yield from self._containers.read(record, deleted=deleted)
                yield from driver_entries(record, self._directory)
                yield from command_entries(record)

    def _take_existing(self, record: ObjectChanged) -> None:
        """Remember an object that was there before, of which nothing is shown but its later changes."""
        self._objects.take(record)
        for _ in self._devices.read(record):
            pass  # they show nothing either: they are as the cluster was

    # --- lines

    def entry(self, text: str, *, fg: str = "", bold: bool = False, recorded: bool = True) -> None:
        """Print a line that begins an entry; ``recorded`` is false for what no other user may know."""
        report = RunReported(text=text, colour=fg, bold=bold)
        if self._append is not None and recorded:
            self._append(report)
        else:
            self._report(report)

    def detail(self, text: str) -> None:
        """Print what belongs to the entry before: a line, or several."""
        report = RunReported(details=(text,))
        if self._append is not None:
            self._append(report)
        else:
            self._report(report)

    def details(self, texts: Iterable[str]) -> None:
        """Print several of them."""
        if found := list(texts):
            self.detail("\n".join(found))

    def _report(self, report: RunReported, seconds: float | None = None) -> None:
        if report.text:
            self._printer.entry(report.text, seconds, fg=report.colour, bold=report.bold)
        if report.details:
            self._printer.details((text, {}) for text in report.details)

    def _print(self, entry: ViewEntry, seconds: float) -> None:
        self._printer.entry(entry.text, seconds, fg=entry.colour, bold=entry.bold)
        if entry.details:
            self._printer.details((item.text, {"fg": item.colour}) for item in entry.details)


_FULL_SPECS: Final = 2  # CDI specs that are shown as a whole; the later ones look alike


class CallEntries:
    """Shows a scheduling failure once, and the first CDI specs in full."""

    def __init__(self, names: ShortNames) -> None:
        self._names = names
        self._refusals: dict[str, str] = {}  # what was shown of each pod, by UID
        self._specs = 0

    def read(self, record: Record) -> Iterator[ViewEntry]:
        """Yield what is shown of a record."""
        match record:
            case PodScheduled(pod=pod, node=node):
                devices = (
                    f"ResourceClaim {item.claim or 'of its extended resources'}, request {item.request}: {item.reason}"
                    for item in record.devices
                )
                copied = ["scheduled; the node is a copy and runs nothing"] if self._names.is_copy(node) else []
                title = f"scheduler: Pod {self._names.short(pod)} goes to {node}"
                yield ViewEntry(title, lines((*devices, *copied)), "cyan")
            case PodUnschedulable(pod=pod, message=message):
                if self._refusals.get(pod.uid) != message:
                    self._refusals[pod.uid] = message
                    title = f"scheduler: Pod {self._names.short(pod)} has to wait"
                    yield ViewEntry(title, (ViewDetail(message),), "yellow")
            case PluginConnected(node=node, driver=driver):
                yield ViewEntry(f"kubelet of {node}: driver {driver} is registered")
            case PluginRefused(node=node, error=error):
                yield ViewEntry(f"kubelet of {node}: a plugin is not registered", (ViewDetail(error),), "yellow")
            case PluginDisconnected(node=node, driver=driver):
                yield ViewEntry(f"kubelet of {node}: the connection to driver {driver} is lost", colour="yellow")
            case CallOverdue():
                title = (
                    f"kubelet of {record.node} called {record.driver}: {record.method} for "
                    f"{self._names.claims(record.claims)} is not answered after {record.waited:g} s"
                )
                yield ViewEntry(title, lines(record.running), "yellow")
            case CallEnded():
                yield self._ended(record)
            case CdiSpecWritten(file=file, spec=spec):
                self._specs += 1
                text = json.dumps(spec, indent=2).splitlines() if self._specs <= _FULL_SPECS else []
                yield ViewEntry(f"CDI spec {file}, for the container runtime", lines(text), "cyan")
            case _:
                pass

    def forget(self, pod_uid: str) -> None:
        """Forget a pod that is gone."""
        self._refusals.pop(pod_uid, None)

    def _ended(self, call: CallEnded) -> ViewEntry:
        took = milliseconds(call.duration)
        if call.error and call.method != PREPARE:
            title = f"kubelet of {call.node}: {call.driver} does not release a claim"
            return ViewEntry(title, (ViewDetail(call.error),), "red")
        title = f"kubelet of {call.node} calls {call.driver}: {call.method} for {self._names.claims(call.claims)}"
        if call.error:
            return ViewEntry(title, (ViewDetail(call.error, "red"),), "cyan")
        if call.method != PREPARE:
            return ViewEntry(title, (ViewDetail(f"done in {took}"),), "cyan")
        devices = (f"{item.device}: CDI device {', '.join(item.cdi_devices) or 'none'}" for item in call.devices)
        return ViewEntry(title, lines([f"answered in {took}", *devices]), "cyan")


# variables that the shell sets itself, and the one that is the sandbox's own
_NOT_OF_THE_POD: Final = frozenset({"PWD", "OLDPWD", "SHLVL", "_", MARK_VARIABLE})
_WIDTH: Final = 2_000  # characters of a line


class ContainerEntries:
    """Follows each container from its start to its end."""

    def __init__(self, names: ShortNames) -> None:
        self._names = names
        self._outputs: dict[str, OutputLines] = {}  # by the container's id

    def read(self, record: Record, *, deleted: bool) -> Iterator[ViewEntry]:
        """Yield the entries for a record."""
        match record:
            case ContainerStarted():
                self._outputs[record.container.id] = OutputLines(record)
                yield self._started(record)
            case ContainerUpdated(container=container, resources=resources):
                yield ViewEntry(
                    f"{self._who(container)} gets from hooks now:", lines(reported_resources(resources)), "cyan"
                )
            case HookFailed(pod=pod, container=name, message=message):
                part = f", container {name}" if name else ""
                yield ViewEntry(
                    f"Pod {self._names.short(pod)}{part} does not start: a hook failed", (ViewDetail(message),), "red"
                )
            case ContainerOutput(container=container, late=False) if container.id in self._outputs:
                if written := self._outputs[container.id].read(record):
                    yield ViewEntry(f"{self._who(container)} says", lines(written), "cyan")
            case ContainerEnded(container=container, exit=how):
                output = self._outputs.pop(container.id, None)
                if deleted:
                    yield ViewEntry(f"{self._who(container)} was stopped")
                else:
                    text = f"{self._who(container)} ended with exit code {how.code}"
                    hints = output.hints() if how.code and output else ()
                    yield ViewEntry(text, lines(hints), "red" if how.code else "")
            case _:
                pass

    def _who(self, container: ContainerReference) -> str:
        return f"Pod {self._names.short(container.pod)}, container {container.name}"

    def _started(self, record: ContainerStarted) -> ViewEntry:
        who = self._who(record.container)
        if record.exit is not None and record.exit.reason == START_ERROR:
            return ViewEntry(f"{who} cannot start", (ViewDetail(record.exit.message),), "red")
        edits, hooks = shown_edits(record)
        gets = "gets nothing from claims" if edits == SpecEdits() else "gets from its claims:"
        of_claims = (*lines(edits.env, "green"), *lines(reported_edits(edits, record)))
        others = (*reported_edits(hooks, record), *reported_resources(record.resources))
        of_hooks = (*lines(hooks.env, "green"), *lines(others))
        if record.interfaces:
            missing = "" if record.interfaces_applied else " (not applied here)"
            of_hooks = (*of_hooks, ViewDetail(f"interfaces {', '.join(record.interfaces)} of its pod{missing}"))
        if of_hooks:
            of_hooks = (ViewDetail("and from hooks:"), *of_hooks)
        return ViewEntry(f"{who} has started and {gets}", (*of_claims, *of_hooks), "cyan")


def shown_edits(record: ContainerStarted) -> tuple[SpecEdits, SpecEdits]:
    """Return what a container gets from claims and from hooks, without mounts that hooks replace and dra-kit's own."""
    hooks = record.from_hooks
    replaced = {mount.container_path for mount in hooks.mounts}
    of_claims = tuple(mount for mount in record.from_claims.mounts if mount.container_path not in replaced)
    of_hooks = tuple(mount for mount in hooks.mounts if not Path(mount.container_path).is_relative_to(IN_CONTAINER))
    return record.from_claims.model_copy(update={"mounts": of_claims}), hooks.model_copy(update={"mounts": of_hooks})


def reported_resources(resources: HookResources) -> Iterator[str]:
    """Yield the resources that hooks have set, and the sandbox does not apply."""
    if resources.cpus:
        yield f"CPUs {resources.cpus} (not applied here)"
    if resources.memory_nodes:
        yield f"memory nodes {resources.memory_nodes} (not applied here)"
    if resources.memory_limit is not None:
        yield f"memory limit {resources.memory_limit} bytes (not applied here)"
    for size, limit in resources.hugepages.items():
        yield f"hugepages of {size}: {limit} bytes (not applied here)"
    if resources.rdt_class:
        yield f"RDT class {resources.rdt_class} (not applied here)"
    for name, value in resources.unified.items():
        yield f"{name} {value} (not applied here)"


def reported_edits(edits: SpecEdits, record: ContainerStarted) -> Iterator[str]:
    """Yield what a container runtime would do, and whether the sandbox does it."""
    missing = "" if record.edits_applied else " (not applied here)"
    for mount in edits.mounts:
        yield f"mount {mount.host_path} on {mount.container_path}{missing}"
    for node in edits.device_nodes:
        stands = " (an empty file stands for it)" if node.path in record.stand_ins else missing
        yield f"device node {node.path}{stands}"
    for hook in edits.hooks:
        yield f"hook {hook.hook_name} {hook.path}{'' if record.hooks_applied else ' (not applied here)'}"
    for interface in edits.net_devices:
        yield f"interface {interface.host_interface_name} as {interface.name} (not applied here)"
    if edits.intel_rdt is not None:
        yield f"resctrl class {edits.intel_rdt.clos_id or 'of the container'} (not applied here)"
    if edits.additional_gids:
        groups = ", ".join(map(str, edits.additional_gids))
        yield f"groups {groups}{'' if record.hooks_applied else ' (not applied here)'}"


class OutputLines:
    """The output of one container as lines for people."""

    def __init__(self, started: ContainerStarted) -> None:
        self._in_line = False  # whether the line shown last is unfinished
        # the environment is known already: do not show a container that prints it
        self._known = {f"{name}={value}" for name, value in started.environment.items()}
        self._has_unmounted = MOUNTS_VARIABLE in started.environment

    def hints(self) -> Iterator[str]:
        """Yield what may have made the container fail."""
        if self._has_unmounted:
            yield f"its volumes are not mounted here; its variable {MOUNTS_VARIABLE} says where the files are"

    def read(self, output: ContainerOutput) -> list[str]:
        """Return the lines to show of it."""
        found = []
        if output.left_out:
            found.append(f"({output.left_out:,} lines left out; kubectl logs has the newest)")
            self._in_line = False
        *whole, rest = output.text.split("\n")
        for line in whole:
            if not self._in_line:
                found += self._shown(line, cut=len(line) > _WIDTH)
            self._in_line = False
        if rest and not self._in_line:
            found += self._shown(rest, cut=not output.last)
            self._in_line = True
        return found

    def _shown(self, line: str, *, cut: bool) -> Iterator[str]:
        if line not in self._known and line.partition("=")[0] not in _NOT_OF_THE_POD:
            yield f"| {escape_unprintable(line[:_WIDTH].expandtabs())}{' …' if cut else ''}"


def not_recorded(record: ResourceNotRecorded) -> tuple[str, tuple[ViewDetail, ...]]:
    """Return what to print of a resource that is not recorded: a line, and the consequence."""
    where = f" outside of namespace {record.namespace}" if record.namespace else ""
    title = f"{record.resource} are not recorded{where}: you may not list and watch them"
    return title, lines([record.consequence] if record.consequence else [])


def driver_entries(record: Record, directory: Path) -> Iterator[ViewEntry]:
    """Yield what is shown of a record; files below the directory have short names."""
    match record:
        case DriverServing(why=why, duration=duration):
            yield ViewEntry(f"{why}: the driver serves after {duration * 1000:.0f} ms", colour="green", bold=True)
        case DriverRefused(why=why, message=message, serving=serving):
            title = f"{why}: {consequence(serving=serving)}"
            yield ViewEntry(title, (ViewDetail(shortened(message, directory)),), "red", bold=True)
        case DriverEnded(how="failed", node="", message=message):  # the run reports failures on one node
            yield ViewEntry(f"the driver ended: {shortened(message, directory)}", colour="red", bold=True)
        case DriverNotServing(message="", driver=driver, calls=calls):
            yield ViewEntry(f"{'the' if driver else 'a'} driver publishes nothing yet", lines(calls), "yellow")
        case DriverNotServing(message=message):
            yield ViewEntry("the driver does not serve yet", (ViewDetail(shortened(message, directory)),), "yellow")
        case ManifestsApplied(message=message) if message:
            yield ViewEntry(f"manifests: {message}", bold=True)
        case ManifestsRefused(message=message):
            yield ViewEntry("manifests: not applied", (ViewDetail(shortened(message, directory)),), "red", bold=True)
        case _:
            pass


def command_entries(record: Record) -> Iterator[ViewEntry]:
    """Yield what is shown of a program that is a driver."""
    match record:
        case CommandStarted(process=process, command=command, attempt=0):
            yield ViewEntry(f"{process} starts", (ViewDetail(shlex.join(command)),), "cyan")
        case CommandStarted(process=process, attempt=attempt):
            yield ViewEntry(f"{process} starts again (restart {attempt})", colour="cyan")
        case CommandOutput(process=process, lines=written, left_out=left_out):
            gap = [f"({left_out:,} lines left out; dra-kit sandbox logs {process} has the newest)"] if left_out else []
            shown = (f"| {escape_unprintable(line[:_WIDTH].expandtabs())}" for line in written)
            yield ViewEntry(f"{process} says", lines((*gap, *shown)), "cyan")
        case CommandEnded(process=process, code=code, message=message, restart_after=wait):
            how = f"cannot be started: {message}" if message else f"ended with exit code {code}"
            again = "" if wait is None else f"; it is started again after {wait:g} s"
            yield ViewEntry(f"{process} {how}{again}", colour="" if wait is None else "red")
        case CommandNotReady(process=process, waited=waited, message=message, causes=causes):
            yield ViewEntry(f"{process} {message} after {waited:.0f} s", lines(causes), "yellow")
        case _:
            pass


def consequence(*, serving: bool) -> str:
    """Return what it means that new code cannot be used."""
    return "the new code cannot be used; the previous code keeps serving" if serving else "the driver cannot be used"


def shortened(text: str, directory: Path) -> str:
    """Return a text on one line, with files below a directory by their short names."""
    return " ".join(text.replace(f"{directory}{os.sep}", "").split())
