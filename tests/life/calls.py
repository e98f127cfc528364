"""Calls of the kubelet that fail, that take too long, or that are concurrent."""

from __future__ import annotations

import signal
import time

from tests.life.node import Node
from tests.life.scenarios import plays
from tests.life.switches import until


@plays("prepare-fails-twice")
def prepare_fails_twice(node: Node) -> None:
    [name] = node.orders.new_names(1)
    node.switches.fail(name, "the dough has not risen", "the oven is cold")
    node.order(name)
    node.served(name)
    node.check(event_written=2, status_written=1)
    assert node.orders.driver_events(name) == [
        f"on node {node.node}: the dough has not risen",
        f"on node {node.node}: the oven is cold",
    ]
    node.release(name)
    node.check()


@plays("registration-v1")
def registration_v1(node: Node) -> None:
    _offering(node, "v1")


@plays("registration-v1beta1")
def registration_v1beta1(node: Node) -> None:
    _offering(node, "v1beta1")


def _offering(node: Node, dra_versions: str) -> None:
    node.driver.stop(signal.SIGTERM)
    node.driver.start(dra_versions=dra_versions)
    [name] = node.order()
    node.served(name)
    node.check(status_written=1)
    node.release(name)
    node.driver.stop(signal.SIGTERM)
    node.driver.start()
    node.check()


@plays("fifty-pods")
def fifty_pods(node: Node) -> None:
    names = node.orders.new_names(50)
    node.order(*names)
    node.served(*names)
    node.check(status_written=50)
    node.release(*names)
    node.check()


@plays("prepare-too-slow")
def prepare_too_slow(node: Node) -> None:
    [name] = node.orders.new_names(1)
    node.order(name, hot_gate=name)
    node.switches.wait_at_gate(name)
    until("the driver's Event", lambda: node.orders.driver_events(name))
    [event] = node.orders.driver_events(name)
    assert f"not prepared within {node.cluster.pace.deadline:g} s" in event
    node.switches.open_gate(name)
    node.served(name)
    node.check(event_written=1, status_written=1)
    node.release(name)
    node.check()


@plays("kubelet-deadline-missed")
def kubelet_deadline_missed(node: Node) -> None:
    [name] = node.orders.new_names(1)
    node.order(name, gate=name)
    node.switches.wait_at_gate(name)
    node.driver.send(signal.SIGSTOP)
    node.switches.open_gate(name)
    until("the kubelet to give up", lambda: "DeadlineExceeded" in node.orders.kubelet_events(name))
    node.driver.send(signal.SIGCONT)
    node.served(name)
    node.check(event_written=1, status_written=1)
    node.release(name)
    node.check()


@plays("quiet")
def quiet(node: Node) -> None:
    [name] = node.order()
    node.served(name)
    node.check(status_written=1)
    time.sleep(node.cluster.pace.look)  # nothing happens in it, and that is the point
    node.check()
    node.release(name)
    node.check()
