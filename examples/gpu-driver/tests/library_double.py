"""Our own ``libnvidia-ml.so.1``: built from C, with the GPUs of a profile and injected failures."""

import ctypes
import os
import subprocess
from pathlib import Path

from gpu_driver.nvml.backend import WHOLE_GPU, ComputeMode, RecoveryAction
from gpu_driver.nvml.fake.fake import first_state
from gpu_driver.nvml.fake.profile import GpuType, Profile, ProfileGpu

SOURCES = Path(__file__).parent / "libnvidia_ml"
_FLAGS = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"]

ALL_EVENTS = 0xC008
"""XIDs, GPUs that are not available, and recovery actions; old drivers know the first alone."""

_EVENTS = {"xid": 0x8, "lost": 0x4000, "recoveryAction": 0x8000}
_BRANDS = {"Nvidia": 14}
_ARCHITECTURES = {"Turing": 6, "Ampere": 7, "Ada Lovelace": 8, "Hopper": 9, "Blackwell": 10}
_CORES = {(7, 5): 64, (8, 0): 64, (8, 9): 128, (9, 0): 128, (10, 0): 128}
_ADDRESSING = {None: -1, "None": 0, "HMM": 1, "ATS": 2}


def build(compiler: str, folder: Path) -> Path:
    """Compile it into a driver root; the library's path."""
    library = folder / "usr/lib64/libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    subprocess.run([compiler, *_FLAGS, f"-Wl,-soname,{library.name}", "-o", str(library), *sources], check=True)
    return library


class LibraryDouble:
    """What a test does to its GPUs beside calling NVML.

    Args:
        library: that :func:`build` has made.
        profile: the GPUs.
        text: the file from which the library reads them.
        events: that its driver knows.
    """

    def __init__(self, library: Path, profile: Profile, text: Path, events: int = ALL_EVENTS) -> None:
        self._c = ctypes.CDLL(str(library))
        text.write_text(describe(profile, events), encoding="utf-8")
        os.environ["NVML_DOUBLE_PROFILE"] = str(text)
        self.restart()

    def restart(self) -> None:
        """Load the driver again: all instances are gone, and every session is closed."""
        self._c.double_restart()

    @property
    def opened(self) -> int:
        """How many sessions are open."""
        number: int = self._c.double_opened()
        return number

    def permit(self, *, root: bool = True, driver: bool = True) -> None:
        """Whether the caller may change anything, and whether the driver is loaded."""
        self._c.double_set(root, driver)

    def lose(self, uuid: str) -> None:
        """The GPU falls off the bus."""
        self._c.double_lose(uuid.encode(), 1)

    def find(self, uuid: str) -> None:
        """It is there again."""
        self._c.double_lose(uuid.encode(), 0)

    def xid(self, uuid: str, number: int, gpu_instance: int = WHOLE_GPU) -> None:
        """An XID error."""
        self._c.double_xid(uuid.encode(), number, ctypes.c_uint(gpu_instance))

    def want_recovery(self, uuid: str, action: RecoveryAction | int) -> None:
        """The driver asks for something that makes the GPU healthy."""
        self._c.double_want_recovery(uuid.encode(), int(action))


def describe(profile: Profile, events: int = ALL_EVENTS) -> str:
    """The profile in the lines that the library reads."""
    major, minor = profile.cuda_driver_version
    lines = [f"driver {profile.driver_version}", f"cuda {major * 1000 + minor * 10}"]
    for gpu in profile.gpus:
        lines += _gpu(profile, gpu, profile.type_of(gpu), events)
    return "\n".join(lines) + "\n"


def _gpu(profile: Profile, gpu: ProfileGpu, kind: GpuType, events: int) -> list[str]:
    domain, bus, slot = gpu.pci.removesuffix(".0").split(":")
    toggle = {"live": "l", "reset": "r"}[kind.mig.toggle] if kind.mig else "n"
    major, minor = kind.cuda_compute_capability
    cores = kind.sms * _CORES[major, minor]
    memory = -1 if kind.memory_mib is None else kind.memory_mib
    slices = kind.mig.compute_slices if kind.mig else 0
    types = events & sum(_EVENTS[name] for name in kind.event_types)
    modes = sum(1 << ComputeMode[name] for name in kind.compute_modes)
    return [
        f"gpu {gpu.uuid} {gpu.serial} {gpu.minor} {domain} {bus} {slot} {kind.pci_device_id:x} {_BRANDS[kind.brand]} "
        f"{_ARCHITECTURES[kind.architecture]} {major} {minor} {cores} {memory} {_ADDRESSING[kind.addressing_mode]} "
        f"{toggle} {int(gpu.mig_mode)} {slices} {types:x} {modes:x} {kind.name}",
        *_rows(kind),
        *_foreign(profile, gpu),
    ]


def _rows(kind: GpuType) -> list[str]:
    if kind.mig is None:
        return []
    per_slice = {row.c: row.sm // row.c for row in reversed(kind.mig.gi)}
    return [
        f"gi {row.id} {row.enum} {row.c} {row.size} {row.memory_mib} {row.sm} {row.ce} {row.dec} {row.enc} {row.jpeg} "
        f"{row.ofa} {row.instances} {_numbers(row.starts)}"
        for row in kind.mig.gi
    ] + [
        f"ci {row.gi} {row.id} {row.c} {row.sm or row.c * per_slice[row.gi]} {_numbers(row.starts)}"
        for row in kind.mig.ci
    ]


def _foreign(profile: Profile, gpu: ProfileGpu) -> list[str]:
    made = first_state(profile).gpus[gpu.uuid].instances
    return [
        f"foreign {instance.profile_id} {instance.placement.start} {compute.profile_id} {compute.mig_uuid}"
        for instance in made
        for compute in instance.compute_instances
    ]


def _numbers(numbers: tuple[int, ...]) -> str:
    return " ".join(map(str, [len(numbers), *numbers]))
