"""What the live view shows of decisions of the scheduler, and of calls of kubelets to drivers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from dra_kit.sandbox.timeline.records import (
    PREPARE,
    CallEnded,
    CallOverdue,
    CdiSpecWritten,
    PluginConnected,
    PluginDisconnected,
    PodScheduled,
    PodUnschedulable,
    Record,
)
from dra_kit.sandbox.timeline.view.entries import Detail, Entry, Names, lines, milliseconds

_FULL_SPECS: Final = 2  # CDI specs that are shown as a whole; the later ones look alike


class CallEntries:
    """Shows a refusal of the scheduler once, and the first CDI specs as a whole.

    Args:
        names: how objects are named.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._refusals: dict[str, str] = {}  # what was shown of each pod, by UID
        self._specs = 0

    def read(self, record: Record) -> Iterator[Entry]:
        """Yield what is shown of a record."""
        match record:
            case PodScheduled(pod=pod, node=node):
                devices = (
                    f"ResourceClaim {item.claim or 'of its extended resources'}, request {item.request}: {item.reason}"
                    for item in record.devices
                )
                yield Entry(f"scheduler: Pod {self._names.short(pod)} goes to {node}", lines(devices), "cyan")
            case PodUnschedulable(pod=pod, message=message):
                if self._refusals.get(pod.uid) != message:
                    self._refusals[pod.uid] = message
                    title = f"scheduler: Pod {self._names.short(pod)} has to wait"
                    yield Entry(title, (Detail(message),), "yellow")
            case PluginConnected(node=node, driver=driver):
                yield Entry(f"kubelet of {node}: driver {driver} is registered")
            case PluginDisconnected(node=node, driver=driver):
                yield Entry(f"kubelet of {node}: the connection to driver {driver} is lost", colour="yellow")
            case CallOverdue():
                title = (
                    f"kubelet of {record.node} called {record.driver}: {record.method} for "
                    f"{self._names.claims(record.claims)} is not answered after {record.waited:g} s"
                )
                yield Entry(title, lines(record.running), "yellow")
            case CallEnded():
                yield self._ended(record)
            case CdiSpecWritten(file=file, spec=spec):
                self._specs += 1
                text = json.dumps(spec, indent=2).splitlines() if self._specs <= _FULL_SPECS else []
                yield Entry(f"CDI spec {file}, for the container runtime", lines(text), "cyan")
            case _:
                pass

    def forget(self, pod_uid: str) -> None:
        """Forget a pod that is gone."""
        self._refusals.pop(pod_uid, None)

    def _ended(self, call: CallEnded) -> Entry:
        took = milliseconds(call.duration)
        if call.error and call.method != PREPARE:
            title = f"kubelet of {call.node}: {call.driver} does not release a claim"
            return Entry(title, (Detail(call.error),), "red")
        title = f"kubelet of {call.node} calls {call.driver}: {call.method} for {self._names.claims(call.claims)}"
        if call.error:
            return Entry(title, (Detail(call.error, "red"),), "cyan")
        if call.method != PREPARE:
            return Entry(title, (Detail(f"done in {took}"),), "cyan")
        devices = (f"{item.device}: CDI device {', '.join(item.cdi_devices) or 'none'}" for item in call.devices)
        return Entry(title, lines([f"answered in {took}", *devices]), "cyan")
