"""What ``nvidia-smi`` shows: attributes, MIG tables, and the settings that a machine's owner has made."""

import re
import subprocess
from dataclasses import dataclass
from functools import cache
from xml.etree import ElementTree

from gpu_driver.nvml.backend import GpuInstanceProfile, Placement

_PROFILE = re.compile(
    r"^\|\s+(?P<gpu>\d+)\s+MIG (?P<name>\S+)\s+(?P<id>\d+)\s+\d+/\d+\s+(?P<gib>[\d.]+)\s+\w+"
    r"\s+(?P<sm>\d+)\s+(?P<dec>\d+)\s+(?P<enc>\d+)\s+\|\s*\n\|\s+(?P<ce>\d+)\s+(?P<jpeg>\d+)\s+(?P<ofa>\d+)\s+\|",
    re.MULTILINE,
)
_PLACES = re.compile(r"^GPU\s+(\d+)\s+Profile ID\s+(\d+)\s+Placements?\s*:\s*\{([\d,]+)\}:(\d+)", re.MULTILINE)
_PARTITION = re.compile(r"\(UUID:\s*(MIG-[^)\s]+)\)")
_END = "</nvidia_smi_log>"

_NO_VALUE = {"[N/A]", "N/A", "[Not Supported]", "Not Supported", "[Unknown Error]", "None", "[None]"}
"""What nvidia-smi prints for a missing value; it depends on the driver's release and the command."""

SETTINGS = frozenset(
    {
        "accounting_mode",
        "accounting_mode_buffer_size",
        "applications_clocks",
        "c2c_mode",
        "clock_policy",
        "compute_mode",
        "dram_encryption_mode",
        "driver_model",
        "ecc_mode",
        "gpu_operation_mode",
        "gpu_target_temperature",
        "gpu_virtualization_mode",
        "mig_mode",
        "persistence_mode",
        "power_limit",
        "power_profile_requested_profiles",
        "requested_power_limit",
        "sparse_operation_mode",
    }
)
"""Elements of ``nvidia-smi -q -x`` that options of nvidia-smi set; all others are readings or fixed."""


class Refused(Exception):
    """``nvidia-smi`` ended with an error; its last line."""


@dataclass(frozen=True)
class Row:
    """A line of ``nvidia-smi mig -lgip``."""

    name: str
    id: int
    gib: float
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int


def run(*arguments: str) -> str:
    """Return what it prints.

    Raises:
        Refused: it ended with an error.
    """
    done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        lines = (done.stderr + done.stdout).strip().splitlines() or ["it wrote nothing"]
        raise Refused(f"nvidia-smi {' '.join(arguments)}: exit code {done.returncode}: {lines[-1]}")
    return done.stdout


@cache
def once(*arguments: str) -> str:
    """Return its cached output: each run opens every GPU, which takes seconds if no process has them open.

    Raises:
        Refused: it ended with an error.
    """
    return run(*arguments)


def query(attribute: str) -> list[str]:
    """Return one attribute of each GPU; empty where a GPU has none."""
    printed = once(f"--query-gpu={attribute}", "--format=csv,noheader,nounits")
    return [value(line) for line in printed.splitlines() if line.strip()]


def value(text: str) -> str:
    """Return a value as nvidia-smi prints it; empty for what it prints where there is none."""
    return "" if text.strip() in _NO_VALUE else text.strip()


def log(printed: str) -> ElementTree.Element:
    """Return the log that ``-q -x`` prints; a warning may follow it (``WARNING: infoROM is corrupted at gpu …``)."""
    return ElementTree.fromstring(printed[: printed.rindex(_END) + len(_END)])


def profiles(printed: str) -> dict[int, list[Row]]:
    """Return the profiles of each GPU's index, from ``mig -lgip``."""
    found: dict[int, list[Row]] = {}
    for row in _PROFILE.finditer(printed):
        numbers = [int(row[name]) for name in ("sm", "ce", "dec", "enc", "jpeg", "ofa")]
        found.setdefault(int(row["gpu"]), []).append(Row(row["name"], int(row["id"]), float(row["gib"]), *numbers))
    return found


def placements(printed: str) -> dict[tuple[int, int], tuple[Placement, ...]]:
    """Return where profiles may be, by a GPU's index and a profile's id, from ``mig -lgipp``."""
    return {
        (int(gpu), int(profile)): tuple(Placement(int(start), int(size)) for start in starts.split(","))
        for gpu, profile, starts, size in _PLACES.findall(printed)
    }


def partitions(printed: str) -> list[str]:
    """Return the UUIDs of the partitions that exist, from ``-L``."""
    return _PARTITION.findall(printed)


def row_of(profile: GpuInstanceProfile) -> Row:
    """Return a profile as ``nvidia-smi`` would show it; it cuts memory after two digits."""
    return Row(
        profile.name,
        profile.id,
        profile.memory_mib * 100 // 1024 / 100,
        profile.multiprocessors,
        profile.copy_engines,
        profile.decoders,
        profile.encoders,
        profile.jpeg_engines,
        profile.ofa_engines,
    )


def settings() -> dict[str, str]:
    """Return the settings of all GPUs now, by GPU and element, and the time slices, where nvidia-smi lists them.

    Raises:
        Refused: nvidia-smi does not answer.
    """
    found = settings_of(run("-q", "-x"))
    try:
        return found and found | {"time slices": " ".join(run("compute-policy", "--list").split())}
    except Refused:  # no GPU has time slices, or an old release cannot list them
        return found


def settings_of(printed: str) -> dict[str, str]:
    """Return the settings in what ``-q -x`` prints, and the partitions that exist, by GPU and element."""
    found: dict[str, str] = {}

    def look(element: ElementTree.Element, path: str, *, is_setting: bool) -> None:
        for child in element:
            inside = is_setting or child.tag in SETTINGS
            if inside and not len(child):
                found[f"{path}/{child.tag}"] = (child.text or "").strip()
            look(child, f"{path}/{child.tag}", is_setting=inside)

    for gpu in log(printed).iter("gpu"):
        name = gpu.get("id", "")
        look(gpu, name, is_setting=False)
        ids = ("gpu_instance_id", "compute_instance_id")
        made = ["/".join(device.findtext(each, "") for each in ids) for device in gpu.iter("mig_device")]
        found[f"{name}/mig_devices"] = " ".join(made)
    return found
