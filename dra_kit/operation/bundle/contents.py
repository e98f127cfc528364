"""What goes into a bundle: read from the cluster and from this node, each part for itself."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from dra_kit import __version__
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.client.resources import DEVICE_CLASSES, EVENTS, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dra_kit.errors import DraKitError
from dra_kit.kubelet.sockets import operation_link
from dra_kit.node.operation_socket import METRICS, WHO, ask, ask_text
from dra_kit.operation.bundle import redaction
from dra_kit.operation.checks.all import Wanted, findings
from dra_kit.operation.status.on_node import statuses
from dra_kit.operation.who.in_cluster import device_uses

LOG_LINES: Final = 5000
"""Lines of each container's log."""

_NAME_LABEL: Final = "app.kubernetes.io/name"


class Bundle(Struct):
    """What was gathered.

    Attributes:
        files: by name, as they were read.
        missing: what could not be read and why, a line each.
        words: that must not be in any file.
    """

    files: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    words: set[str] = field(default_factory=set)

    def add_json(self, name: str, value: object) -> None:
        """Add a document."""
        self.files[name] = json.dumps(value, indent=1, ensure_ascii=False) + "\n"

    async def attempt(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do a part of the work; report where it fails."""
        try:
            await work()
        except DraKitError as error:
            self.missing.append(f"{what}: {error}")

    def safe_files(self) -> dict[str, str]:
        """Return all files without secrets, with an index of what there is and what is not."""
        index = {"release": __version__, "files": sorted(self.files), "missing": self.missing}
        files = {**self.files, "index.json": json.dumps(index, indent=1, ensure_ascii=False) + "\n"}
        hidden = redaction.HiddenWords(self.words)
        return {
            name: hidden.safe_json(text) if name.endswith(".json") else hidden.safe_text(text)
            for name, text in files.items()
        }


async def gather(driver: str, credentials: Credentials | None, kubelet_dir: Path, why: str = "") -> Bundle:
    """Read everything that may be read.

    Args:
        driver: its name.
        credentials: of the cluster; None where there are none.
        kubelet_dir: the kubelet's root directory, where this is a node.
        why: there are no credentials.
    """
    bundle = Bundle(words=redaction.words_of_environment(os.environ))
    if credentials is None:
        bundle.missing.append(f"objects and logs: {why}")
    else:
        async with Client(credentials, user_agent=f"dra-kit/{__version__} support-bundle", timeout=60) as client:
            await _of_cluster(client, driver, bundle)

    async def check() -> None:
        checked = await findings(Wanted(driver=driver, kubelet_dir=_if_node(kubelet_dir)), credentials, why)
        bundle.files["check.txt"] = "".join(f"{item}\n" for item in checked)

    await bundle.attempt("check", check)
    link = operation_link(kubelet_dir, driver)
    if link.is_symlink():
        await _of_node(driver, kubelet_dir, bundle)
    else:
        bundle.missing.append(f"status: no driver's socket {link}; run this on a node, or in the driver's pod")
    return bundle


def _if_node(kubelet_dir: Path) -> Path | None:
    return kubelet_dir if kubelet_dir.is_dir() else None


async def _of_node(driver: str, kubelet_dir: Path, bundle: Bundle) -> None:
    link = operation_link(kubelet_dir, driver)

    async def status() -> None:
        documents, silent = await statuses(kubelet_dir, driver)  # of all its processes, while it is updated
        for document in documents:
            bundle.add_json("node/status.json", document)
        bundle.missing += [f"status: {line}" for line in silent]

    async def who() -> None:
        bundle.add_json("node/who.json", await ask(link, WHO))

    async def metrics() -> None:
        bundle.files["node/metrics.txt"] = await ask_text(link, METRICS)

    for what, work in (("status", status), ("who", who), ("metrics", metrics)):
        await bundle.attempt(what, work)


class _Part(Struct, frozen=True):
    """Objects of one kind: which the server selects, and which of those are the driver's."""

    resource: Resource
    keep: Callable[[Mapping[str, Any]], bool] = lambda _: True
    field_selector: str = ""
    label_selector: str = ""


async def _of_cluster(client: Client, driver: str, bundle: Bundle) -> None:
    parts = (
        _Part(RESOURCE_SLICES, field_selector=f"spec.driver={driver}"),
        _Part(DEVICE_CLASSES),
        _Part(RESOURCE_CLAIMS, keep=lambda claim: driver in _drivers(claim)),
        _Part(PODS, label_selector=f"{_NAME_LABEL}={driver}"),
        _Part(NODES),
        _Part(EVENTS, keep=lambda event: event.get("reportingController") == driver),
    )
    read = {part.resource.kind: await _objects(client, part, bundle) for part in parts}
    own = read["Pod"]
    bundle.words |= redaction.words_of_pods(own)
    uses = device_uses(read["ResourceClaim"], (), read["ResourceSlice"])
    bundle.add_json("who.json", [use.to_json() for use in uses if use.driver == driver])
    for pod in own:
        await _logs(client, pod, bundle)


async def _objects(client: Client, part: _Part, bundle: Bundle) -> Sequence[dict[str, Any]]:
    """Return the objects as they are; those in the bundle are safe ones."""
    resource = part.resource
    try:
        listed = await client.list(resource, field_selector=part.field_selector, label_selector=part.label_selector)
    except DraKitError as error:
        bundle.missing.append(f"{resource.plural}: {error}")
        return ()
    found = [item for item in listed.items if part.keep(item)]
    bundle.words |= redaction.hidden_words(found)
    bundle.add_json(f"objects/{resource.plural}.json", [redaction.safe_object(resource.kind, item) for item in found])
    return found


def _drivers(claim: Mapping[str, Any]) -> set[str]:
    devices = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    return {result["driver"] for result in devices.get("results") or ()}


async def _logs(client: Client, pod: Mapping[str, Any], bundle: Bundle) -> None:
    namespace, name = pod["metadata"].get("namespace", ""), pod["metadata"]["name"]
    for container in pod["spec"].get("containers") or ():
        try:
            text = await client.log(name, namespace, container["name"], tail=LOG_LINES)
        except DraKitError as error:
            bundle.missing.append(f"log of {namespace}/{name}: {error}")
        else:
            bundle.files[f"logs/{namespace}_{name}_{container['name']}.log"] = text
