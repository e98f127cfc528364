"""Properties of a GPU from the real NVML, in the terms that this driver publishes."""

from typing import Any

from gpu_driver.nvml.backend import GpuFacts
from gpu_driver.nvml.errors import NvmlError, NvmlReturn
from gpu_driver.nvml.session import Session

BRANDS = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    7: "NvidiaVApps",
    8: "NvidiaVPC",
    9: "NvidiaVCS",
    10: "NvidiaVWS",
    11: "NvidiaCloudGaming",
    12: "QuadroRTX",
    13: "NvidiaRTX",
    14: "Nvidia",
    15: "GeForceRTX",
    16: "TitanRTX",
}
"""``nvmlBrandType_t``, by the names that NVIDIA's own driver publishes."""

ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
"""``nvmlDeviceArchitecture_t``."""

ADDRESSING_MODES = {0: "None", 1: "HMM", 2: "ATS"}
"""``nvmlDeviceAddressingModeType_t``."""

_UNKNOWN = "Unknown"

_MANY_CORES = 128
_CORES = {(5, 0): 128, (6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
"""CUDA cores of a multiprocessor where they are not 128 (CUDA C++ programming guide, "Arithmetic instructions")."""


class Facts:
    """Reads them.

    Args:
        session: with NVML.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._multiprocessors: dict[str, int] = {}

    def read(self, uuid: str) -> GpuFacts:
        """All of one GPU.

        Raises:
            NvmlError: it is lost, above all.
        """
        ask = self._session
        capability: tuple[int, int] = tuple(ask.on(uuid, "nvmlDeviceGetCudaComputeCapability"))
        pci = ask.on(uuid, "nvmlDeviceGetPciInfo")
        memory = ask.supported(uuid, "nvmlDeviceGetMemoryInfo")
        mode = ask.supported(uuid, "nvmlDeviceGetAddressingMode")
        return GpuFacts(
            uuid=uuid,
            minor=ask.on(uuid, "nvmlDeviceGetMinorNumber"),
            name=ask.on(uuid, "nvmlDeviceGetName"),
            brand=BRANDS.get(ask.on(uuid, "nvmlDeviceGetBrand"), _UNKNOWN),
            architecture=ARCHITECTURES.get(ask.on(uuid, "nvmlDeviceGetArchitecture"), _UNKNOWN),
            compute_capability=capability,
            pci_bus_id=f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0",
            pci_device_id=pci.pciDeviceId >> 16,
            serial=ask.supported(uuid, "nvmlDeviceGetSerial") or "",
            memory_bytes=None if memory is None else memory.total,
            multiprocessors=self._count(uuid, capability),
            addressing_mode=ADDRESSING_MODES.get(mode),
            mig_capable=ask.supported(uuid, "nvmlDeviceGetMigMode") is not None,
        )

    def _count(self, uuid: str, capability: tuple[int, int]) -> int:
        """Multiprocessors of the whole GPU; NVML does not count cores while MIG is on, so they are cached."""
        cores = self._session.supported(uuid, "nvmlDeviceGetNumGpuCores")
        if cores is not None:
            self._multiprocessors[uuid] = cores // _CORES.get(capability, _MANY_CORES)
        elif uuid not in self._multiprocessors:
            return max((row.multiprocessorCount for _, row in gpu_instance_rows(self._session, uuid)), default=0)
        return self._multiprocessors[uuid]


def gpu_instance_rows(session: Session, uuid: str) -> list[tuple[int, Any]]:
    """Return number (``NVML_GPU_INSTANCE_PROFILE_…``) and structure of each profile that a GPU has.

    Numbers are asked for until NVML knows no more of them (nvml.h). The first version of the structure is the
    one that it fills whether MIG is on or not; its successor has a name, but only while MIG is on, and a device's name
    must not change with the mode.
    """
    rows = []
    for number in range(_ENOUGH):
        try:
            rows.append((number, session.on(uuid, "nvmlDeviceGetGpuInstanceProfileInfo", number, 1)))
        except NvmlError as error:
            if error.code is NvmlReturn.INVALID_ARGUMENT:
                break
            if error.code is not NvmlReturn.NOT_SUPPORTED:
                raise
    return sorted(rows, key=lambda row: (row[1].sliceCount, row[1].memorySizeMB, row[0]))


_ENOUGH = 64
"""NVML knows 18 profiles today."""
