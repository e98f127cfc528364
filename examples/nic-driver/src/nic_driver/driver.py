"""The driver: pods get network interfaces of their node."""

from __future__ import annotations

import dra_kit as dra

from nic_driver.attach import Mover, Planner
from nic_driver.cni import Plugins
from nic_driver.inventory import Host, Inventory
from nic_driver.pci import Pci
from nic_driver.settings import Settings
from nic_driver.simulated import SimulatedNetwork, make_tree


def open_host(context: dra.Context[Settings]) -> Host:
    """Return the hardware of this node: real, or simulated with ``--fake``."""
    settings, attachments = context.settings, context.state_dir / "cni"
    if settings.fake:
        make_tree(settings.fake, settings.fake_dir)
        pci = Pci(settings.fake_dir / "sys", settings.fake_dir / "dev")
        return Host(SimulatedNetwork(settings.fake_dir), pci, Plugins(settings, attachments))
    from nic_driver.netlink import Netlink  # imports pyroute2, which simulated hardware does not need

    plugins = Plugins(settings, attachments, ["nsenter", f"--net={settings.host_netns}"])
    return Host(Netlink(settings.host_netns), Pci(), plugins)


driver = dra.Driver(
    "nic.example.com",
    provider=Inventory(),
    preparer=Planner(),
    pod_hooks=Mover(),
    hardware=open_host,
    settings=Settings,
    rescan_every=5,
)
