"""Folders with the files that a kernel shows of hardware which this machine has not, for ``--node-files``.

What is in them is documented by the kernel (``Documentation/ABI``), or read by the drivers that are tried with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

_CPUS: Final = 64
_SOCKETS: Final = 2
_AMD: Final = "0x1002"  # PCI-SIG's ID of the vendor
_GPUS: Final = 2
_PARTITIONS: Final = 2  # of each GPU, besides the one that stands for the GPU itself

_FUNCTIONS: Final = 2  # virtual ones, of each accelerator


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n" if text else "", encoding="utf-8")


def cpus(folder: Path) -> None:
    """64 CPUs in two sockets, each a NUMA node with one L3 cache, without SMT; ``folder`` is /sys/devices/system."""
    each = _CPUS // _SOCKETS
    spans = [f"{number * each}-{(number + 1) * each - 1}" for number in range(_SOCKETS)]
    files = dict.fromkeys(("cpu/online", "cpu/possible", "cpu/present"), f"0-{_CPUS - 1}")
    files |= {"cpu/smt/control": "notsupported", "cpu/smt/active": "0", "node/online": f"0-{_SOCKETS - 1}"}
    for number, span in enumerate(spans):
        files[f"node/node{number}/cpulist"] = span
    for cpu in range(_CPUS):
        socket, place = divmod(cpu, each)
        files |= {
            f"cpu/cpu{cpu}/node{socket}/cpulist": spans[socket],
            f"cpu/cpu{cpu}/topology/physical_package_id": str(socket),
            f"cpu/cpu{cpu}/topology/core_id": str(place),
            f"cpu/cpu{cpu}/topology/cluster_id": "-1",
            f"cpu/cpu{cpu}/topology/thread_siblings_list": str(cpu),
            f"cpu/cpu{cpu}/cache/index3/level": "3",
            f"cpu/cpu{cpu}/cache/index3/id": str(socket),
            f"cpu/cpu{cpu}/cache/index3/shared_cpu_list": spans[socket],
        }
    _write(folder, files)


def amd_gpus(folder: Path) -> None:
    """Two GPUs of AMD, each with two more partitions, and their device files; ``folder`` is the root folder."""
    files = {"dev/kfd": "", "sys/class/kfd/kfd/topology/nodes/0/properties": "simd_count 0\ndrm_render_minor 0"}
    render, node = 128, 1
    cards: list[tuple[int, str, str]] = []
    for gpu in range(_GPUS):
        address = f"0000:{0x19 + gpu:02x}:00.0"
        cards.append((gpu, f"sys/module/amdgpu/drivers/pci:amdgpu/{address}", str(1000 + gpu)))
        files |= {
            f"sys/module/amdgpu/drivers/pci:amdgpu/{address}/{name}": text
            for name, text in {
                "current_compute_partition": "CPX",
                "current_memory_partition": "NPS1",
                "numa_node": str(gpu % 2),
            }.items()
        }
        files |= {
            f"sys/class/drm/card{gpu}/device/{name}": text
            for name, text in {
                "vendor": _AMD,
                "product_name": "AMD Instinct MI300X",
                "driver/module/version": "6.12.12",
                "driver/module/srcversion": "0123456789ABCDEF",
            }.items()
        }
    cards += [
        (_GPUS + number, f"sys/devices/platform/amdgpu_xcp_{number}", str(1000 + number // _PARTITIONS))
        for number in range(_GPUS * _PARTITIONS)
    ]
    for card, place, identity in cards:
        files |= {
            f"{place}/drm/card{card}/dev": f"226:{card}",
            f"{place}/drm/renderD{render}/dev": f"226:{render}",
            f"dev/dri/card{card}": "",
            f"dev/dri/renderD{render}": "",
            f"sys/class/kfd/kfd/topology/nodes/{node}/properties": (
                f"simd_count 152\nsimd_per_cu 4\ndrm_render_minor {render}\nunique_id {identity}"
            ),
            f"sys/class/kfd/kfd/topology/nodes/{node}/mem_banks/0/properties": f"size_in_bytes {64 << 30}",
        }
        render, node = render + 1, node + 1
    _write(folder, files)


def qat(folder: Path) -> None:
    """Two accelerators of Intel's QuickAssist, each with two virtual functions; ``folder`` is the root folder."""
    files = {"dev/vfio/vfio": "", "sys/bus/pci/drivers/vfio-pci/bind": "", "sys/bus/pci/drivers/vfio-pci/unbind": ""}
    links: dict[str, str] = {}
    group = 350
    for bus, services in (("6b", "sym;asym"), ("70", "dc")):
        root, address = f"sys/devices/pci0000:{bus}", f"0000:{bus}:00.0"
        files |= {
            f"{root}/{address}/{name}": text
            for name, text in {
                "qat/state": "up",
                "qat/cfg_services": services,
                "sriov_numvfs": str(_FUNCTIONS),
                "sriov_totalvfs": str(_FUNCTIONS),
            }.items()
        }
        links[f"sys/bus/pci/drivers/4xxx/{address}"] = f"{root}/{address}"
        links[f"sys/bus/pci/devices/{address}"] = f"{root}/{address}"
        for number in range(_FUNCTIONS):
            function = f"{root}/0000:{bus}:00.{number + 1}"
            files |= {f"{function}/driver_override": "", f"dev/vfio/{group}": ""}
            files[f"sys/kernel/iommu_groups/{group}/type"] = "DMA"
            links |= {
                f"sys/bus/pci/devices/{Path(function).name}": function,
                f"{root}/{address}/virtfn{number}": function,
                f"{function}/driver": "sys/bus/pci/drivers/vfio-pci",
                f"{function}/iommu_group": f"sys/kernel/iommu_groups/{group}",
            }
            group += 1
    _write(folder, files)
    for name, target in links.items():
        link = folder / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(folder / target, link.parent))


MAKERS: Final[Mapping[str, Callable[[Path], None]]] = {"cpus": cpus, "amd-gpus": amd_gpus, "qat": qat}
"""What fills a folder, by the name of the hardware."""
