"""Traces: a cluster with changing pods and slices, and the placement of each pod."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from dra_kit.errors import AllocationError
from dra_kit.kubernetes.allocator.allocation import Allocator
from dra_kit.kubernetes.allocator.state import AllocatorState
from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.resource.matching import Node
from tests.golden.allocator import gates_of, node_of, outcome_of
from tests.golden.kind import Case, Line

NAME = "allocator-traces"


def recognises(line: Line) -> bool:
    return {"features", "nodes", "steps", "final"} <= line.keys()


def replay(lines: Iterable[Line], release: Release) -> Iterator[Case]:
    """Return a case for each placement, and one for the devices in use at the end of each trace."""
    for line in lines:
        yield from _Trace(line, release).cases()


class _Trace:
    def __init__(self, line: Line, release: Release) -> None:
        self._line = line
        self._nodes: list[Node] = [node_of(node) for node in line["nodes"]]
        self._snapshot = AllocatorState(
            slices=line["resourceSlices"], classes=line["deviceClasses"], version=release.version
        )
        self._allocator = Allocator(self._snapshot, gates_of(line["features"], release))
        self._shares: dict[str, str] = {}
        self._held: dict[str, list[Line]] = {}

    def cases(self) -> Iterator[Case]:
        """Yield the cases in order; each must be observed before the next."""
        for number, step in enumerate(self._line["steps"]):
            match step["op"]:
                case "allocate":
                    expected = {key: step["expected"].get(key) for key in ("tried", "node", "allocations", "errorKind")}
                    yield Case(f"{self._line['id']}, step {number}", expected, partial(self._place, step))
                case "deallocate":
                    for allocation in self._held.pop(step["pod"], ()):
                        self._snapshot.deallocate(allocation)
                case "publish":
                    self._snapshot.publish(step["resourceSlices"], remove=step.get("remove") or ())
                case operation:
                    raise ValueError(f"unknown operation {operation!r}")
        yield Case(f"{self._line['id']}, final", self._line["final"], self._final)

    def _place(self, step: Line) -> Line:
        observed: dict[str, Any] = {"tried": [], "node": None, "allocations": None, "errorKind": None}
        attempt = self._allocator.attempt(step["claims"])
        for index in step["nodes"]:
            node = self._nodes[index]
            try:
                allocations = attempt.on(node)
            except AllocationError as error:
                observed["tried"].append("node-error" if error.node_only else "error")
                if error.node_only:
                    continue
                return observed | {"errorKind": error.kind}
            observed["tried"].append("none" if allocations is None else "ok")
            if allocations is not None:
                for allocation in allocations:
                    self._snapshot.allocate(allocation)
                self._held[step["pod"]] = [allocation.to_json() for allocation in allocations]
                return observed | {"node": node.name, "allocations": outcome_of(allocations, self._shares)}
        return observed

    def _final(self) -> Line:
        usage = self._snapshot.usage
        return {
            "devices": sorted(str(device) for device in usage.exclusive),
            "shared": {
                str(device): {name: str(amount) for name, amount in consumed.items()}
                for device, consumed in usage.shared.items()
            },
        }
