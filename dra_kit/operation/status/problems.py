"""What is wrong with a driver, by the document of its operation socket; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dra_kit.kubernetes.values.json import ObjectView

"""What ``GET /v1/status`` answers; another release may leave out what this one knows."""


def problems(document: ObjectView) -> list[str]:
    """Return a line for each thing that needs attention; none when all is well."""
    return [
        *_of_update(document),
        *_of_registration(document),
        *_of_parts(document),
        *_of_slices(document),
        *_of_effects(document),
        *_of_state(document),
    ]


def with_problems(document: ObjectView) -> dict[str, Any]:
    """Return the document with its problems, and those of the driver's other processes."""
    others = [with_problems(other) for other in listed(document, "others")]
    return {**document, "problems": problems(document), **({"others": others} if others else {})}


def listed(document: ObjectView, key: str) -> Sequence[Mapping[str, Any]]:
    """Return a list of the document; none where it could not be read."""
    found = document.get(key)
    return found if isinstance(found, list) else ()


def _of_update(document: ObjectView) -> Iterator[str]:
    for other in listed(document, "others"):
        if reason := waits_for(other):
            yield f"an update waits, and the kubelet calls the older process: {process(other)}: {reason}"


def process(document: ObjectView) -> str:
    """Return which process of a driver it is, as people read it."""
    pod = document.get("podUID")
    return f"pod {pod}" if pod else f"process {document.get('pid')}"


def waits_for(document: ObjectView) -> str:
    """Return what a process of an update waits for before it registers; empty where it does not wait."""
    registration = document.get("registration") or {}
    return str(registration.get("text")) if registration.get("state") == "deferred" else ""


def _of_registration(document: ObjectView) -> Iterator[str]:
    registration = document.get("registration") or {}
    if registration.get("state") == "refused":
        yield f"the kubelet refuses the driver: {registration.get('text')}"
    elif registration.get("state") == "deferred":
        yield str(registration.get("text"))
    elif registration.get("state") == "waiting":
        yield "no kubelet has registered the driver; is --kubelet-dir the kubelet's root directory?"


def _of_parts(document: ObjectView) -> Iterator[str]:
    deferred = waits_for(document)
    for name, part in (document.get("parts") or {}).items():
        if deferred and part.get("waitsFor") == deferred:
            continue  # reported with the registration
        if part.get("state") != "ready" and not part.get("after"):
            reason = part.get("waitsFor") or part.get("error")
            why = f": {reason}" if reason else ""
            yield f"part {name} is {part.get('state')}{why}"


def _of_slices(document: ObjectView) -> Iterator[str]:
    slices = document.get("slices") or {}
    if slices.get("discoverError"):
        yield f"discover fails: {slices['discoverError']}"
    if slices.get("lastError"):
        yield f"slices are not published: {slices['lastError']}"
    if slices.get("notRead"):
        yield f"published slices cannot be read: {slices['notRead']}"
    yield from slice_differences(document)


def slice_differences(document: ObjectView) -> Iterator[str]:
    """Yield how the published pools differ from those that are wanted, a line for each pool."""
    slices = document.get("slices") or {}
    if slices.get("wanted") is None or slices.get("published") is None:
        return
    wanted = {pool["pool"]: set(pool["devices"]) for pool in slices["wanted"]}
    published = {pool["pool"]: set(pool["devices"]) for pool in slices["published"]}
    for pool in sorted(wanted.keys() | published.keys()):
        has, shall = published.get(pool, set()), wanted.get(pool, set())
        parts = {"missing": shall - has, "too many": has - shall}
        differences = [f"{what}: {', '.join(sorted(names))}" for what, names in parts.items() if names]
        if differences:
            yield f"pool {pool} is not published as wanted; {'; '.join(differences)}"


def _of_effects(document: ObjectView) -> Iterator[str]:
    for effect in listed(document, "effects"):
        if effect.get("error"):
            yield f"effect {effect['effect']} on {', '.join(effect['keys'])} cannot be undone: {effect['error']}"


def _of_state(document: ObjectView) -> Iterator[str]:
    for key in ("devices", "claims", "effects", "state"):
        found = document.get(key)
        if isinstance(found, dict) and "notRead" in found:
            yield f"{key}: {found['notRead']}"
    state = document.get("state") or {}
    yield from state.get("damaged") or ()
    if "transactions" in (state.get("incomplete") or ()):
        yield "the state has lost transactions; look at the disk below --state-dir"
