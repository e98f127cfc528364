"""What tells of a node: its operation socket and its numbers, wired to what there is to tell of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dra_kit.node.operation.measured import MeasuredService
from dra_kit.node.operation.server import OperationServer
from dra_kit.node.operation.status import NodeStatus, NodeView
from dra_kit.node.settings import NodeSettings
from dra_kit.operation.socket import STATUS, WHO
from dra_kit.plugin.sockets import operation_link, operation_socket
from dra_kit.process.metrics.registry import Metrics
from dra_kit.process.watchdog import Watchdog

if TYPE_CHECKING:
    from dra_kit.process.metrics.families import Reading


def operation_of(
    view: NodeView,
    settings: NodeSettings,
    *,
    calls: MeasuredService,
    watchdog: Watchdog,
    kopf_restarts: Callable[[], int],
    metrics: Metrics,
    serving: asyncio.Event,
) -> OperationServer:
    """Return the operation socket of a node; its numbers are among the process's from now on.

    Args:
        view: what there is to look at.
        settings: of the node.
        calls: of the kubelet.
        watchdog: of the event loop that this is called in.
        kopf_restarts: how often kopf was started again.
        metrics: of the process.
        serving: set once the kubelet calls this process.

    Raises:
        ConfigurationError: the path of the socket is too long.
    """
    driver, prepared = view.prepared.driver, view.prepared
    loop = asyncio.get_running_loop()

    def readings() -> Iterator[Reading]:
        from dra_kit.node.operation.readings import NodeReadings  # when somebody asks for numbers

        return NodeReadings(view, loop, calls, watchdog, kopf_restarts)()

    metrics.read(readings, driver=driver)

    async def who() -> Mapping[str, Any]:
        uses = await prepared.in_use()
        return {"driver": driver, "node": prepared.node, "devices": [use.to_json() for use in uses]}

    return OperationServer(
        operation_socket(settings.kubelet_dir, driver, settings.pod_uid),
        operation_link(settings.kubelet_dir, driver),
        {WHO: who, STATUS: NodeStatus(view).document},
        metrics.text,
        serving,
    )
