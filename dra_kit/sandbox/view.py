"""The terminal view of a story: what happens in a cluster with DRA, told in chapters while it happens.

Plain text that reads well in a terminal and in a log; colours only in a terminal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TextIO

import click

from dra_kit.kube.resources import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_kit.sandbox.facts import Cluster, Facts
from dra_kit.sandbox.story import Step, Story


class VisibleCluster(Cluster, Protocol):
    """A cluster that also shows what usually stays out of sight."""

    async def driver_log(self) -> Sequence[str]:
        """The lines that the driver logged so far."""
        ...

    async def cdi_specs(self) -> Mapping[str, Mapping[str, Any]]:
        """The CDI specs of the node, by the path of their file."""
        ...


class TerminalView:
    """Prints a story while it runs; give it to ``run_story`` as observer.

    Args:
        cluster: the story runs in.
        stream: to print to.
    """

    def __init__(self, cluster: VisibleCluster, stream: TextIO) -> None:
        self._cluster = cluster
        self._stream = stream
        self._coloured = stream.isatty()
        self._namespace = ""
        self._chapter = 0

    async def begun(self, story: Story, namespace: str) -> None:
        """Chapter 1: what the driver offers."""
        self._namespace = namespace
        self._line(self._style(f"The story: {story.name.replace('-', ' ')}", bold=True))
        self._line(f"driver {self._cluster.driver}, namespace {namespace}")
        self._title("The ResourceSlice: what the driver offers")
        selector = f"spec.driver={self._cluster.driver}"
        for item in (await self._cluster.client.list(RESOURCE_SLICES, field_selector=selector)).items:
            spec = item["spec"]
            pool = spec["pool"]
            self._line(f"{item['metadata']['name']}: pool {pool['name']}, generation {pool['generation']}")
            self._table(spec.get("devices", []))

    async def done(self, step: Step, facts: Facts) -> None:
        """The chapters from the claim to what the containers see."""
        claims = await self._claims()
        self._title("The claim: what is asked for")
        for claim in claims:
            for request in claim["spec"]["devices"].get("requests", []):
                self._request(claim["metadata"]["name"], request)
        self._title("The allocation: what the scheduler chose, and for whom")
        for claim in claims:
            self._allocation(claim)
        await self._call(claims)
        await self._specs(claims)
        await self._containers(step, facts)

    async def cleaned(self, leftovers: Sequence[str]) -> None:
        """The last chapter: nothing is left."""
        self._title("The clean-up: the pod is gone, and its claim with it")
        for line in await self._log_of([self._namespace]):
            if "unprepare" in line.lower() or "released" in line.lower():
                self._line(line)
        if leftovers:
            self._line(self._style("left over:", fg="red"))
            for text in leftovers:
                self._line(f"  {text}")
        else:
            self._line(
                "left over: no claim, no CDI file, no record of the driver, no change of the hardware or the slices"
            )

    # --- chapters

    def _table(self, devices: Sequence[Mapping[str, Any]]) -> None:
        names = sorted({name for device in devices for name in device.get("attributes", {})})
        capacities = sorted({name for device in devices for name in device.get("capacity", {})})
        rows = [["device", *names, *capacities]]
        for device in devices:
            attributes = {key: _attribute(value) for key, value in device.get("attributes", {}).items()}
            amounts = {key: str(value["value"]) for key, value in device.get("capacity", {}).items()}
            row = [device["name"], *(attributes.get(name, "-") for name in names)]
            rows.append([*row, *(amounts.get(name, "-") for name in capacities)])
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for number, row in enumerate(rows):
            text = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            self._line("  " + (self._style(text, bold=True) if number == 0 else text))

    def _request(self, claim: str, request: Mapping[str, Any]) -> None:
        for part in [request["exactly"]] if "exactly" in request else request.get("firstAvailable", []):
            self._line(f"ResourceClaim {claim}, request {request['name']}: class {part['deviceClassName']}")
            for selector in part.get("selectors", []):
                self._line(f"  selector {' '.join(selector['cel']['expression'].split())}")

    def _allocation(self, claim: Mapping[str, Any]) -> None:
        name, status = claim["metadata"]["name"], claim.get("status", {})
        results = status.get("allocation", {}).get("devices", {}).get("results", [])
        for result in results:
            self._line(
                f"ResourceClaim {name}, request {result['request']}: device {result['device']} of pool {result['pool']}"
            )
        if not results:
            self._line(f"ResourceClaim {name}: nothing yet")
        for consumer in status.get("reservedFor", []):
            self._line(f"  reserved for {consumer['resource']}/{consumer['name']}")

    async def _call(self, claims: Sequence[Mapping[str, Any]]) -> None:
        self._title("The kubelet's call, as the driver logs it")
        for line in await self._log_of([claim["metadata"]["uid"] for claim in claims] + [f"{self._namespace}/"]):
            self._line(line)

    async def _specs(self, claims: Sequence[Mapping[str, Any]]) -> None:
        self._title("The CDI spec: what the driver wrote for the container runtime")
        uids = [claim["metadata"]["uid"] for claim in claims]
        for path, spec in (await self._cluster.cdi_specs()).items():
            text = json.dumps(spec, indent=2)
            if any(uid in text or uid in path for uid in uids):
                self._line(path)
                for line in text.splitlines():
                    self._line(f"  {line}")

    async def _containers(self, step: Step, facts: Facts) -> None:
        pods = (await self._cluster.client.list(PODS, self._namespace)).items
        names = {item["metadata"]["name"]: item["spec"]["containers"] for item in pods}
        for pod, expected in step.expectation.pods.items():
            seen = facts.pods[pod]
            for container in (item["name"] for item in names.get(pod, [])):
                if container not in seen.containers:
                    continue
                shown = seen.containers[container]
                wanted = expected.containers.get(container)
                self._title(f"Pod {pod}, container {container}: what it sees of the claim")
                for name in wanted.environment if wanted else ():
                    if name in shown.environment:
                        self._line(f"  {self._style(f'{name}={shown.environment[name]}', fg='green')}")
                self._title(f"Pod {pod}, container {container}: what it says")
                for line in shown.output.splitlines():
                    name, equals, value = line.partition("=")
                    if not (equals and shown.environment.get(name) == value):
                        self._line(f"  {line}")
            ended = [
                f"container {name} " + ("runs" if item.exit_code is None else f"ended with exit code {item.exit_code}")
                for name, item in seen.containers.items()
            ]
            self._line(f"pod {pod} is {seen.phase}; {', '.join(ended) or 'no container has started'}")

    # --- tools

    async def _claims(self) -> Sequence[Mapping[str, Any]]:
        return (await self._cluster.client.list(RESOURCE_CLAIMS, self._namespace)).items

    async def _log_of(self, texts: Sequence[str]) -> list[str]:
        return [line for line in await self._cluster.driver_log() if any(text in line for text in texts)]

    def _title(self, text: str) -> None:
        self._chapter += 1
        self._line("")
        self._line(self._style(f"{self._chapter}. {text}", fg="cyan", bold=True))

    def _style(self, text: str, **style: Any) -> str:
        return click.style(text, **style) if self._coloured else text

    def _line(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


def _attribute(value: Mapping[str, Any]) -> str:
    content = next(iter(value.values()), "")
    if isinstance(content, bool):
        return "yes" if content else "no"
    return ", ".join(map(str, content)) if isinstance(content, list) else str(content)
