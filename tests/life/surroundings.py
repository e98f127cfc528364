"""Dependencies of the driver that disappear and return: the CDI directory, the Node, the API server."""

from __future__ import annotations

import signal
import time

from tests.crash.world import DRIVER
from tests.life.node import Node
from tests.life.scenarios import plays
from tests.life.switches import until


@plays("cdi-emptied")
def cdi_emptied(node: Node) -> None:
    [name] = node.order()
    node.served(name)
    node.check(status_written=1)
    for path in node.cdi.iterdir():
        path.unlink()
    node.orders.end_container(name)
    node.orders.wait_for_container(name, restarts=1)
    node.container_has(node.claim(name))
    node.check()
    node.release(name)
    node.check()


@plays("node-recreated")
def node_recreated(node: Node) -> None:
    [name] = node.order()
    node.served(name)
    node.check(status_written=1)
    former = node.node_uid()
    node.stop_kubelet(signal.SIGTERM)
    node.cluster.delete_node()
    node.start_kubelet()
    until("a new Node", lambda: node.node_uid() not in {former, ""})
    node.cluster.furnish_node()
    until("slices of the new Node", lambda: node.slice_owners() == [node.node_uid()])
    node.check(slice_created=1)
    node.release(name)
    node.check()


@plays("api-server-down")
def api_server_down(node: Node) -> None:
    first, second = node.orders.new_names(2)
    node.order(first)
    node.served(first)
    node.check(status_written=1)
    node.order(second, gate=second)
    node.switches.wait_at_gate(second)
    node.cluster.stop_api_server()
    began = time.monotonic()
    node.switches.open_gate(second)
    until("the second claim's file", lambda: len(list(node.cdi.glob(f"*{DRIVER}*.json"))) > 1)
    node.driver.stop(signal.SIGKILL)
    node.driver.start()
    until("the end of the outage", lambda: time.monotonic() > began + node.cluster.pace.outage)
    node.cluster.start_api_server()
    node.served(second)
    node.check(status_written=1)
    node.release(first, second)
    node.check()
