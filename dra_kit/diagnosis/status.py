"""The status of a node's drivers: read from their sockets, checked for problems, rendered as text."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

from dra_kit.diagnosis.who import table
from dra_kit.errors import ConfigurationError, Unavailable
from dra_kit.kubelet.device_use import DeviceUse
from dra_kit.kubelet.sockets import operation_link, operation_links, operation_sockets
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.node.operation_socket import STATUS, ask
from dra_kit.text import counted, escape_unprintable


def status_text(document: ObjectView) -> str:
    """Return the status as text, problems first."""
    return "\n".join(_lines(document))


def _lines(document: ObjectView) -> Iterator[str]:
    driver, node = document.get("driver"), document.get("node")
    yield escape_unprintable(f"{driver} on {node}: dra-kit {document.get('release')}, since {document.get('started')}")
    found = status_problems(document)
    for line in found:
        yield escape_unprintable(f"  ! {line}")
    if not found:
        yield "  all is well"
    yield from _section("Kubelet", [_registration(document.get("registration") or {})])
    if runtime := document.get("containerRuntime"):
        yield from _section("Container runtime", [_runtime(runtime)])
    if others := listed(document, "others"):
        yield from _section("Processes", [_processes([document, *others])])
    yield from _section("Slices", list(_slices(document)))
    uses = sorted((DeviceUse.from_json(item), bool(item.get("gone"))) for item in listed(document, "devices"))
    yield from _section("Devices in use", [_devices(uses)] if uses else ["none"])
    for title, headings, rows in _tables(document):
        if rows:
            yield from _section(title, [table(headings, rows)])
    failures = listed(document, "failures")
    if failures:
        yield from _section("Last failures", list(_failures(failures)))


def _tables(document: ObjectView) -> Iterator[tuple[str, Sequence[str], list[list[str]]]]:
    """Yield the tables that are shown only with rows: title, headings, rows."""
    claims = [item for item in listed(document, "claims") if item.get("phase") != "prepared"]
    rows = [[f"{item['namespace']}/{item['name']}", item["uid"], item["phase"]] for item in claims]
    yield "Claims under way", ("CLAIM", "UID", "PHASE"), rows
    rows = [
        [_effect(item), ",".join(item["keys"]), item["state"], ",".join(item["claims"]), item["error"]]
        for item in listed(document, "effects")
    ]
    yield "Effects", ("EFFECT", "TOUCHES", "STATE", "CLAIMS", "ERROR"), rows
    unhealthy = [item for item in listed(document, "health") if item.get("health") != "Healthy"]
    rows = [[item["pool"], item["device"], item["health"], item["message"]] for item in unhealthy]
    yield "Devices not known to be healthy", ("POOL", "DEVICE", "HEALTH", "MESSAGE"), rows


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    yield ""
    yield title
    yield from (indent(line, "  ") for line in lines)


def _registration(registration: Mapping[str, Any]) -> str:
    text = f": {registration['text']}" if registration.get("text") else ""
    return escape_unprintable(f"{registration.get('state', 'not known')}{text}")


def _runtime(runtime: Mapping[str, Any]) -> str:
    """Return whether pod hooks run."""
    if runtime.get("connected"):
        return escape_unprintable(f"connected: {runtime.get('runtime')} at {runtime.get('socket')}")
    return escape_unprintable(f"not connected: {runtime.get('text')}")


def _processes(documents: Sequence[ObjectView]) -> str:
    """Return a row for each process of the driver, first the one that the kubelet calls."""
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
            f"pool {pool['pool']}: generation {pool['generation']}, {counted(len(pool['devices']), 'device')} in "
            f"{counted(pool['slices'], 'slice')}, {fit}"
        )
    if not slices.get("published"):
        yield "none is published" if slices.get("published") is not None else "not known"
    if slices.get("wanted") is None:
        yield "discover has not yielded an inventory yet"
    if slices.get("lastPublished"):
        yield f"last published: {slices['lastPublished']}"


def _devices(uses: Sequence[tuple[DeviceUse, bool]]) -> str:
    """Return a row for each use; a device that is not in the inventory any more is marked."""
    headings = ("POOL", "DEVICE", "SHARE", "HARDWARE", "CLAIM", "POD", "CONTAINER")
    rows = [
        [
            use.pool, f"{use.device} (gone)" if gone else use.device, use.share, ",".join(use.hardware_ids),
            f"{use.namespace}/{use.claim}", use.pod, use.container,
        ]
        for use, gone in uses
    ]  # fmt: skip
    return table(headings, rows)


def _failures(failures: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for item in failures:
        times = f", {item['times']} times" if item["times"] > 1 else ""
        yield escape_unprintable(
            f"{item['at']} {item['namespace']}/{item['claim']} [{item['code']}]{times}: {item['message']}"
        )


async def statuses(kubelet_dir: Path, driver: str | None = None) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a status document for each driver on this node, and a line for each process that does not answer.

    The document is from the process that the kubelet calls. During an update, ``others`` has the documents of the
    driver's other processes, oldest first.

    Raises:
        ConfigurationError: this node has no driver.
    """
    drivers = [link.parent.name for link in operation_links(kubelet_dir)] if driver is None else [driver]
    if not drivers:
        raise ConfigurationError(
            f"no driver of dra-kit is below {kubelet_dir}/plugins: run this on a node, as root or in the driver's pod "
            "(kubectl exec ds/NAME-node -- dra-kit status), or correct --kubelet-dir"
        )
    answers = await asyncio.gather(*(_of_driver(kubelet_dir, name) for name in drivers))
    documents = [document for document, _ in answers if document is not None]
    return documents, [line for _, lines in answers for line in lines]


async def _of_driver(kubelet_dir: Path, driver: str) -> tuple[dict[str, Any] | None, list[str]]:
    sockets = operation_sockets(kubelet_dir, driver) or [operation_link(kubelet_dir, driver)]
    answers: Sequence[dict[str, Any] | BaseException] = await asyncio.gather(
        *(ask(socket, STATUS, timeout=30) for socket in sockets), return_exceptions=True
    )
    documents, silent = [], []
    for answer in answers:
        if isinstance(answer, Unavailable):
            silent.append(str(answer))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            documents.append(answer)
    if not documents:
        return None, silent
    called = max(documents, key=_called)
    others = sorted((item for item in documents if item is not called), key=lambda item: str(item.get("started")))
    return (called | {"others": others} if others else called), silent


def _called(document: ObjectView) -> tuple[bool, str, bool, str]:
    """Return a sort key, greatest for the process that the kubelet calls: the one that it registered last.

    Processes of older releases do not report that time; there the process that started last was registered last.
    If none is registered, the process that does not wait for another one will be.
    """
    registration = document.get("registration") or {}
    state = registration.get("state")
    return state == "registered", registration.get("at") or "", state != "deferred", str(document.get("started"))


def status_problems(document: ObjectView) -> list[str]:
    """Return a line for each problem."""
    return [
        *_of_update(document),
        *_of_registration(document),
        *_of_parts(document),
        *_of_slices(document),
        *_of_devices(document),
        *_of_effects(document),
        *_of_state(document),
    ]


def with_problems(document: ObjectView) -> dict[str, Any]:
    """Return the document with its problems, and those of the driver's other processes."""
    others = [with_problems(other) for other in listed(document, "others")]
    return {**document, "problems": status_problems(document), **({"others": others} if others else {})}


def listed(document: ObjectView, key: str) -> Sequence[Mapping[str, Any]]:
    """Return a list of the document; empty if it could not be read."""
    found = document.get(key)
    return found if isinstance(found, list) else ()


def _of_update(document: ObjectView) -> Iterator[str]:
    for other in listed(document, "others"):
        if reason := waits_for(other):
            yield f"an update waits, and the kubelet calls the older process: {process(other)}: {reason}"


def process(document: ObjectView) -> str:
    """Return a name for the process: its pod, or its PID."""
    pod = document.get("podUID")
    return f"pod {pod}" if pod else f"process {document.get('pid')}"


def waits_for(document: ObjectView) -> str:
    """Return what a process waits for before it registers during an update; empty if it does not wait."""
    registration = document.get("registration") or {}
    return str(registration.get("text")) if registration.get("state") == "deferred" else ""


def _of_registration(document: ObjectView) -> Iterator[str]:
    registration = document.get("registration") or {}
    if registration.get("state") == "refused":
        yield f"the kubelet rejects the driver: {registration.get('text')}"
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
    """Yield a line for each pool that is published differently than wanted."""
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


def _of_devices(document: ObjectView) -> Iterator[str]:
    gone: dict[tuple[str, str], list[DeviceUse]] = {}
    for item in listed(document, "devices"):
        if item.get("gone"):
            use = DeviceUse.from_json(item)
            gone.setdefault((use.pool, use.device), []).append(use)
    for (pool, device), uses in gone.items():
        claims = ", ".join(dict.fromkeys(f"{use.namespace}/{use.claim}" for use in uses))
        pods = ", ".join(dict.fromkeys(f"{use.namespace}/{use.pod}" for use in uses if use.pod))
        yield (
            f"device {pool}/{device} of claim {claims} is not in the inventory any more; if it does not come back, "
            f"delete pod {pods or 'of the claim'}, or evict it with a DeviceTaintRule for driver "
            f"{document.get('driver')}, pool {pool}, device {device} with effect NoExecute"
        )


def _of_effects(document: ObjectView) -> Iterator[str]:
    for effect in listed(document, "effects"):
        if effect.get("error"):
            yield f"effect {_effect(effect)} on {', '.join(effect['keys'])} cannot be undone: {effect['error']}"


def _effect(effect: Mapping[str, Any]) -> str:
    """Return the title of an effect; releases that report none have only the id."""
    return str(effect.get("title") or effect["effect"])


def _of_state(document: ObjectView) -> Iterator[str]:
    for key in ("devices", "claims", "effects", "state"):
        found = document.get(key)
        if isinstance(found, dict) and "notRead" in found:
            yield f"{key}: {found['notRead']}"
    state = document.get("state") or {}
    yield from state.get("corrupt") or ()
    if "transactions" in (state.get("incomplete") or ()):
        yield "the state has lost transactions; check the disk below --state-dir"
