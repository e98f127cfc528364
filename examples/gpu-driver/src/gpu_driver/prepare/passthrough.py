"""GPUs for virtual machines: handed to vfio-pci, and the device files by which a machine's monitor opens them."""

from collections.abc import Iterable

import dra_kit as dra

from gpu_driver.config.kinds import VfioDeviceConfig
from gpu_driver.effects.mig.mode import SetMigMode
from gpu_driver.effects.vfio import BindVfio
from gpu_driver.hardware import Hardware
from gpu_driver.host import pci
from gpu_driver.host.device_files import device_node
from gpu_driver.prepare.partitions import Allocated

VfioEntry = dra.ConfigEntry[VfioDeviceConfig]


def check(entries: Iterable[VfioEntry | None]) -> None:
    """Refuse several ways into one virtual machine: its monitor opens one API device.

    Raises:
        PermanentError: the devices of a claim have different configs.
    """
    found = {None if entry is None else entry.index: entry for entry in entries}
    if len(found) > 1:
        names = " and ".join("no config" if entry is None else str(entry) for entry in found.values())
        raise dra.PermanentError(
            f"GPUs in passthrough have {names} in one claim; give them one, or claims of their own"
        )


def handle(hardware: Hardware, device: Allocated, entry: VfioEntry | None) -> dra.Prepared:
    """Bind the GPU to vfio-pci; what a container gets with it. NVIDIA's libraries and control nodes are not for it.

    Raises:
        PrepareError: the node has no IOMMU, or the GPU is in use.
    """
    gpu = device.advertised
    group = pci.iommu_group(hardware.host, gpu.pci_bus_id)
    if group is None:
        raise dra.PermanentError(
            f"{device.name}: the node has no IOMMU group for {gpu.pci_bus_id}; switch the IOMMU on (firmware, and "
            "intel_iommu=on or amd_iommu=on of the kernel)"
        )
    if gpu.live_mig:
        device.ensure(SetMigMode(uuid=gpu.uuid, enabled=False)).result()
    device.ensure(BindVfio(uuid=gpu.uuid, address=gpu.pci_bus_id, minor=gpu.minor, group=group)).result()
    config = VfioDeviceConfig() if entry is None else entry.config
    nodes, api = _files(hardware, gpu.pci_bus_id, group, config)
    return dra.Prepared(
        env={f"{device.env_name}_PCI_ADDRESS": gpu.pci_bus_id},
        device_nodes=nodes,
        claim_edits=dra.ContainerEdits(env={"NVIDIA_VISIBLE_DEVICES": "void"}, device_nodes=api),
        metadata=dra.DeviceMetadata(attributes={"resource.kubernetes.io/pciBusID": gpu.pci_bus_id}),
        hardware_ids=[gpu.uuid, gpu.pci_bus_id],
    )


def _files(
    hardware: Hardware, address: str, group: int, config: VfioDeviceConfig
) -> tuple[list[dra.DeviceNode], list[dra.DeviceNode]]:
    """Return the GPU's own file, and that of the API where it is wanted: of iommufd where it is preferred and there."""
    name = pci.vfio_device(hardware.host, address)
    modern = config.iommu.backend_policy == "PreferIommuFD" and name and (hardware.host / "dev/iommu").exists()
    own = f"/dev/vfio/devices/{name}" if modern else f"/dev/vfio/{group}"
    api = ["/dev/iommu" if modern else "/dev/vfio/vfio"] if config.iommu.enable_api_device else []
    made = [device_node(hardware.host, path, fake=hardware.fake) for path in (own, *api)]
    return made[:1], made[1:]
