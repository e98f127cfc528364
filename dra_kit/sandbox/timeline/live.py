"""The live view: what happens in the sandbox, told while it happens, in a terminal and in a log alike.

Each line that begins an entry has the seconds since the start; what belongs to it follows indented.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

import click

from dra_kit.cdi.spec import ContainerEdits
from dra_kit.kube.informer import Change
from dra_kit.kube.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kit.resource.reference import ClaimReference
from dra_kit.sandbox.cluster.kubelet.activity import (
    Activity,
    ClaimsPrepared,
    ClaimsReleased,
    ContainerEnded,
    ContainerStarted,
    PluginCalled,
    PluginConnection,
)
from dra_kit.sandbox.cluster.slow_calls import PATIENCE, SlowCalls
from dra_kit.sandbox.driver.roles import HANGING_SECONDS
from dra_kit.sandbox.sandbox import Sandbox, SandboxObserver
from dra_kit.sandbox.timeline.recorder import START_ERROR
from dra_kit.sandbox.timeline.tables import counter_lines, device_table
from dra_kit.sandbox.timeline.told_output import ToldOutputs
from dra_kit.scheduler.decision import Decision
from dra_kit.scheduler.pods import shown
from dra_kit.values.printable import printable

_INDENT = " " * 9
_FULL_SPECS = 2  # CDI specs that are printed as a whole; the later ones look alike


class LiveView(SandboxObserver):
    """Prints as it is told.

    Args:
        stream: to print to.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._closed = False
        self._coloured = stream.isatty()
        self._begin = time.monotonic()
        self._sandbox: Sandbox | None = None
        self._slices: dict[str, str] = {}  # what each slice offers, as it was told
        self._refusals: dict[str, str] = {}  # what was told of each pod, by UID
        self._specs = 0
        self._outputs = ToldOutputs()  # of the containers whose start was told
        self._slow_calls = SlowCalls()
        self._detailed = False
        self.namespace = "default"
        """Names of objects in this namespace are told without it."""
        self.cut_off: Final = asyncio.Event()
        """Set when nobody reads any more."""

    # --- what happens

    def started(self, sandbox: Sandbox) -> None:
        """API server, controllers and scheduler run."""
        self._sandbox = sandbox
        self.entry("Kubernetes v1.37.1 in one process: API server, scheduler, controllers", bold=True)
        self.detail(f"kubectl --kubeconfig {sandbox.kubeconfig} get pods")
        sandbox.informers.listen(DEVICE_CLASSES, self._class_changed)
        sandbox.informers.listen(RESOURCE_SLICES, self._slice_changed)
        sandbox.informers.listen(RESOURCE_CLAIMS, self._claim_changed)
        sandbox.informers.listen(PODS, self._pod_changed)

    def decided(self, decision: Decision) -> None:
        """The scheduler decided about a pod."""
        pod, refusal, placement = decision.pod, decision.refusal, decision.placement
        uid = pod["metadata"]["uid"]
        if refusal is not None:
            if self._refusals.get(uid) != refusal.message:
                self._refusals[uid] = refusal.message
                self.entry(f"scheduler: Pod {self.name(shown(pod))} has to wait", fg="yellow")
                self.detail(refusal.message)
        elif placement is not None:
            self.entry(f"scheduler: Pod {self.name(shown(pod))} goes to {placement.node}", fg="cyan")
            for claim, choice in decision.choices:
                name = claim["metadata"].get("name") or "of its extended resources"
                self.detail(f"ResourceClaim {name}, request {choice.request}: {choice}")

    def acted(self, node: str, activity: Activity) -> None:
        """A kubelet did something."""
        match activity:
            case PluginConnection(driver=driver, connected=True):
                self.entry(f"kubelet of {node}: driver {driver} is registered")
            case PluginConnection(driver=driver):
                self.entry(f"kubelet of {node}: the connection to driver {driver} is lost", fg="yellow")
            case PluginCalled():
                self._slow_calls.begun(node, activity)
            case ClaimsPrepared():
                self._slow_calls.ended(node, activity)
                self._prepared(node, activity)
            case ClaimsReleased():
                self._slow_calls.ended(node, activity)
                self._released(node, activity)
            case ContainerStarted():
                self._container_started(activity)
            case ContainerEnded():
                self._container_ended(activity)
            case _:
                pass

    def waiting(self, calls: Sequence[str]) -> None:
        """The driver has published nothing for a while."""
        several = self._sandbox is not None and len(self._sandbox.drivers) > 1
        self.entry(f"{'a' if several else 'the'} driver publishes nothing yet", fg="yellow")
        self.details(calls)

    def ending(self, calls: Sequence[str]) -> None:
        """Tell nothing more but what is waited for: what happens from now on is that the cluster ends."""
        self.flush()
        if calls:
            self.entry(f"waiting up to {HANGING_SECONDS:.0f} s for the driver's code", bold=True, fg="yellow")
            self.details(calls)
        self._closed = True

    def flush(self) -> None:
        """Tell what containers wrote since the last time, and of calls that are not answered."""
        for name, call in self._slow_calls.overdue():
            self._unanswered(name, call)
        for report, lines in self._outputs.news(time.monotonic()):
            config = report.config
            self.entry(f"Pod {self.name(str(config.pod))}, container {config.name} says", fg="cyan")
            self.details(lines)

    # --- the entries

    def _slice_changed(self, change: Change) -> None:
        item = change.object
        name, spec = item["metadata"]["name"], item["spec"]
        if self._sandbox is None or (self._sandbox.drivers and spec["driver"] not in self._sandbox.drivers):
            return
        where = f" on {spec['nodeName']}" if "nodeName" in spec else ""
        if spec["pool"]["name"] != spec.get("nodeName"):
            where += f" in pool {spec['pool']['name']}"
        if change.type == "DELETED":
            if self._slices.pop(name, None) is not None:
                self.entry(f"ResourceSlice {name} is gone: its devices{where} are offered no more", fg="yellow")
            return
        devices, counters = spec.get("devices", []), spec.get("sharedCounters", [])
        content = json.dumps([devices, counters], sort_keys=True)
        if self._slices.get(name) == content:
            return
        alike = next((other for other, known in self._slices.items() if known == content and other != name), None)
        now = "now " if name in self._slices else ""
        self._slices[name] = content
        if counters and not devices:
            what = f"{now}has {_count(counters, 'counter set')}"
        else:
            what = f"{now}offers {_count(devices, 'device')}"
        self.entry(f"ResourceSlice {name}: {spec['driver']} {what}{where}", fg="cyan")
        if alike:
            self.detail(f"the same as in {alike}")
        else:
            self.details([*counter_lines(counters), *device_table(devices)])

    def _class_changed(self, change: Change) -> None:
        spec, before = change.object["spec"], change.previous["spec"] if change.previous else None
        if change.type == "DELETED" or spec == before:
            return
        verb = "selects" if before is None else "now selects"
        self.entry(f"DeviceClass {change.object['metadata']['name']} {verb}", fg="cyan")
        self.details([_one_line(selector) for selector in spec.get("selectors", [])] or ["all devices"])
        self._configs_of_others(spec)

    def _claim_changed(self, change: Change) -> None:
        if change.type != "ADDED":
            return
        claim = change.object
        made = " (made from a template)" if "generateName" in claim["metadata"] else ""
        self.entry(f"ResourceClaim {self.name(shown(claim))}{made} asks for devices", fg="cyan")
        for request in claim["spec"].get("devices", {}).get("requests", []):
            for part in [request["exactly"]] if "exactly" in request else request.get("firstAvailable", []):
                name = request["name"] if "exactly" in request else f"{request['name']}/{part['name']}"
                wanted = "all devices" if part.get("allocationMode") == "All" else _wanted(part.get("count", 1))
                self.detail(f"request {name}: {wanted} of class {part['deviceClassName']}")
                for selector in part.get("selectors", []):
                    self.detail(f"  {_one_line(selector)}")
                for capacity, amount in part.get("capacity", {}).get("requests", {}).items():
                    self.detail(f"  {amount} of its {capacity}")
        for constraint in claim["spec"].get("devices", {}).get("constraints", []):
            self.detail(_constraint(constraint))
        self._configs_of_others(claim["spec"].get("devices", {}))

    def _configs_of_others(self, spec: Mapping[str, Any]) -> None:
        """Opaque configs that no driver here sees, as they name another one."""
        own = self._sandbox.drivers if self._sandbox else ()
        if not own:
            return  # whichever driver there is was started by others
        named = (item["opaque"]["driver"] for item in spec.get("config", []) if "opaque" in item)
        for other in dict.fromkeys(name for name in named if name not in own):
            text = f"config for driver {other}, which does not run here: {' and '.join(own)} does not get it"
            self.detail(text, fg="yellow")

    def _pod_changed(self, change: Change) -> None:
        pod, previous = change.object, change.previous
        name = f"Pod {self.name(shown(pod))}"
        if change.type == "ADDED":
            self.entry(f"{name} is created")
        elif change.type == "DELETED":
            self.entry(f"{name} is gone")
            self._refusals.pop(pod["metadata"]["uid"], None)
        elif previous is not None:
            phase = pod.get("status", {}).get("phase")
            deleted = "deletionTimestamp" in pod["metadata"]
            if phase != previous.get("status", {}).get("phase") and not deleted:
                self.entry(f"{name} is {phase}", fg="red" if phase == "Failed" else "green")
            if deleted and "deletionTimestamp" not in previous["metadata"]:
                self.entry(f"{name} is being deleted")

    def _prepared(self, node: str, call: ClaimsPrepared) -> None:
        claims = self._names(call.claims)
        self.entry(f"kubelet of {node} calls {call.driver}: NodePrepareResources for {claims}", fg="cyan")
        if call.error:
            self.detail(call.error, fg="red")
            return
        self.detail(f"answered in {_milliseconds(call.seconds)}")
        for device in call.devices:
            self.detail(f"{device.device_name}: CDI device {', '.join(device.cdi_device_ids) or 'none'}")
        uids = [claim.uid for claim in call.claims]
        for path, spec in self._cdi_specs(node, call.driver).items():
            if any(uid in path for uid in uids):
                self._spec(path, spec)

    def _released(self, node: str, call: ClaimsReleased) -> None:
        if call.error:
            self.entry(f"kubelet of {node}: {call.driver} does not release a claim", fg="red")
            self.detail(call.error)
            return
        claims = self._names(call.claims)
        self.entry(f"kubelet of {node} calls {call.driver}: NodeUnprepareResources for {claims}", fg="cyan")
        self.detail(f"done in {_milliseconds(call.seconds)}")

    def _unanswered(self, node: str, call: PluginCalled) -> None:
        self.entry(
            f"kubelet of {node} called {call.driver}: {call.method} for {self._names(call.claims)} is not answered "
            f"after {PATIENCE:g} s",
            fg="yellow",
        )
        for item in self._sandbox.nodes if self._sandbox else ():
            if item.name == node and call.driver in item.drivers:
                self.details(item.drivers[call.driver].calls())

    def _spec(self, path: str, spec: Mapping[str, Any]) -> None:
        self.entry(f"CDI spec {Path(path).name}, for the container runtime", fg="cyan")
        self._specs += 1
        if self._specs <= _FULL_SPECS:
            self.details(json.dumps(spec, indent=2).splitlines())

    def _container_started(self, activity: ContainerStarted) -> None:
        config, status = activity.config, activity.status
        if status.exit is not None and status.exit.reason == START_ERROR:
            self.entry(f"Pod {self.name(str(config.pod))}, container {config.name} cannot start", fg="red")
            self.detail(status.exit.message)
            return
        edits = config.edits
        gets = "gets nothing from claims" if edits == ContainerEdits() else "gets from its claims:"
        self.entry(f"Pod {self.name(str(config.pod))}, container {config.name} has started and {gets}", fg="cyan")
        for variable in edits.env:
            self.detail(variable, fg="green")
        for mount in edits.mounts:
            self.detail(f"mount {mount.host_path} on {mount.container_path} (told here, not done)")
        for node in edits.device_nodes:
            self.detail(f"device node {node.path} (told here, not made)")
        for hook in edits.hooks:
            self.detail(f"hook {hook.hook_name} {hook.path} (told here, not run)")
        for interface in edits.net_devices:
            self.detail(f"interface {interface.host_interface_name} as {interface.name} (told here, not moved)")
        if edits.additional_gids:
            self.detail(f"groups {', '.join(map(str, edits.additional_gids))} (told here, not given)")
        report = self._sandbox.container(status.id) if self._sandbox else None
        if report is not None:
            self._outputs.add(report)

    def _container_ended(self, activity: ContainerEnded) -> None:
        self.flush()
        pod, status = activity.pod, activity.status
        code = status.exit.code if status.exit else 0
        who = f"Pod {self.name(str(pod))}, container {status.name}"
        known = self._sandbox.informers.objects(PODS).get((pod.namespace, pod.name)) if self._sandbox else None
        if known is None or "deletionTimestamp" in known["metadata"]:
            self.entry(f"{who} was stopped")
        else:
            self.entry(f"{who} ended with exit code {code}", fg="red" if code else "")

    def _cdi_specs(self, name: str, driver: str) -> Mapping[str, Mapping[str, Any]]:
        node = next((item for item in self._sandbox.nodes if item.name == name), None) if self._sandbox else None
        return node.cdi_specs(driver) if node else {}

    def name(self, name: str) -> str:
        """``namespace/name`` as it is told."""
        return name.removeprefix(f"{self.namespace}/")

    def _names(self, claims: Iterable[ClaimReference]) -> str:
        return ", ".join(self.name(str(claim)) for claim in claims)

    # --- lines

    def entry(self, text: str, **style: Any) -> None:
        """A line that begins an entry."""
        if self._detailed:
            self._line("")
        self._detailed = False
        self._line(f"{time.monotonic() - self._begin:6.2f} s {self._shown(text, style)}")

    def detail(self, text: str, **style: Any) -> None:
        """What belongs to the entry before: a line, or several."""
        self._detailed = True
        self._line("\n".join(f"{_INDENT}  {self._shown(line, style)}" for line in text.split("\n")))

    def details(self, lines: Iterable[str]) -> None:
        """Several of them."""
        if told := list(lines):
            self.detail("\n".join(told))

    def _shown(self, text: str, style: Mapping[str, Any]) -> str:
        """Names, messages and output are what others wrote: a terminal gets nothing but their letters."""
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


def _count(items: list[Any], noun: str) -> str:
    return f"{len(items) or 'no'} {noun}{'' if len(items) == 1 else 's'}"


def _one_line(selector: Mapping[str, Any]) -> str:
    return " ".join(selector["cel"]["expression"].split())


def _constraint(constraint: Mapping[str, Any]) -> str:
    of = f"devices of {', '.join(constraint['requests'])}" if constraint.get("requests") else "all devices"
    if "distinctAttribute" in constraint:
        return f"{of} differ in {constraint['distinctAttribute']}"
    return f"{of} have the same {constraint['matchAttribute']}"


def _wanted(count: int) -> str:
    return "a device" if count == 1 else f"{count} devices"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
