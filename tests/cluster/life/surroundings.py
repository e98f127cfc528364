"""What the driver stands on goes and comes back: the CDI directory, the Node, the API server."""

from __future__ import annotations

import signal
import time

from tests.cluster.life.node import Node
from tests.cluster.life.scenarios import plays
from tests.cluster.life.switches import until
from tests.crash.world import DRIVER

OUTAGE_SECONDS = 60.0


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
    labels = node.plane.get("node", node.node)["metadata"]["labels"]
    node.stop_kubelet(signal.SIGTERM)
    node.plane.kubectl("delete", "node", node.node)
    node.start_kubelet()
    until("a new Node", lambda: node.node_uid() not in {former, ""})
    node.plane.kubectl("label", "node", node.node, "--overwrite", *(f"{key}={labels[key]}" for key in labels))
    node.driver.new_token()  # the kubelet does so for a pod
    until("slices of the new Node", lambda: node.slice_owners() == [node.node_uid()])
    node.check(slice_created=1)
    node.release(name)
    node.check()


@plays("api-server-down")
def api_server_down(node: Node) -> None:
    first, second = node.orders.new_names(2)
    node.order(first)
    node.served(first)
    node.order(second, gate=second)
    node.switches.wait_at_gate(second)
    node.check(status_written=1)
    node.plane.component("stop", "kube-apiserver")
    began = time.monotonic()
    node.switches.open_gate(second)
    until("the second claim's file", lambda: len(list(node.cdi.glob(f"*{DRIVER}*.json"))) > 1)
    node.driver.stop(signal.SIGKILL)
    node.driver.start()
    until("the end of the outage", lambda: time.monotonic() > began + OUTAGE_SECONDS)
    node.plane.component("start", "kube-apiserver")
    node.api_server_answers()
    node.writes.restarted()
    node.served(second)
    node.check(status_written=1)
    node.release(first, second)
    node.check()
