"""Claims that are released while the driver or the kubelet is down, or that are never released."""

from __future__ import annotations

import signal

from tests.life import manifests
from tests.life.node import Node
from tests.life.scenarios import plays
from tests.life.switches import until

WIPING_SECONDS = 180.0  # the kubelet begins after 30 s (Kubernetes 1.37, defaultWipingDelay)


@plays("deleted-while-driver-down")
def deleted_while_driver_down(node: Node) -> None:
    first, second = node.orders.new_names(2)
    node.order(first, second)
    node.served(first, second)
    node.check(status_written=2)
    node.driver.stop(signal.SIGKILL)
    node.orders.delete([first])
    node.driver.start()
    node.gone(first)
    node.check()
    node.release(second)
    node.check()


@plays("force-deleted-while-running")
def force_deleted_while_running(node: Node) -> None:
    first, second = node.orders.new_names(2)
    node.orders.create([first], {}, stubborn=node.cluster.pace.stubborn)
    node.served(first)
    node.check(status_written=1)
    claim = node.claim(first)
    node.orders.delete([first], force=True)
    node.orders.wait_gone([first])
    node.order(second)

    def is_given_on() -> bool:
        return any((item["name"], item["phase"]) == (second, "prepared") for item in node.dump()["claims"])

    until("the device to be given on", is_given_on, node.driver.tail)
    assert not manifests.runs(first), "its container has ended before"
    node.gone(first)
    node.served(second)
    assert node.claim(second).devices == claim.devices
    assert not manifests.runs(first)
    node.holds()
    node.cluster.writes.forget()  # an Event for each refusal, however often the kubelet has asked
    node.release(second)
    node.check()


@plays("force-deleted-while-driver-down")
def force_deleted_while_driver_down(node: Node) -> None:
    first, second = node.orders.new_names(2)
    node.order(first)
    node.served(first)
    node.check(status_written=1)
    devices = node.claim(first).devices
    node.driver.stop(signal.SIGKILL)
    node.orders.delete([first], force=True)
    node.gone(first)
    node.order(second)
    node.driver.start()
    node.served(second)
    assert node.claim(second).devices == devices, (
        "the scheduler takes the first that is free, which the driver had in use"
    )
    node.holds()
    node.cluster.writes.forget()  # an Event for each refusal, if the kubelet has asked before it released the first
    node.release(second)
    node.check()


@plays("reallocated-while-kubelet-down")
def reallocated_while_kubelet_down(node: Node) -> None:
    first, second = node.orders.new_names(2)
    node.orders.create([first], {}, stubborn=node.cluster.pace.stubborn)
    node.served(first)
    node.check(status_written=1)
    before = node.claim(first)
    node.stop_kubelet(signal.SIGKILL)
    node.orders.delete_pods([first], force=True)
    until("the claim to be given up", lambda: not node.orders.devices(first))
    node.order(second)
    until("its device to go to another claim", lambda: node.orders.devices(second) == before.devices)
    node.orders.create_pods([first])
    until("it to get another device", lambda: node.orders.devices(first))
    assert node.orders.devices(first) != before.devices

    # whether it is refused before the former container has ended is the kubelet's affair: that may be released first
    node.start_kubelet()
    node.served(first, second)
    node.holds()
    node.release(first, second)
    node.driver.stop(signal.SIGTERM)  # writes what it has counted of refusals, however often the kubelet has asked
    node.driver.start()
    node.cluster.writes.forget()
    node.check()


@plays("forgotten-by-kubelet")
def forgotten_by_kubelet(node: Node) -> None:
    [name] = node.order()
    node.served(name)
    node.check(status_written=1)
    node.stop_kubelet(signal.SIGKILL)
    node.driver.stop(signal.SIGKILL)
    node.orders.delete([name], force=True)
    node.gone(name)
    node.kubelet_forgets()
    node.driver.start(registered=False)
    node.start_kubelet()
    node.check(slice_created=1, within=node.cluster.pace.orphan)


@plays("slices-wiped")
def slices_wiped(node: Node) -> None:
    [name] = node.order()
    node.served(name)
    node.check(status_written=1)
    node.driver.stop(signal.SIGTERM)
    until("the kubelet to wipe the slices", lambda: not node.objects("resourceslices"), within=WIPING_SECONDS)
    node.driver.start()
    node.check(slice_created=1)
    node.release(name)
    node.check()
