"""How a driver is, as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import indent
from typing import Any

from dra_kit.kubelet.device_use import DeviceUse
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.operation.status.problems import listed, problems, process, slice_differences
from dra_kit.operation.table import table
from dra_kit.text import escape_unprintable


def status_text(document: ObjectView) -> str:
    """Return all of it, the problems first."""
    return "\n".join(_lines(document))


def _lines(document: ObjectView) -> Iterator[str]:
    driver, node = document.get("driver"), document.get("node")
    yield escape_unprintable(f"{driver} on {node}: dra-kit {document.get('release')}, since {document.get('started')}")
    found = problems(document)
    for line in found:
        yield escape_unprintable(f"  ! {line}")
    if not found:
        yield "  all is well"
    yield from _section("Kubelet", [_registration(document.get("registration") or {})])
    if others := listed(document, "others"):
        yield from _section("Processes", [_processes([document, *others])])
    yield from _section("Slices", list(_slices(document)))
    uses = [DeviceUse.from_json(item) for item in listed(document, "devices")]
    yield from _section("Devices in use", [_devices(uses)] if uses else ["none"])
    unfinished = [item for item in listed(document, "claims") if item.get("phase") != "prepared"]
    if unfinished:
        rows = [[f"{item['namespace']}/{item['name']}", item["uid"], item["phase"]] for item in unfinished]
        yield from _section("Claims under way", [table(("CLAIM", "UID", "PHASE"), rows)])
    effects = listed(document, "effects")
    if effects:
        yield from _section("Effects", [_effects(effects)])
    ill = [item for item in listed(document, "health") if item.get("health") != "Healthy"]
    if ill:
        rows = [[item["pool"], item["device"], item["health"], item["message"]] for item in ill]
        yield from _section("Devices not known to be healthy", [table(("POOL", "DEVICE", "HEALTH", "MESSAGE"), rows)])
    failures = listed(document, "failures")
    if failures:
        yield from _section("Last failures", list(_failures(failures)))


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    yield ""
    yield title
    yield from (indent(line, "  ") for line in lines)


def _registration(registration: Mapping[str, Any]) -> str:
    text = f": {registration['text']}" if registration.get("text") else ""
    return escape_unprintable(f"{registration.get('state', 'not known')}{text}")


def _processes(documents: Sequence[ObjectView]) -> str:
    """Return a row for each process of the driver; the first is the one that the kubelet calls."""
    rows = []
    for number, document in enumerate(documents):
        state = (document.get("registration") or {}).get("state", "not known")
        called = state == "registered" and not number
        missing = ", ".join(
            name
            for name, part in (document.get("parts") or {}).items()
            if part.get("state") != "ready" and not part.get("after") and name != "kubelet"
        )
        rows.append(
            [
                process(document), str(document.get("started")), str(document.get("release")),
                "calls it" if called else str(state), f"waits for {missing}" if missing else "can serve",
            ]
        )  # fmt: skip
    return table(("PROCESS", "SINCE", "DRA-KIT", "KUBELET", "STATE"), rows)


def _slices(document: ObjectView) -> Iterator[str]:
    slices = document.get("slices") or {}
    different = {line.split()[1] for line in slice_differences(document)}
    for pool in slices.get("published") or ():
        fit = "not as wanted" if pool["pool"] in different else "as wanted"
        yield escape_unprintable(
            f"pool {pool['pool']}: generation {pool['generation']}, {_count(len(pool['devices']), 'device')} in "
            f"{_count(pool['slices'], 'slice')}, {fit}"
        )
    if not slices.get("published"):
        yield "none is published" if slices.get("published") is not None else "not known"
    if slices.get("wanted") is None:
        yield "discover has not yielded an inventory yet"
    if slices.get("lastPublished"):
        yield f"last published: {slices['lastPublished']}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _devices(uses: Sequence[DeviceUse]) -> str:
    headings = ("POOL", "DEVICE", "SHARE", "HARDWARE", "CLAIM", "POD", "CONTAINER")
    rows = [
        [
            use.pool, use.device, use.share, ",".join(use.hardware_ids), f"{use.namespace}/{use.claim}", use.pod,
            use.container,
        ]
        for use in sorted(uses)
    ]  # fmt: skip
    return table(headings, rows)


def _effects(effects: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [item["effect"], ",".join(item["keys"]), item["state"], ",".join(item["claims"]), item["error"]]
        for item in effects
    ]
    return table(("EFFECT", "TOUCHES", "STATE", "CLAIMS", "ERROR"), rows)


def _failures(failures: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for item in failures:
        times = f", {item['times']} times" if item["times"] > 1 else ""
        yield escape_unprintable(
            f"{item['at']} {item['namespace']}/{item['claim']} [{item['code']}]{times}: {item['message']}"
        )
