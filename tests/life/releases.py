"""Claims that are released while somebody is away, or that nobody releases."""

from __future__ import annotations

import signal

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
    node.check(status_written=1)
    node.release(second)
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
