"""Explanations as text for a terminal: their order and layout. The sentences are where the reasons are found.

Devices that a class does not select show only that, not their taints, holders and counters.
"""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import click
from msgspec import Struct

from dra_kit.diagnosis.explain.allocated import device_statuses, enumerated
from dra_kit.diagnosis.explain.cluster import MissingRight, missing_rules
from dra_kit.diagnosis.explain.drivers import DriverOnNode
from dra_kit.diagnosis.explain.selectors import shorten
from dra_kit.diagnosis.explain.subjects import WorkloadExplanation
from dra_kit.diagnosis.explain.verdicts import (
    CLAIM_VERDICTS,
    POD_VERDICTS,
    UNMATCHED,
    ClaimExplanation,
    DeviceVerdict,
    JudgedChoice,
    JudgedRequest,
    NodeOutcome,
    PodClaimExplanation,
    PodExplanation,
    Reason,
    ReasonKind,
    SuggestedChange,
    summarize,
)
from dra_kit.kubernetes.resource.config import configs_for_driver
from dra_kit.kubernetes.resource.v1 import AllocationResult, DeviceRequestAllocationResult
from dra_kit.text import counted, escape_unprintable

_PLACES: Final = 8
"""Nodes whose devices are listed one by one."""
_CHOICES: Final = 3
"""Nodes that are listed with the devices a claim would get."""
_MOST_NAMES: Final = 8
_COLUMN: Final = 36
_LINES: Final = 16
"""Lines for the devices of one place that do not fit."""
_PARAMETERS: Final = 300


def render_claim(page: ReportWriter, explanation: ClaimExplanation, *, of_pod: bool = False) -> None:
    """Write the explanation of a claim; with ``of_pod``, without the state of its drivers."""
    if explanation.release:
        page.bad(f"{explanation.key} {explanation.release}")
    allocation = explanation.claim.status.allocation
    if allocation is not None:
        _render_allocated(page, explanation, allocation)
        if not of_pod:
            _render_drivers(page, explanation.drivers)
    elif explanation.release:
        _render_remedies(page, explanation)
    else:
        _render_unallocated(page, explanation)


def _render_unallocated(page: ReportWriter, explanation: ClaimExplanation) -> None:
    for request in explanation.requests:
        for judged in request.choices:
            _render_choice(page, explanation, request, judged)
    fitting = explanation.fitting_nodes
    if explanation.finds_devices:
        _render_fitting(page, explanation, fitting)
        return
    if explanation.undecided:
        page.undecided(_verdict(explanation), explanation.not_looked_at)
        return
    page.bad(_verdict(explanation))
    for blocker in explanation.blockers:
        page.line(blocker, indent=2)
    _render_remedies(page, explanation)
    for miss in explanation.nearest:
        page.line(f"→ {_change(explanation, miss)}", indent=2, colour="yellow")
    if explanation.not_looked_at:
        missed = ", ".join(explanation.not_looked_at)
        page.line(f"not examined, since it would take too much work: {missed}", indent=2, colour="yellow")


def _verdict(explanation: ClaimExplanation, where: str = "") -> str:
    return CLAIM_VERDICTS[explanation.outcome].format(claim=explanation.key, where=where)


def _render_problems(page: ReportWriter, explanation: ClaimExplanation) -> None:
    """List what is wrong with the devices of a claim that has or finds some."""
    for problem in explanation.blockers:
        page.line(f"! {problem}", indent=2, colour="yellow")
    _render_remedies(page, explanation)


def _render_remedies(page: ReportWriter, explanation: ClaimExplanation) -> None:
    for remedy in explanation.remedies:
        page.line(f"→ {remedy}", indent=2, colour="yellow")


def _change(explanation: ClaimExplanation, miss: SuggestedChange) -> str:
    """Describe a change and its effect."""
    several = len(explanation.requests) > 1 or "/" in miss.request
    whose = f" for {miss.request}" if several and miss.request else ""
    if miss.devices is None:
        return f"{miss.change}{whose}, it fits"
    verb = "fits" if miss.devices == 1 else "fit"
    enough = "" if miss.enough else ", which alone is not enough"
    return f"{miss.change}, {counted(miss.devices, 'device')} {verb}{whose}{enough}"


def render_missing_rights(page: ReportWriter, gaps: Sequence[MissingRight]) -> None:
    """List the objects that could not be read, and the rights that are missing."""
    if not gaps:
        return
    page.line()
    page.line("Not everything could be read:", colour="yellow")
    for gap in gaps:
        page.line(f"{gap.text}: {gap.consequence}", indent=2)
    page.line("a ClusterRole needs these rules", indent=2)
    for rule in missing_rules(gaps):
        page.line(f"- {rule}", indent=4)


def _render_choice(
    page: ReportWriter, explanation: ClaimExplanation, request: JudgedRequest, judged: JudgedChoice
) -> None:
    alternatives = (
        f" (choice {request.choices.index(judged) + 1} of {len(request.choices)})" if len(request.choices) > 1 else ""
    )
    if judged.choice is None:
        page.line(f"request {judged.name}{alternatives}", colour="red")
        page.line()
        return
    choice = judged.choice
    many = "all devices" if choice.all_devices else counted(choice.count, "device")
    conditions = "".join(f", {' '.join(shorten(selector).split())}" for selector in choice.selectors)
    admin = ", with admin access" if choice.admin_access else ""
    amounts = "".join(f", {name} {amount}" for name, amount in (choice.capacity or {}).items())
    of_class = f"of class {choice.device_class.metadata.name}"
    page.line(f"request {judged.name}{alternatives}: {many} {of_class}{conditions}{amounts}{admin}")
    foreign = {} if page.everything else foreign_drivers(judged)
    devices = [verdict for verdict in judged.devices if verdict.driver not in foreign] if foreign else judged.devices
    places = by_place(devices)
    shown = places if page.everything else places[:_PLACES]
    nodes = {node for place in shown for verdict in place.devices for node in verdict.nodes}
    picked = {
        (outcome.node.name, result.driver, result.pool, result.device)
        for outcome in explanation.fitting_nodes
        if outcome.node.name in nodes
        for allocation in outcome.allocations or ()
        for result in allocation.devices.results
        if result.request == judged.name
    }
    for place in shown:
        page.line(place.name(everything=page.everything), indent=2, bold=True)
        _render_verdicts(page, place.devices, picked)
    if len(shown) < len(places):
        rest = sum(len(place.nodes) for place in places[len(shown) :])
        page.line(f"… and {counted(rest, 'more node')}; --all shows them", indent=2)
    for driver, (number, selector) in foreign.items():
        page.line(f"✗ {counted(number, 'device')} of driver {driver}: not selected by {selector}", indent=2)
    page.line()
    page.line(summarize(judged.devices), bold=True)


def _render_verdicts(
    page: ReportWriter, verdicts: Sequence[DeviceVerdict], picked: set[tuple[str, str, str, str]]
) -> None:
    groups: dict[tuple[bool, str], list[str]] = {}
    for verdict in verdicts:
        if verdict.fits:
            taken = any((node, *verdict.id) in picked for node in verdict.nodes)
            text = "fits, would be taken" if taken else "fits"
        else:
            text = "; ".join(reason.text for reason in shown_reasons(verdict.reasons))
        groups.setdefault((verdict.fits, text), []).append(verdict.name)
    failing = [group for group in groups if not group[0]]
    rest = failing[_LINES - 1 :] if len(failing) > _LINES and not page.everything else []
    hidden = sum(len(groups.pop(group)) for group in rest)
    labels = {group: _names(page, names) for group, names in groups.items()}
    column = max((len(label) for label in labels.values() if len(label) <= _COLUMN), default=0)
    for (fits, text), label in labels.items():
        mark, colour = ("✓", "green") if fits else ("✗", None)
        if len(label) <= _COLUMN:
            page.line(f"{mark} {label.ljust(column)}  {text}", indent=4, hang=column + 4, colour=colour)
        else:
            page.line(f"{mark} {label}", indent=4, colour=colour)
            page.line(text, indent=column + 8, colour=colour)
    if hidden:
        page.line(f"✗ {hidden} more devices for other reasons; --all lists them", indent=4)


def _names(page: ReportWriter, names: Sequence[str]) -> str:
    if page.everything or len(names) <= _MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[: _MOST_NAMES - 1])} and {len(names) - _MOST_NAMES + 1} more"


def _render_fitting(page: ReportWriter, explanation: ClaimExplanation, fitting: Sequence[NodeOutcome]) -> None:
    where = f"on {len(fitting)} of {counted(len(explanation.nodes), 'node')}"
    if explanation.undecided:
        page.undecided(_verdict(explanation, where), explanation.not_looked_at)
    elif explanation.good:
        page.good(_verdict(explanation, where))
    else:
        page.bad(_verdict(explanation, where))
    shown = fitting if page.everything else fitting[:_CHOICES]
    for outcome in shown:
        page.line(f"on {outcome.node.name} it would get", indent=2)
        for allocation in outcome.allocations or ():
            _render_results(page, allocation)
            for name in dict.fromkeys(name for each in allocation.devices.results for name in each.binding_conditions):
                page.line(f"kube-scheduler then waits until the driver sets the condition {name}", indent=4)
    if len(shown) < len(fitting):
        page.line(f"… and likewise on {counted(len(fitting) - len(shown), 'more node')}", indent=2)
    _render_problems(page, explanation)


def _render_allocated(page: ReportWriter, explanation: ClaimExplanation, allocation: AllocationResult) -> None:
    if explanation.release:
        page.line("it still has", indent=2)
    else:
        page.good(_verdict(explanation))
    _render_results(page, allocation)
    if not explanation.release:
        reserved = _consumers(explanation)
        page.line(f"reserved for {enumerated(reserved)}" if reserved else "not reserved: no pod uses it", indent=2)
    for line in _conditions(explanation):
        page.line(line, indent=2)
    _render_problems(page, explanation)


def _render_drivers(page: ReportWriter, drivers: Sequence[DriverOnNode]) -> None:
    for driver in drivers:
        if driver.problem:
            page.line(f"! {driver.driver}: {driver.problem}", colour="yellow")
            page.line(f"→ {driver.remedy}", indent=2, colour="yellow")


def _consumers(explanation: ClaimExplanation) -> list[str]:
    return [f"{each.resource.removesuffix('s')} {each.name}" for each in explanation.claim.status.reserved_for]


def _conditions(explanation: ClaimExplanation) -> Iterator[str]:
    """List the conditions that drivers report of devices they prepared."""
    for status in device_statuses(explanation.claim):
        for condition in status.conditions:
            text = ": ".join(filter(None, (condition.reason, condition.message)))
            why = f" ({text})" if text else ""
            yield f"{status.driver} on {status.device}: {condition.type} is {condition.status}{why}"


def _render_results(page: ReportWriter, allocation: AllocationResult) -> None:
    for result in allocation.devices.results:
        amounts = ", ".join(f"{name} {amount}" for name, amount in result.consumed_capacity.items())
        extras = [amounts, "admin access" if result.admin_access else ""]
        text = "".join(f", {extra}" for extra in extras if extra)
        page.line(f"{result.request}: {result.device} of {result.driver}, pool {result.pool}{text}", indent=4)
        for line in _configs(allocation, result):
            page.line(line, indent=6)


def _configs(allocation: AllocationResult, result: DeviceRequestAllocationResult) -> Iterator[str]:
    """List the configurations of a device, the strongest first."""
    configs = configs_for_driver(allocation.devices.config, result.request, result.driver)
    if not configs:
        yield "no configuration: the driver's default"
    for position, config in enumerate(reversed(configs)):
        parameters = json.dumps(config.opaque.parameters, ensure_ascii=False) if config.opaque is not None else ""
        if len(parameters) > _PARAMETERS:
            parameters = f"{parameters[:_PARAMETERS]}…"
        source = "the class" if config.source == "FromClass" else "the claim"
        yield f"config of {source}{' (weaker)' if position else ''}: {parameters}"


_REASONS: Final = 6


def render_pod(page: ReportWriter, explanation: PodExplanation) -> None:
    """Write the explanation of a pod: warnings, its claims, the verdict."""
    for sentence in explanation.foreword:
        page.line(f"! pod {explanation.name}: {sentence}", colour="yellow", bold=True)
    if explanation.after:
        placed = [f"{pod.name} on {pod.node}" for pod in explanation.after[-_CHOICES:]]
        more = len(explanation.after) - len(placed)
        earlier = f"{counted(more, 'pod')} and " if more else ""
        page.line(
            f"pod {explanation.name} comes after {earlier}{', '.join(placed)}, whose devices, cpu and memory are then "
            "in use (kube-scheduler may select other nodes)"
        )
    page.line()
    _render_claims(page, explanation.claims)
    for resource in explanation.resources:
        page.line(resource.text)
    if rejections := explanation.rejections:
        nodes = counted(len(rejections), "node")
        page.line(f"{nodes} unsuitable for this pod, regardless of devices: {_reasons(rejections.values())}", bold=True)
    if elsewhere := explanation.elsewhere:
        nodes = counted(len(elsewhere), "node")
        page.line(f"{nodes} cannot use the devices of its claims: {_reasons(elsewhere.values())}", bold=True)
    _render_verdict(page, explanation)
    for problem in explanation.problems:
        page.line(problem, indent=2)
    of_deletion = explanation.deletion.remedies if explanation.deletion is not None else ()
    for remedy in (*explanation.remedies, *of_deletion):
        page.line(f"→ {remedy}", indent=2, colour="yellow")
    if not explanation.good or explanation.outcome == "fits":
        for event in explanation.events:
            page.line(f"reported: {event}", indent=2)


def render_workload(page: ReportWriter, explanation: WorkloadExplanation) -> None:
    """Write the explanation of a workload: those of its pods, then the verdict on all of them."""
    workload = explanation.workload
    if workload.kind != "Pod":
        note = "; how many it creates is not known, so one is explained" if workload.path else ""
        page.line(f"{workload.title}: {counted(explanation.count, 'pod')}{note}", bold=True)
    for each in explanation.explained:
        page.line()
        render_pod(page, each)
    if workload.kind == "Pod":
        return
    page.line()
    if explanation.undecided:
        page.line(f"? {explanation.text}", colour="yellow", bold=True)
    elif explanation.good:
        page.good(explanation.text)
    else:
        page.bad(explanation.text)
    if explanation.note:
        page.line(f"! {explanation.note}", indent=2, colour="yellow")


def _render_claims(page: ReportWriter, claims: Iterable[PodClaimExplanation]) -> None:
    for claim in claims:
        origin = f" (from {claim.origin})" if claim.origin else ""
        page.line(f"claim {claim.entry or 'of extended resources'}{origin}", bold=True)
        if claim.explanation is not None:
            render_claim(page, claim.explanation, of_pod=True)
        elif claim.problem:
            page.bad(claim.problem)
        page.line()


def _render_verdict(page: ReportWriter, explanation: PodExplanation) -> None:
    deletion = explanation.deletion
    since, waits = (deletion.since, deletion.text) if deletion is not None else ("", "")
    verdict = POD_VERDICTS[explanation.outcome].format(
        node=explanation.node, where=_first_nodes(explanation.fitting), since=since, deletion=waits
    )
    text = f"pod {explanation.name} {verdict}"
    if explanation.undecided:
        page.undecided(text, explanation.not_looked_at)
    elif explanation.good:
        page.good(text)
    else:
        page.bad(text)


def _reasons(rejections: Iterable[tuple[str, ...]]) -> str:
    counts = Counter(reason for reasons in rejections for reason in reasons)
    parts = [f"{reason} ({counted(number, 'node')})" for reason, number in counts.most_common(_REASONS)]
    return "; ".join(parts) + ("; …" if len(counts) > _REASONS else "")


class ReportWriter:
    """Collects lines for a terminal.

    Args:
        width: characters in a line.
        colour: whether to use colours.
        everything: abbreviate nothing.
    """

    def __init__(self, width: int, *, colour: bool, everything: bool = False) -> None:
        self._colour = colour
        self._width = min(max(width, 80), 120)
        self.everything = everything
        self._lines: list[str] = []

    def __str__(self) -> str:
        return "\n".join(self._lines)

    def line(
        self, text: str = "", indent: int = 0, hang: int = 2, *, colour: str | None = None, bold: bool = False
    ) -> None:
        """Add text, wrapped into lines; an empty text adds one empty line between others."""
        if not text:
            if self._lines and self._lines[-1]:
                self._lines.append("")
            return
        for part in textwrap.wrap(
            escape_unprintable(text, keep="\n\t"),
            self._width,
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent + hang),
            break_long_words=False,
            break_on_hyphens=False,
        ):
            self._lines.append(click.style(part, fg=colour, bold=bold or None) if self._colour else part)

    def good(self, text: str) -> None:
        """Add a success."""
        self.line(f"✓ {text}", colour="green", bold=True)

    def bad(self, text: str) -> None:
        """Add a failure."""
        self.line(f"✗ {text}", colour="red", bold=True)

    def undecided(self, text: str, not_looked_at: Sequence[str]) -> None:
        """Add an undecided verdict, with what was not examined."""
        self.line(f"? {text}; not examined: {', '.join(not_looked_at)}", colour="yellow", bold=True)


_MOST_NODES: Final = 3


class DeviceLocation(Struct, frozen=True):
    """Nodes that each have equal devices, or share the same ones; ``devices`` are those of the first node."""

    nodes: tuple[str, ...]
    devices: Sequence[DeviceVerdict]

    def name(self, *, everything: bool) -> str:
        """Return the names of the nodes: all of them, or the first ones."""
        if not self.nodes:
            return "no node"
        return ", ".join(self.nodes) if everything else _first_nodes(self.nodes)


def _first_nodes(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _MOST_NODES} more nodes" if len(nodes) > _MOST_NODES else ""
    return ", ".join(nodes[:_MOST_NODES]) + more


def by_place(verdicts: Sequence[DeviceVerdict]) -> list[DeviceLocation]:
    """Return locations, those closest to fitting first; nodes with equal devices share a location."""
    by_nodes: dict[tuple[str, ...], list[DeviceVerdict]] = {}
    # devices of one slice, and equal devices, share one object, so nodes and reasons are compared once
    same_nodes: dict[int, list[DeviceVerdict]] = {}
    same_reasons: dict[int, int] = {}
    numbers: dict[Hashable, int] = {}
    for verdict in verdicts:
        there = same_nodes.get(id(verdict.nodes))
        if there is None:
            there = same_nodes[id(verdict.nodes)] = by_nodes.setdefault(tuple(verdict.nodes), [])
        there.append(verdict)
        if id(verdict.reasons) not in same_reasons:
            same_reasons[id(verdict.reasons)] = numbers.setdefault(shown_reasons(verdict.reasons), len(numbers))
    alike: dict[Hashable, list[tuple[str, ...]]] = {}
    for nodes, devices in by_nodes.items():
        look = tuple([(verdict.driver, verdict.name, same_reasons[id(verdict.reasons)]) for verdict in devices])
        alike.setdefault((look, len(nodes) == 1 or nodes), []).append(nodes)
    places = [
        DeviceLocation(tuple(node for nodes in group for node in nodes), by_nodes[group[0]]) for group in alike.values()
    ]
    places.sort(key=lambda place: min([len(verdict.reasons) for verdict in place.devices]))
    return places


def shown_reasons(reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """Return the reasons that matter to the user: if the class does not select a device, only why."""
    if not any(reason.check is ReasonKind.CLASS for reason in reasons):
        return reasons
    return tuple([reason for reason in reasons if reason.check in UNMATCHED])


class _Exclusion(NamedTuple):
    """The class or request that does not select a device.

    Attributes:
        by_driver: it compares the name of the driver.
        selector: ``class pizza`` or ``request lunch``.
    """

    by_driver: bool
    selector: str


def foreign_drivers(judged: JudgedChoice) -> dict[str, tuple[int, str]]:
    """Return the drivers that the choice excludes, with their number of devices and the excluding selector.

    Selectors compare the name of the driver, or the class selects devices of other drivers only. A driver with a device
    for which a selector fails is not foreign: that error ends the scheduler's attempt.
    """
    known: dict[int, _Exclusion | None] = {}  # devices share their reasons
    counts: Counter[str] = Counter()
    found: dict[str, set[_Exclusion | None]] = {}
    for verdict in judged.devices:
        key = id(verdict.reasons)
        if key not in known:
            known[key] = _exclusion(verdict.reasons)
        counts[verdict.driver] += 1
        found.setdefault(verdict.driver, set()).add(known[key])
    selects_others = any(None in exclusions for exclusions in found.values())
    foreign: dict[str, tuple[int, str]] = {}
    for driver, exclusions in found.items():
        excluded = [each for each in exclusions if each is not None]
        if len(excluded) == len(exclusions) and (selects_others or all(each.by_driver for each in excluded)):
            foreign[driver] = counts[driver], max(excluded).selector
    return foreign


def _exclusion(reasons: tuple[Reason, ...]) -> _Exclusion | None:
    """Return what excludes a device regardless of its attributes, or its class; None if nothing does."""
    if any(reason.check in {ReasonKind.ERROR, ReasonKind.POOL} for reason in reasons):
        return None
    found = [
        _Exclusion(by_driver, str(reason.details["of"]))
        for reason in reasons
        if (by_driver := "device.driver" in reason.details.get("values", ())) or reason.check is ReasonKind.CLASS
    ]
    return max(found, default=None)
