"""What ``nvidia-smi`` shows, in the driver's words."""

import re
import subprocess
from dataclasses import dataclass
from xml.etree import ElementTree

from gpu_driver.nvml.backend import GpuInstanceProfile, Placement

_PROFILE = re.compile(
    r"^\|\s+(?P<gpu>\d+)\s+MIG (?P<name>\S+)\s+(?P<id>\d+)\s+\d+/\d+\s+(?P<gib>[\d.]+)\s+\w+"
    r"\s+(?P<sm>\d+)\s+(?P<dec>\d+)\s+(?P<enc>\d+)\s+\|\s*\n\|\s+(?P<ce>\d+)\s+(?P<jpeg>\d+)\s+(?P<ofa>\d+)\s+\|",
    re.MULTILINE,
)
_PLACES = re.compile(r"^GPU\s+(\d+)\s+Profile ID\s+(\d+)\s+Placements?\s*:\s*\{([\d,]+)\}:(\d+)", re.MULTILINE)

_CHANGES_BY_ITSELF = {
    "timestamp",
    "bar1_memory_usage",
    "cc_protected_memory_usage",
    "clocks",
    "clocks_event_reasons",
    "clocks_event_reasons_counters",
    "clocks_throttle_reasons",
    "ecc_errors",
    "encoder_stats",
    "fan_speed",
    "fb_memory_usage",
    "fbc_stats",
    "gpu_memory_power_readings",
    "gpu_power_readings",
    "module_power_readings",
    "pci_gpu_link_info",
    "performance_state",
    "power_readings",
    "processes",
    "replay_counter",
    "rx_util",
    "temperature",
    "tx_util",
    "utilization",
    "voltage",
}
"""Elements of ``nvidia-smi -q -x`` that no setting decides: clocks, temperatures, power, load."""


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
    """What it prints."""
    done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        lines = (done.stderr + done.stdout).strip().splitlines() or ["it wrote nothing"]
        raise Refused(f"nvidia-smi {' '.join(arguments)}: exit code {done.returncode}: {lines[-1]}")
    return done.stdout


def query(attribute: str) -> list[str]:
    """One attribute of each GPU."""
    return [line.strip() for line in run(f"--query-gpu={attribute}", "--format=csv,noheader,nounits").splitlines()]


def profiles(printed: str) -> dict[int, list[Row]]:
    """The profiles of each GPU's index, from ``mig -lgip``."""
    found: dict[int, list[Row]] = {}
    for row in _PROFILE.finditer(printed):
        numbers = [int(row[name]) for name in ("sm", "ce", "dec", "enc", "jpeg", "ofa")]
        found.setdefault(int(row["gpu"]), []).append(Row(row["name"], int(row["id"]), float(row["gib"]), *numbers))
    return found


def placements(printed: str) -> dict[tuple[int, int], tuple[Placement, ...]]:
    """Where profiles may be, by a GPU's index and a profile's id, from ``mig -lgipp``."""
    return {
        (int(gpu), int(profile)): tuple(Placement(int(start), int(size)) for start in starts.split(","))
        for gpu, profile, starts, size in _PLACES.findall(printed)
    }


def row_of(profile: GpuInstanceProfile) -> Row:
    """As ``nvidia-smi`` would show it; it cuts memory after two digits."""
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


def settings_of(printed: str) -> dict[str, str]:
    """All that ``-q -x`` tells and that does not change by itself, by its path."""
    found: dict[str, str] = {}

    def look(element: ElementTree.Element, path: str) -> None:
        for number, child in enumerate(element):
            if child.tag not in _CHANGES_BY_ITSELF:
                look(child, f"{path}/{child.tag}[{number}]")
        found[path] = (element.text or "").strip()

    look(ElementTree.fromstring(printed), "")
    return found
