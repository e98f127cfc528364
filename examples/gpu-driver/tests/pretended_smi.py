"""An ``nvidia-smi`` that prints what a profile's GPUs would have printed: for a rehearsal of ``make test-gpu``."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

from gpu_driver.nvml.fake.fake import facts, profile_of
from gpu_driver.nvml.fake.profile import Profile
from tests.gpu.nvidia_smi import Row, row_of

_SCRIPT = """#!{python}
import json, sys
printed = json.load(open({table!r}))
try:
    print(printed[" ".join(sys.argv[1:])], end="")
except KeyError:
    sys.exit("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.")
"""


def install(profile: Profile, folder: Path) -> Path:
    """Write the program; its path."""
    table, program = folder / "nvidia-smi.json", folder / "nvidia-smi"
    table.write_text(json.dumps(_printed(profile)), encoding="utf-8")
    program.write_text(_SCRIPT.format(python=sys.executable, table=str(table)), encoding="utf-8")
    program.chmod(0o755)
    return program


def _printed(profile: Profile) -> dict[str, str]:
    """What it prints, by its arguments."""
    lines = {name: "".join(f"{value}\n" for value in values) for name, values in _columns(profile).items()}
    return {
        **{f"--query-gpu={name} --format=csv,noheader,nounits": text for name, text in lines.items()},
        "-q -x": _log(profile),
        "mig -lgip": "".join(_lgip(profile)),
        "mig -lgipp": "".join(_lgipp(profile)),
    }


def _columns(profile: Profile) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for gpu in profile.gpus:
        told = facts(gpu, profile.type_of(gpu))
        mode = ("Enabled" if gpu.mig_mode else "Disabled") if told.mig_capable else "[N/A]"
        row = {
            "uuid": told.uuid,
            "name": told.name,
            "pci.bus_id": f"0000{told.pci_bus_id}".upper(),
            "pci.device_id": f"0x{told.pci_device_id:04X}10DE",
            "compute_cap": ".".join(map(str, told.compute_capability)),
            "serial": told.serial,
            "memory.total": "[N/A]" if told.memory_bytes is None else str(told.memory_bytes >> 20),
            "addressing_mode": told.addressing_mode or "[N/A]",
            "compute_mode": "Default",
            "mig.mode.current": mode,
            "mig.mode.pending": mode,
            "driver_version": profile.driver_version,
        }
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    return found


def _log(profile: Profile) -> str:
    log = ElementTree.Element("nvidia_smi_log")
    ElementTree.SubElement(log, "driver_version").text = profile.driver_version
    ElementTree.SubElement(log, "cuda_version").text = ".".join(map(str, profile.cuda_driver_version))
    for gpu in profile.gpus:
        told = facts(gpu, profile.type_of(gpu))
        shown = ElementTree.SubElement(log, "gpu", id=told.pci_bus_id)
        for name, text in {
            "product_brand": told.brand.upper(),
            "product_architecture": told.architecture,
            "uuid": told.uuid,
            "minor_number": str(told.minor),
        }.items():
            ElementTree.SubElement(shown, name).text = text
    return ElementTree.tostring(log, encoding="unicode")


def _lgip(profile: Profile) -> list[str]:
    return [
        _two_lines(index, row_of(profile_of(row)))
        for index, gpu in enumerate(profile.gpus)
        if (table := profile.type_of(gpu).mig) is not None
        for row in table.gi
    ]


def _two_lines(index: int, row: Row) -> str:
    return (
        f"|   {index}  MIG {row.name:<15} {row.id:>2}     1/1   {row.gib:>9.2f}       No    {row.multiprocessors:>3}"
        f"   {row.decoders:>3}   {row.encoders:>3}   |\n"
        f"|{'':61}{row.copy_engines:>3}   {row.jpeg_engines:>3}   {row.ofa_engines:>3}   |\n"
    )


def _lgipp(profile: Profile) -> list[str]:
    return [
        f"GPU {index:>2} Profile ID {row.id:>2} Placement{'s' if len(row.starts) > 1 else ' '}: "
        f"{{{','.join(map(str, row.starts))}}}:{row.size}\n"
        for index, gpu in enumerate(profile.gpus)
        if (table := profile.type_of(gpu).mig) is not None
        for row in table.gi
    ]
