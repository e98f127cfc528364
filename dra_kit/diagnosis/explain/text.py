"""Explanations of claims for people: what stands against which device, then everything in a few lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

from dra_kit.explain.cluster.cluster import Gap, missing_rules
from dra_kit.explain.cluster.drivers import DriverOnNode
from dra_kit.explain.devices.conditions import shorten
from dra_kit.explain.text.page import Page
from dra_kit.explain.text.places import by_place, foreign_drivers, shown_reasons
from dra_kit.explain.text.summary import counted, summarize
from dra_kit.explain.verdicts import ClaimExplanation, DeviceVerdict, JudgedChoice, Miss, NodeOutcome, Request
from dra_kit.kubernetes.resource.config import configs_for_driver
from dra_kit.kubernetes.resource.v1 import AllocatedDeviceStatus, AllocationResult, DeviceRequestAllocationResult

_PLACES: Final = 8
"""Nodes whose devices are listed one by one."""

_CHOICES: Final = 3
"""Nodes that are listed with what a claim would get."""

_NAMES: Final = 8
_COLUMN: Final = 36
_LINES: Final = 16
"""Lines for the devices of one place that do not fit."""
_PARAMETERS: Final = 300


def tell_claim(page: Page, explanation: ClaimExplanation, *, of_pod: bool = False) -> None:
    """Write the explanation of a claim: devices first, the verdict last.

    Args:
        page: to write on.
        explanation: of the claim.
        of_pod: it is one of a pod, which says itself how the drivers of its devices are.
    """
    _tell_deletion(page, explanation)
    allocation = explanation.claim.status.allocation
    if allocation is not None:
        _tell_allocated(page, explanation, allocation)
        if not of_pod:
            _tell_drivers(page, explanation.drivers)
        return
    for request in explanation.requests:
        for judged in request.choices:
            _tell_choice(page, explanation, request, judged)
    fitting = explanation.fitting_nodes
    if explanation.finds_devices:
        _tell_fitting(page, explanation, fitting)
        return
    if explanation.outcome == "unknown":
        page.undecided(f"{explanation.key} may find devices on nodes that are not known", explanation.not_looked_at)
        return
    if explanation.outcome == "stopped":
        page.undecided(f"{explanation.key} would take too much work to explain", explanation.not_looked_at)
        return
    text = ": kube-scheduler gives up" if explanation.outcome == "error" else " cannot be allocated"
    page.bad(f"{explanation.key}{text}")
    for blocker in explanation.blockers:
        page.line(blocker, indent=2)
    for remedy in explanation.remedies:
        page.line(f"→ {remedy}", indent=2, colour="yellow")
    for miss in explanation.nearest:
        page.line(f"→ {_change(explanation, miss)}", indent=2, colour="yellow")
    if explanation.not_looked_at:
        missed = ", ".join(explanation.not_looked_at)
        page.line(f"not looked at, since it would take too much work: {missed}", indent=2, colour="yellow")


def _change(explanation: ClaimExplanation, miss: Miss) -> str:
    """Describe a change and its effect."""
    several = len(explanation.requests) > 1 or "/" in miss.request
    whose = f" for {miss.request}" if several and miss.request else ""
    if miss.devices is None:
        return f"{miss.change}{whose} it fits"
    verb = "fits" if miss.devices == 1 else "fit"
    enough = "" if miss.enough else ", which alone is not enough"
    return f"{miss.change} {counted(miss.devices, 'device')} {verb}{whose}{enough}"


def tell_gaps(page: Page, gaps: Sequence[Gap]) -> None:
    """List the objects that could not be read, and the rights that are missing."""
    if not gaps:
        return
    page.line()
    page.line("Not everything could be read:", colour="yellow")
    for gap in gaps:
        page.line(f"{gap.text}: {gap.consequence}", indent=2)
    page.line("a ClusterRole with these rules would do", indent=2)
    for rule in missing_rules(gaps):
        page.line(f"- {rule}", indent=4)


def _tell_choice(page: Page, explanation: ClaimExplanation, request: Request, judged: JudgedChoice) -> None:
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
        _tell_verdicts(page, place.devices, picked)
    if len(shown) < len(places):
        rest = sum(len(place.nodes) for place in places[len(shown) :])
        page.line(f"… and {counted(rest, 'more node')}; --all tells of them", indent=2)
    for driver, (number, selector) in foreign.items():
        page.line(f"✗ {counted(number, 'device')} of driver {driver}: not selected by {selector}", indent=2)
    page.line()
    page.line(summarize(judged.devices), bold=True)


def _tell_verdicts(page: Page, verdicts: Sequence[DeviceVerdict], picked: set[tuple[str, str, str, str]]) -> None:
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


def _names(page: Page, names: Sequence[str]) -> str:
    if page.everything or len(names) <= _NAMES:
        return ", ".join(names)
    return f"{', '.join(names[: _NAMES - 1])} and {len(names) - _NAMES + 1} more"


def _tell_fitting(page: Page, explanation: ClaimExplanation, fitting: Sequence[NodeOutcome]) -> None:
    where = f"on {len(fitting)} of {counted(len(explanation.nodes), 'node')}"
    if explanation.undecided:
        page.undecided(f"{explanation.key} finds devices {where}", explanation.not_looked_at)
    else:
        page.good(f"{explanation.key} fits {where}")
    shown = fitting if page.everything else fitting[:_CHOICES]
    for outcome in shown:
        page.line(f"on {outcome.node.name} it would get", indent=2)
        for allocation in outcome.allocations or ():
            _tell_results(page, allocation)
    if len(shown) < len(fitting):
        page.line(f"… and likewise on {counted(len(fitting) - len(shown), 'more node')}", indent=2)


def _tell_allocated(page: Page, explanation: ClaimExplanation, allocation: AllocationResult) -> None:
    page.good(f"{explanation.key} is allocated")
    _tell_results(page, allocation)
    consumers = _consumers(explanation)
    page.line(f"reserved for {', '.join(consumers)}" if consumers else "reserved for nobody: no pod uses it", indent=2)
    for line in _conditions(explanation):
        page.line(line, indent=2)


def _tell_deletion(page: Page, explanation: ClaimExplanation) -> None:
    if since := explanation.claim.metadata.deletion_timestamp:
        consumers = _consumers(explanation)
        waits = f", and waits for {', '.join(consumers)}, which it is reserved for" if consumers else ""
        page.bad(f"{explanation.key} is being deleted since {since}{waits}")


def _tell_drivers(page: Page, drivers: Sequence[DriverOnNode]) -> None:
    for driver in drivers:
        if driver.problem:
            page.line(f"! {driver.driver}: {driver.problem}", colour="yellow")
            page.line(f"→ {driver.remedy}", indent=2, colour="yellow")


def _consumers(explanation: ClaimExplanation) -> list[str]:
    return [f"{each.resource.removesuffix('s')} {each.name}" for each in explanation.claim.status.reserved_for]


def _conditions(explanation: ClaimExplanation) -> Iterator[str]:
    """List the conditions that drivers report of devices they prepared."""
    for entry in (explanation.claim.status.model_extra or {}).get("devices") or ():
        status = AllocatedDeviceStatus.model_validate(entry)
        for condition in status.conditions:
            text = ": ".join(filter(None, (condition.reason, condition.message)))
            why = f" ({text})" if text else ""
            yield f"{status.driver} on {status.device}: {condition.type} is {condition.status}{why}"


def _tell_results(page: Page, allocation: AllocationResult) -> None:
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
