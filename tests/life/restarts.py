"""Restarts of kubelet, driver, or both, at three moments of a claim's life."""

from __future__ import annotations

import signal

from tests.life.node import Node
from tests.life.scenarios import Play, plays

SIGNALS = {"restarted": signal.SIGTERM, "killed": signal.SIGKILL}
WHO = {"kubelet": ("kubelet",), "driver": ("driver",), "both": ("kubelet", "driver")}


@plays("driver-after-kubelet")
def driver_after_kubelet(node: Node) -> None:
    [name] = node.order()
    node.served(name)
    node.check(status_written=1)
    node.release(name)
    node.check()


@plays("driver-before-kubelet")
def driver_before_kubelet(node: Node) -> None:
    node.driver.stop(signal.SIGTERM)
    node.stop_kubelet(signal.SIGTERM)
    node.driver.start(registered=False)
    node.start_kubelet()
    [name] = node.order()
    node.served(name)
    # a kubelet that starts wipes what is published for its node
    node.check(slice_created=1, status_written=1)
    node.release(name)
    node.check()


def again(node: Node, who: tuple[str, ...], number: signal.Signals) -> int:
    """End all of them, then start them; how many slices must be made then."""
    if "driver" in who:
        node.driver.stop(number)
    if "kubelet" in who:
        node.stop_kubelet(number)
    if "driver" in who:
        node.driver.start(registered="kubelet" not in who)
    if "kubelet" in who:
        node.start_kubelet()
    return int("kubelet" in who)


def prepared(who: tuple[str, ...], number: signal.Signals) -> Play:
    def play(node: Node) -> None:
        [name] = node.order(coating="teflon")
        node.served(name)
        node.check(status_written=1)
        wiped = again(node, who, number)
        node.check(slice_created=wiped)
        node.release(name)
        node.check()

    return play


def in_prepare(who: tuple[str, ...], number: signal.Signals) -> Play:
    def play(node: Node) -> None:
        [name] = node.orders.new_names(1)
        node.order(name, hot_gate=name)
        node.switches.wait_at_gate(name)
        wiped = again(node, who, number)
        node.switches.open_gate(name)
        node.served(name)
        node.check(slice_created=wiped, status_written=1)
        node.release(name)
        node.check()

    return play


def in_unprepare(who: tuple[str, ...], number: signal.Signals) -> Play:
    def play(node: Node) -> None:
        [name] = node.order()
        node.served(name)
        node.switches.close_gate(name)
        node.orders.delete([name])
        node.switches.wait_at_gate(name)
        wiped = again(node, who, number)
        node.switches.open_gate(name)
        node.gone(name)
        node.check(slice_created=wiped, status_written=1)

    return play


for _who, _parts in WHO.items():
    for _how, _number in SIGNALS.items():
        for _when, _play in {"prepared": prepared, "in-prepare": in_prepare, "in-unprepare": in_unprepare}.items():
            plays(f"{_who}-{_how}-{_when}")(_play(_parts, _number))
