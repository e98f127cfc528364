"""The host's file system as a profile's GPUs would show in it: sysfs, procfs, /dev and the driver's libraries."""

import os
from pathlib import Path

from gpu_driver.nvml.fake.profile import Profile, ProfileGpu
from gpu_driver.nvml.fake.state import NodeState

CAPS_MAJOR = 508
NVIDIA_MAJOR = 195
DRM_MAJOR = 226
FIRST_RENDERER = 128
VFIO_MAJOR = 511
VFIO_DEVICES_MAJOR = 510
UVM_MAJOR = 507
_CONTROL_NODES = {
    "nvidiactl": (NVIDIA_MAJOR, 255),
    "nvidia-modeset": (NVIDIA_MAJOR, 254),
    "nvidia-uvm": (UVM_MAJOR, 0),
    "nvidia-uvm-tools": (UVM_MAJOR, 1),
    "vfio/vfio": (10, 196),
    "iommu": (10, 125),
}


def render(profile: Profile, state: NodeState, root: Path) -> None:
    """Make the tree, or bring it into the given state; what is right already is not written."""
    _write(root / "proc/devices", f"Character devices:\n{NVIDIA_MAJOR:3d} nvidia\n{CAPS_MAJOR:3d} nvidia-caps\n")
    _write(root / "proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX Kernel Module {profile.driver_version}\n")
    for name, numbers in _CONTROL_NODES.items():
        _device(root / "dev" / name, *numbers)
    for library in ("libcuda.so", "libnvidia-ml.so"):
        file = root / "usr/lib/x86_64-linux-gnu" / f"{library}.{profile.driver_version}"
        _write(file, "a fake library\n")
        _link(file.with_name(f"{library}.1"), file)
    for gpu in profile.gpus:
        _pci(profile, gpu, state, root)
        _of_driver(gpu, state.gpus[gpu.uuid].driver, root)
        _capabilities(gpu, state, root)


def capability_minor(minor: int, gpu_instance: int, compute_instance: int | None) -> int:
    """Return the minor number of a capability, unique on the node as in the kernel's table."""
    return 3 + minor * 256 + gpu_instance * 9 + (0 if compute_instance is None else compute_instance + 1)


def _pci(profile: Profile, gpu: ProfileGpu, state: NodeState, root: Path) -> None:
    function = root / "sys/devices" / gpu.pcie_root / gpu.pci
    kind = profile.type_of(gpu)
    _write(function / "vendor", "0x10de\n")
    _write(function / "device", f"{kind.pci_device_id:#06x}\n")
    _write(function / "class", "0x030200\n")
    _write(function / "resource", _regions(16, kind.bar_mib))
    _write(function / "numa_node", f"{gpu.numa_node}\n")
    _write(function / "driver_override", "(null)\n", only_new=True)
    _link(root / "sys/bus/pci/devices" / gpu.pci, function)
    if gpu.iommu_group is not None:
        group = root / f"sys/kernel/iommu_groups/{gpu.iommu_group}"
        _link(group / "devices" / gpu.pci, function)
        _link(function / "iommu_group", group)
    if not state.gpus[gpu.uuid].driver:
        (function / "driver").unlink(missing_ok=True)
        return
    driver = root / "sys/bus/pci/drivers" / state.gpus[gpu.uuid].driver
    driver.mkdir(parents=True, exist_ok=True)
    _link(function / "driver", driver)


def _regions(*sizes_mib: int) -> str:
    """Regions of memory that may be prefetched, one behind the other, and one that is not there."""
    lines, first = [], 0x1000_0000_0000
    for size in sizes_mib:
        lines.append(f"0x{first:016x} 0x{first + (size << 20) - 1:016x} 0x{0x14220C:016x}")
        first += size << 20
    return "\n".join([*lines, " ".join(["0x" + "0" * 16] * 3), ""])


def _of_driver(gpu: ProfileGpu, driver: str, root: Path) -> None:
    """Make the device files of the driver that has the GPU, and remove those of the other driver."""
    name, function = f"vfio{gpu.minor}", root / "sys/devices" / gpu.pcie_root / gpu.pci
    renderers = {f"card{gpu.minor}": gpu.minor, f"renderD{FIRST_RENDERER + gpu.minor}": FIRST_RENDERER + gpu.minor}
    made = {
        "nvidia": {
            root / f"dev/nvidia{gpu.minor}": (NVIDIA_MAJOR, gpu.minor),
            **{root / f"dev/dri/{entry}": (DRM_MAJOR, number) for entry, number in renderers.items()},
            **{function / f"drm/{entry}/dev": (DRM_MAJOR, number) for entry, number in renderers.items()},
        },
        "vfio-pci": {
            root / f"dev/vfio/{gpu.iommu_group}": (VFIO_MAJOR, gpu.iommu_group or 0),
            root / f"dev/vfio/devices/{name}": (VFIO_DEVICES_MAJOR, gpu.minor),
            function / f"vfio-dev/{name}/dev": (VFIO_DEVICES_MAJOR, gpu.minor),
        },
    }
    for owner, files in made.items():
        for path, numbers in files.items():
            if owner == driver:
                _device(path, *numbers)
            else:
                path.unlink(missing_ok=True)
    gone = [function / f"vfio-dev/{name}"] if driver != "vfio-pci" else []
    gone += [function / f"drm/{entry}" for entry in renderers] if driver != "nvidia" else []
    for folder in gone:
        if folder.is_dir():
            folder.rmdir()


def _capabilities(gpu: ProfileGpu, state: NodeState, root: Path) -> None:
    folder = root / f"proc/driver/nvidia/capabilities/gpu{gpu.minor}/mig"
    wanted: dict[Path, int] = {}
    for instance in state.gpus[gpu.uuid].instances:
        gi = folder / f"gi{instance.id}"
        wanted[gi / "access"] = capability_minor(gpu.minor, instance.id, None)
        for compute in instance.compute_instances:
            wanted[gi / f"ci{compute.id}" / "access"] = capability_minor(gpu.minor, instance.id, compute.id)
    for gone in set(folder.rglob("access")) - set(wanted):
        number = gone.read_text(encoding="utf-8").split()[1]
        (root / f"dev/nvidia-caps/nvidia-cap{number}").unlink(missing_ok=True)
        gone.unlink()
    for access, minor in wanted.items():
        _write(access, f"DeviceFileMinor: {minor}\nDeviceFileMode: 256\nDeviceFileModify: 1\n")
        _device(root / f"dev/nvidia-caps/nvidia-cap{minor}", CAPS_MAJOR, minor)


def _device(path: Path, major: int, minor: int) -> None:
    """Write a file in the place of a device node, which only root could make: it holds the numbers."""
    _write(path, f"c {major} {minor}\n")


def _write(path: Path, text: str, *, only_new: bool = False) -> None:
    if path.exists() and (only_new or path.read_text(encoding="utf-8") == text):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _link(path: Path, target: Path) -> None:
    to = Path(os.path.relpath(target, path.parent))
    if path.is_symlink() and path.readlink() == to:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(to)
