"""A stand-in for the driver of RDMA network cards: two on two PCIe roots, each with a virtual function to give."""

from collections.abc import Iterator, Sequence

import dra_kit as dra

PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
CARDS = {"nic-0": "pci0000:00", "nic-1": "pci0000:40"}
"""The PCIe root of each card; the GPUs of the fake node h100 are on these roots, and on two more."""


class Cards(dra.DeviceProvider):
    """Cards are not hot-plugged here: there is one inventory."""

    def discover(self) -> Iterator[Sequence[dra.Device]]:
        """Yield the virtual functions; the cards themselves stay with the node."""
        yield [
            dra.Device(name=f"{card}-vf-0", attributes={PCIE_ROOT: root, "card": card, "rdma": True})
            for card, root in CARDS.items()
        ]


class Functions(dra.Preparer):
    """What a real driver would do beside: move the network interface into the pod, and set its VLAN."""

    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        """Return the function's RDMA device, by name and as a device node."""
        number = list(CARDS).index(device.name.removesuffix("-vf-0"))
        return dra.Prepared(
            env={f"{device.env_name}_RDMA": f"mlx5_{number}"},
            # with its numbers (Documentation/admin-guide/devices.txt): the fake card has no file on the node
            device_nodes=[
                dra.DeviceNode(path=f"/dev/infiniband/uverbs{number}", type="c", major=231, minor=192 + number)
            ],
        )


driver = dra.Driver("nic.example.com", provider=Cards(), preparer=Functions())
