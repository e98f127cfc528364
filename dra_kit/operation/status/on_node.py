"""Asking the drivers of this node how they are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dra_kit.errors import ConfigurationError, Unavailable
from dra_kit.kubelet.sockets import operation_link, operation_links, operation_sockets
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.node.operation_socket import STATUS, ask


async def statuses(kubelet_dir: Path, driver: str | None = None) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a document for each driver, and a line for each process that does not answer.

    The document is that of the process that the kubelet calls. Where an update is under way, ``others`` has the
    documents of the driver's other processes, oldest first.

    Args:
        kubelet_dir: the kubelet's root directory.
        driver: the only one; None for all that are here.

    Raises:
        ConfigurationError: there is none here.
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
    """Return what is greatest for the process that the kubelet calls: the one that it registered last.

    Processes of an older release do not say when that was, and of them the one that began last was registered last.
    Where none is registered, it will be the one that does not wait for another.
    """
    registration = document.get("registration") or {}
    state = registration.get("state")
    return state == "registered", registration.get("at") or "", state != "deferred", str(document.get("started"))
