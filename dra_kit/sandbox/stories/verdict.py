"""What differs from an expectation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct

from dra_kit.kubernetes.values.quantity import Quantity
from dra_kit.sandbox.containers.runtime import parse_numbers

if TYPE_CHECKING:
    from dra_kit.sandbox.stories.facts import ClaimFacts, ContainerFacts, PodFacts, PublishedDevice, StoryFacts
    from dra_kit.sandbox.stories.model import (
        ClaimExpectation,
        ContainerExpectation,
        DeviceExpectation,
        Expectation,
        PodExpectation,
        ValueExpectation,
    )


Kind: TypeAlias = Literal["environment", "device_nodes", "mounts"]
"""What of a container has values by name."""
_WORDS: dict[Kind, tuple[str, str]] = {
    "environment": ("{}", "set"),
    "device_nodes": ("device file {}", "there"),
    "mounts": ("mount {}", "there"),
}
"""A value's subject, and what it is when it has one."""
_HINTS: dict[Kind, str] = {
    "environment": "",
    "device_nodes": "; have the container run ls -l /dev/…, where it does not",
    "mounts": "; have the container run cat /proc/self/mountinfo, where it does not",
}
"""How containers of a real cluster show what they have."""
_SHOWN = 300  # letters of the end of the output


class Mismatch(Struct, frozen=True):
    """One expectation that is not met; if it is ``final``, waiting longer cannot change it."""

    subject: str
    expected: str
    got: str
    final: bool = False

    def __str__(self) -> str:
        return f"{self.subject}\n    expected: {self.expected}\n    got:      {self.got}"


def compare(expectation: Expectation, facts: StoryFacts, namespace: str) -> tuple[Mismatch, ...]:
    """Return the mismatches in the order of the story; ``facts`` must include pods that ``same_as`` refers to."""
    found: list[Mismatch] = []
    for name, pod in expectation.pods.items():
        found += _pod(f"pod {name}", pod, facts.pods.get(name), facts, namespace)
    for name, claim in expectation.claims.items():
        found += _claim(f"claim {name}", claim, facts.claims.get(name), namespace)
    for name, device in expectation.devices.items():
        found += _device(f"device {name}", device, _devices_named(name, facts.devices.values()))
    for reference in expectation.gone:
        if reference in facts.present:
            found.append(Mismatch(reference, "is gone", "it is there"))
    for place, texts in expectation.files.items():
        found += _files(f"file {place}", texts, facts.files.get(place, ()))
    return tuple(found)


def referenced_pods(expectation: Expectation) -> set[str]:
    """Return names of all pods in the expectation."""
    return set(expectation.pods) | {
        value.same_as.split("/")[0]
        for pod in expectation.pods.values()
        for container in pod.containers.values()
        for values in (container.environment, container.device_nodes, container.mounts)
        for value in values.values()
        if value.same_as
    }


def _pod(
    subject: str, expected: PodExpectation, pod: PodFacts | None, facts: StoryFacts, namespace: str
) -> Iterator[Mismatch]:
    if pod is None:
        yield Mismatch(subject, expected.phase, "the pod does not exist")
        return
    if pod.phase != expected.phase:
        got = f"{pod.phase}, refused by the driver for good: {pod.refusal}" if pod.refusal else pod.phase
        yield Mismatch(subject, expected.phase, got, final=bool(pod.refusal) or pod.phase in {"Succeeded", "Failed"})
    yield from _message(subject, expected.message, pod.messages, namespace)
    if expected.interfaces is not None:
        yield from _interfaces(f"{subject}, interfaces", expected.interfaces, pod.interfaces)
    for name, container in expected.containers.items():
        yield from _container(f"{subject}, container {name}", container, pod.containers.get(name), facts)


def _container(
    subject: str, expected: ContainerExpectation, container: ContainerFacts | None, facts: StoryFacts
) -> Iterator[Mismatch]:
    if container is None:
        yield Mismatch(subject, "has started", "it has not")
        return
    if expected.exit_code is not None and container.exit_code != expected.exit_code:
        got = "it has not ended" if container.exit_code is None else str(container.exit_code)
        yield Mismatch(f"{subject}, exit code", str(expected.exit_code), got, final=container.exit_code is not None)
    # a container without any reported variable may not have printed them yet: "not set" proves nothing then
    yield from _values(subject, "environment", expected.environment, container.environment or None, facts)
    yield from _values(subject, "device_nodes", expected.device_nodes, container.device_nodes, facts)
    yield from _values(subject, "mounts", expected.mounts, container.mounts, facts)
    for name in ("cpuset", "memory_nodes"):
        if (numbers := getattr(expected, name)) is not None:
            yield from _numbers(f"{subject}, {name}", numbers, getattr(container, name))
    if expected.hugepages is not None and expected.hugepages != container.hugepages:
        wanted = _pages(expected.hugepages)
        yield Mismatch(
            f"{subject}, hugepages", wanted, _unknown(container.hugepages) or _pages(container.hugepages or {})
        )
    if expected.rdt_class is not None and expected.rdt_class != container.rdt_class:
        got_class = _unknown(container.rdt_class) or container.rdt_class or "none"
        yield Mismatch(f"{subject}, rdt_class", expected.rdt_class or "none", got_class)
    for claim, health in expected.health.items():
        reported = container.device_health.get(claim, {})
        for device, state in health.items() if isinstance(health, Mapping) else [("", health)]:
            got_health = (
                [item for identity, item in reported.items() if _is_of(device, identity)]
                if device
                else container.health.get(claim, ())
            )
            if not got_health or any(item != state for item in got_health):
                what = f"device {device} of {claim}" if device else claim
                yield Mismatch(f"{subject}, health of {what}", state, ", ".join(got_health) or "not reported")
    for text in expected.output:
        if text not in container.output:
            end = container.output[-_SHOWN:]
            got = end if end == container.output else f"… {end}"  # the mark lets a recording find the rest of a Secret
            yield Mismatch(f"{subject}, output", f"contains {text!r}", repr(got))


def _is_of(device: str, identity: str) -> bool:
    """Return whether a ``resourceID`` is that of a device, ``<device>`` or ``<pool>/<device>``.

    It is the kubelet's ``<driver>/<pool>/<device>``, or a CDI name: one of :func:`claim_device_name`, or one that
    another driver chose, which is expected to be that of the device. A device plugin chooses any text.
    """
    pool, _, name = device.rpartition("/")
    _, is_cdi, cdi_name = identity.partition("=")
    parts = cdi_name.split(":")
    if is_cdi and len(parts) < 4:
        return cdi_name == name and not pool
    owner, _, found = identity.rpartition("/")
    place = owner.partition("/")[2]
    if is_cdi:
        place, found = parts[2:4]
    return found == name and pool.replace("/", "_") in {"", place.replace("/", "_")}


def _interfaces(subject: str, expected: Sequence[str], names: Sequence[str] | None) -> Iterator[Mismatch]:
    if names is None:
        yield Mismatch(subject, ", ".join(expected) or "none", "not known; have a container run cat /proc/net/dev")
    elif sorted(expected) != sorted(names):
        yield Mismatch(subject, ", ".join(expected) or "none", ", ".join(names) or "none")


def _numbers(subject: str, expected: str, found: str | None) -> Iterator[Mismatch]:
    if found is None:
        yield Mismatch(subject, expected or "all", "not known; have the container run cat /proc/self/status")
    elif parse_numbers(expected) != parse_numbers(found):
        yield Mismatch(subject, expected or "all", found or "all")


def _pages(limits: Mapping[str, int]) -> str:
    return ", ".join(f"{size}: {limit}" for size, limit in sorted(limits.items())) or "no limit"


def _unknown(value: object) -> str:
    return "not known on a real cluster; leave it out there" if value is None else ""


def _values(
    subject: str,
    kind: Kind,
    expected: Mapping[str, ValueExpectation],
    values: Mapping[str, str] | None,
    facts: StoryFacts,
) -> Iterator[Mismatch]:
    title, there = _WORDS[kind]
    for name, value in expected.items():
        got = (values or {}).get(name)
        wanted, met = _judge(kind, value, got, facts)
        if values is None:
            yield Mismatch(f"{subject}, {title.format(name)}", wanted, f"not {there}{_HINTS[kind]}")
        elif not met:
            yield Mismatch(f"{subject}, {title.format(name)}", wanted, f"not {there}" if got is None else repr(got))


def _judge(kind: Kind, expected: ValueExpectation, value: str | None, facts: StoryFacts) -> tuple[str, bool]:
    """Return a text for the expectation, and whether it is met."""
    there = _WORDS[kind][1]
    if expected.absent:
        return f"not {there}", value is None
    if expected.present:
        return there, value is not None
    if expected.pattern is not None:
        return f"fits {expected.pattern!r}", value is not None and re.fullmatch(expected.pattern, value) is not None
    if expected.same_as is not None:
        other = _look_up(facts.pods, kind, expected.same_as)
        text = f"which is not {there}" if other is None else f"which is {other!r}"
        return f"the same as {expected.same_as}, {text}", other is not None and value == other
    return repr(expected.equals), value == expected.equals


def _look_up(pods: Mapping[str, PodFacts], kind: Kind, reference: str) -> str | None:
    pod, container, name = reference.split("/", 2)
    found = pods[pod].containers.get(container) if pod in pods else None
    values: Mapping[str, str] | None = getattr(found, kind) if found else None
    return (values or {}).get(name)


def _message(subject: str, expected: Sequence[str], messages: Sequence[str], namespace: str) -> Iterator[Mismatch]:
    wanted = [text.replace("{namespace}", namespace) for text in expected]
    if wanted and not any(all(text in message for text in wanted) for message in messages):
        got = " | ".join(messages) or "nothing"
        yield Mismatch(f"{subject}, message", f"one that contains {' and '.join(map(repr, wanted))}", got)


def _claim(subject: str, expected: ClaimExpectation, claim: ClaimFacts | None, namespace: str) -> Iterator[Mismatch]:
    if claim is None:
        yield Mismatch(subject, "exists", "the claim does not exist")
        return
    for name, wanted, got in (
        ("devices", expected.devices, claim.devices),
        ("reserved for", expected.reserved_for, claim.reserved_for),
    ):
        if wanted is not None and sorted(wanted) != sorted(got):
            yield Mismatch(f"{subject}, {name}", ", ".join(wanted) or "none", ", ".join(got) or "none")
    yield from _message(subject, expected.message, claim.messages, namespace)
    for kind, status in expected.conditions.items():
        statuses = claim.conditions.get(kind, ())
        if not statuses or any(item != status for item in statuses):
            yield Mismatch(f"{subject}, condition {kind}", status, ", ".join(statuses) or "no device has it")


def _files(subject: str, expected: Sequence[str] | None, texts: Sequence[str] | None) -> Iterator[Mismatch]:
    if texts is None:
        return  # the run reports that this was not checked
    if expected is None:
        if texts:
            yield Mismatch(subject, "is not there", repr(texts[0][:300]))
        return
    if not any(all(part in text for part in expected) for text in texts):
        wanted = f"contains {' and '.join(map(repr, expected))}" if expected else "is there"
        yield Mismatch(subject, wanted, " | ".join(repr(text[:300]) for text in texts) or "it is not there")


def _devices_named(name: str, devices: Iterable[PublishedDevice]) -> list[PublishedDevice]:
    """Return the devices with a name, with or without their pool and driver."""
    return [
        device
        for device in devices
        if name in {device.name, f"{device.pool}/{device.name}", f"{device.driver}/{device.pool}/{device.name}"}
    ]


def _device(subject: str, expected: DeviceExpectation | None, devices: Sequence[PublishedDevice]) -> Iterator[Mismatch]:
    if expected is None:
        if devices:
            yield Mismatch(subject, "is not published", "it is")
        return
    if not devices:
        yield Mismatch(subject, "is published", "it is not")
        return
    if len(devices) > 1:
        names = " and ".join(sorted(f"{device.driver}/{device.pool}/{device.name}" for device in devices))
        yield Mismatch(subject, "is the name of one device", f"it is that of {names}; write one of these")
        return
    [device] = devices
    pairs: tuple[tuple[str, Mapping[str, object], Mapping[str, object]], ...] = (
        ("attribute", expected.attributes, device.attributes),
        ("capacity", expected.capacity, device.capacity),
    )
    for what, wanted, got in pairs:
        for name, value in wanted.items():
            if name not in got or not _is_same(got[name], value, is_amount=what == "capacity"):
                actual = repr(got[name]) if name in got else f"not given{_other_domain(name, got)}"
                yield Mismatch(f"{subject}, {what} {name}", repr(value), actual)


def _is_same(got: object, wanted: object, *, is_amount: bool) -> bool:
    if is_amount:
        with suppress(ValueError):
            return Quantity(str(got)) == Quantity(str(wanted))
    return repr(got) == repr(wanted)  # True == 1, but they are values of different types in the API


def _other_domain(name: str, names: Iterable[str]) -> str:
    """Return a hint if one of the names differs by its domain only."""
    plain = name.rpartition("/")[2]
    return next((f'; did you mean "{other}"?' for other in names if other.rpartition("/")[2] == plain), "")
