"""Turns what a sandbox's observers learn into records of its timeline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dra_kit.apiserver.documents.discovery import VERSION
from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import PODS, Resource
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.kubernetes.scheduler.cycle import SchedulingDecision
from dra_kit.sandbox.cluster.kubelet import activity as kubelet
from dra_kit.sandbox.cluster.slow_calls import PATIENCE, SlowCalls
from dra_kit.sandbox.sandbox import Sandbox, SandboxObserver
from dra_kit.sandbox.timeline.container_output import ContainerOutputs
from dra_kit.sandbox.timeline.conversion import of_activity, of_decision
from dra_kit.sandbox.timeline.driver_lines import DriverLines
from dra_kit.sandbox.timeline.file import TimelineFile
from dra_kit.sandbox.timeline.records import (
    CallOverdue,
    CdiSpecWritten,
    ClusterEnding,
    ClusterStarted,
    ContainerReference,
    DriverNotServing,
    ObjectChanged,
)
from dra_kit.sandbox.timeline.timeline import Timeline

FILE: Final = "timeline.jsonl"
"""Name of the timeline's file in the directory of a sandbox."""

_POLL_SECONDS: Final = 0.05
_IDLE_POLL_SECONDS: Final = 0.25
"""While no container runs: calls become slow at a time that matters less."""


class TimelineFeed(SandboxObserver):
    """Feeds a timeline with what happens in one sandbox, and writes it to a file as long as the sandbox lives.

    Args:
        timeline: to feed.
        file: to write; None for one in the sandbox's own directory, which goes with it.
        driver_log: the driver runs in this process, so that what it logs here belongs to the timeline.
    """

    def __init__(self, timeline: Timeline, file: Path | None = None, *, driver_log: bool = True) -> None:
        self._timeline = timeline
        self._path = file
        self._driver_log = driver_log
        self._file: TimelineFile | None = None
        self._sandbox: Sandbox | None = None
        self._drivers: tuple[str, ...] = ()
        self._outputs = ContainerOutputs()
        self._slow_calls = SlowCalls()
        self._expecting = asyncio.Event()  # there is something to look at again and again
        self._polling: asyncio.Task[None] | None = None

    # --- dra_kit.sandbox.sandbox.SandboxObserver

    def started(self, sandbox: Sandbox) -> None:
        """Record that API server, controllers and scheduler run."""
        self._sandbox = sandbox
        self._file = TimelineFile(self._path or sandbox.directory / FILE)
        self._timeline.subscribe(self._file.write)
        self._drivers = tuple(sandbox.drivers)
        self._timeline.append(
            ClusterStarted(version=VERSION, kubeconfig=str(sandbox.kubeconfig), drivers=self._drivers)
        )
        for resource in sandbox.informers.resources:
            sandbox.informers.listen(resource, self._changed(resource))
        if self._driver_log:
            sandbox.log.listen(DriverLines(self._only_driver(), self._timeline.append).logged)
        self._polling = asyncio.create_task(self._poll(), name="output of containers")

    def decided(self, decision: SchedulingDecision) -> None:
        """Record a decision of the scheduler about a pod."""
        self._timeline.append(of_decision(decision))

    def acted(self, node: str, activity: kubelet.Activity) -> None:
        """Record what a kubelet did, or what happened to a driver on its node."""
        match activity:
            case kubelet.PluginCalled():
                self._slow_calls.begun(node, activity)
                self._expecting.set()
            case kubelet.ClaimsPrepared() | kubelet.ClaimsReleased():
                self._slow_calls.ended(node, activity)
            case kubelet.ContainerStarted():
                self._container_started(node, activity)
                return
            case kubelet.ContainerEnded(pod=pod) | kubelet.PodTerminating(pod=pod):
                self._take_rest(pod.uid)
            case _:
                pass
        self._timeline.append(of_activity(node, activity, {}))
        if isinstance(activity, kubelet.ClaimsPrepared) and not activity.error:
            for name, spec in self._cdi_specs(node, activity.driver, activity.claims):
                self._timeline.append(CdiSpecWritten(node=node, driver=activity.driver, file=name, spec=spec))

    def waiting(self, calls: Sequence[str]) -> None:
        """Record that the driver has published nothing for a while."""
        self._timeline.append(DriverNotServing(driver=self._only_driver(), calls=tuple(calls)))

    def ending(self, calls: Sequence[str]) -> None:
        """Record that everything is taken down from now on."""
        if self._polling is not None:
            self._polling.cancel()
        self.poll()
        self._take_rest()
        self._timeline.append(ClusterEnding(calls=tuple(calls)))
        if self._path is None:
            self.close()  # its directory goes now

    # --- for who runs the sandbox

    def poll(self) -> None:
        """Record what containers wrote until now, and calls that are not answered for long."""
        for name, call in self._slow_calls.overdue():
            overdue = CallOverdue(
                node=name,
                driver=call.driver,
                method=call.method,
                claims=call.claims,
                waited=PATIENCE,
                running=tuple(self._running(name, call.driver)),
            )
            self._timeline.append(overdue)
        for output in self._outputs.news(time.monotonic()):
            self._timeline.append(output)

    def close(self) -> None:
        """Write what is left to the file; after the sandbox has ended."""
        if self._file is not None:
            self._file.close()

    # --- one kind after the other

    def _changed(self, resource: Resource) -> Callable[[ObjectChange], None]:
        name = resource.full_name

        def changed(change: ObjectChange) -> None:
            metadata = change.object["metadata"]
            if resource == PODS and (change.type == "DELETED" or "deletionTimestamp" in metadata):
                self._take_rest(metadata["uid"])
            self._timeline.append(ObjectChanged(change=change.type, resource=name, object=change.object))

        return changed

    def _container_started(self, node: str, activity: kubelet.ContainerStarted) -> None:
        report = self._sandbox.container(activity.status.id) if self._sandbox else None
        self._timeline.append(of_activity(node, activity, report.environment if report else {}))
        if report is not None:
            config = activity.config
            self._outputs.add(ContainerReference(config.pod, config.name, activity.status.id), report.log)
            self._expecting.set()

    def _only_driver(self) -> str:
        """Return the driver's name; empty where there is none, or several."""
        return self._drivers[0] if len(self._drivers) == 1 else ""

    def _take_rest(self, pod_uid: str | None = None) -> None:
        for output in self._outputs.rest(time.monotonic(), pod_uid):
            self._timeline.append(output)

    async def _poll(self) -> None:
        while True:
            await self._expecting.wait()
            self.poll()
            writing = self._outputs.expects_more
            if not (writing or self._slow_calls.under_way):
                self._expecting.clear()
            await asyncio.sleep(_POLL_SECONDS if writing else _IDLE_POLL_SECONDS)

    def _running(self, name: str, driver: str) -> Iterator[str]:
        """Yield the calls of a driver's code on a node that have not returned."""
        for node in self._sandbox.nodes if self._sandbox else ():
            if node.name == name and driver in node.drivers:
                yield from node.drivers[driver].calls()

    def _cdi_specs(
        self, name: str, driver: str, claims: Iterable[ClaimReference]
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        uids = [claim.uid for claim in claims]
        for node in self._sandbox.nodes if self._sandbox else ():
            if node.name == name:
                for path, spec in node.cdi_specs(driver, uids).items():
                    yield Path(path).name, spec
