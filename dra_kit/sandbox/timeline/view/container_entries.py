"""What the live view shows of containers: what they get, what they write, how they end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dra_kit.kubelet.cdi.spec import SpecEdits
from dra_kit.sandbox.cluster.workload.orphans import MARK_VARIABLE
from dra_kit.sandbox.timeline.records import (
    ContainerEnded,
    ContainerOutput,
    ContainerReference,
    ContainerStarted,
    Record,
)
from dra_kit.sandbox.timeline.report.problems import START_ERROR
from dra_kit.sandbox.timeline.view.entries import Detail, Entry, Names, lines
from dra_kit.text import escape_unprintable

# variables that the shell sets itself, and the one that is the sandbox's own
_NOT_OF_THE_POD: Final = frozenset({"PWD", "OLDPWD", "SHLVL", "_", MARK_VARIABLE})
_WIDTH: Final = 2_000  # characters of a line


class ContainerEntries:
    """Follows each container from its start to its end.

    Args:
        names: how objects are named.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._outputs: dict[str, OutputLines] = {}  # by the container's id

    def read(self, record: Record, *, deleted: bool) -> Iterator[Entry]:
        """Yield what is shown of a record.

        Args:
            record: any one.
            deleted: the container's pod is being deleted, or gone.
        """
        match record:
            case ContainerStarted():
                self._outputs[record.container.id] = OutputLines(record)
                yield self._started(record)
            case ContainerOutput(container=container, late=False) if container.id in self._outputs:
                if written := self._outputs[container.id].read(record):
                    yield Entry(f"{self._who(container)} says", lines(written), "cyan")
            case ContainerEnded(container=container, exit=how):
                self._outputs.pop(container.id, None)
                if deleted:
                    yield Entry(f"{self._who(container)} was stopped")
                else:
                    text = f"{self._who(container)} ended with exit code {how.code}"
                    yield Entry(text, colour="red" if how.code else "")
            case _:
                pass

    def _who(self, container: ContainerReference) -> str:
        return f"Pod {self._names.short(container.pod)}, container {container.name}"

    def _started(self, record: ContainerStarted) -> Entry:
        who = self._who(record.container)
        if record.exit is not None and record.exit.reason == START_ERROR:
            return Entry(f"{who} cannot start", (Detail(record.exit.message),), "red")
        edits = record.from_claims
        gets = "gets nothing from claims" if edits == SpecEdits() else "gets from its claims:"
        return Entry(f"{who} has started and {gets}", (*lines(edits.env, "green"), *lines(_not_done(edits))), "cyan")


def _not_done(edits: SpecEdits) -> Iterator[str]:
    """Yield what a container runtime would do, and the sandbox does not."""
    for mount in edits.mounts:
        yield f"mount {mount.host_path} on {mount.container_path} (told here, not done)"
    for node in edits.device_nodes:
        yield f"device node {node.path} (told here, not made)"
    for hook in edits.hooks:
        yield f"hook {hook.hook_name} {hook.path} (told here, not run)"
    for interface in edits.net_devices:
        yield f"interface {interface.host_interface_name} as {interface.name} (told here, not moved)"
    if edits.additional_gids:
        yield f"groups {', '.join(map(str, edits.additional_gids))} (told here, not given)"


class OutputLines:
    """The output of one container as lines for people.

    Args:
        started: the record of its start.
    """

    def __init__(self, started: ContainerStarted) -> None:
        self._in_line = False  # the line that was shown last goes on
        # a container that prints its environment says nothing new by it
        self._known = {f"{name}={value}" for name, value in started.environment.items()}

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
