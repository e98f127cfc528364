"""Asking the drivers of this node how they are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dra_kit.errors import ConfigurationError, Unavailable
from dra_kit.operation.socket import STATUS, ask
from dra_kit.plugin.sockets import operation_link, operation_links


async def statuses(kubelet_dir: Path, driver: str | None = None) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the documents of drivers, and a line for each that does not answer.

    Args:
        kubelet_dir: the kubelet's root directory.
        driver: the only one; None for all that are here.

    Raises:
        ConfigurationError: there is none here.
    """
    links = operation_links(kubelet_dir) if driver is None else [operation_link(kubelet_dir, driver)]
    if not links:
        raise ConfigurationError(
            f"no driver of dra-kit is below {kubelet_dir}/plugins: run this on a node, as root or in the driver's pod "
            "(kubectl exec ds/NAME-node -- dra-kit status), or correct --kubelet-dir"
        )
    answers: Sequence[dict[str, Any] | BaseException] = await asyncio.gather(
        *(ask(link, STATUS, timeout=30) for link in links), return_exceptions=True
    )
    documents, silent = [], []
    for answer in answers:
        if isinstance(answer, Unavailable):
            silent.append(str(answer))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            documents.append(answer)
    return documents, silent
