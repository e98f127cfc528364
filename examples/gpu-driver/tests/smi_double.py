"""An ``nvidia-smi`` that prints what a profile's GPUs would have printed: for a rehearsal of ``make test-gpu``.

The formats are those of releases 535 to 580: addresses with eight digits of domain, MiB without unit, ``[N/A]``.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from gpu_driver.nvml.fake.fake import facts, first_state, profile_of
from gpu_driver.nvml.fake.profile import Profile, ProfileGpu
from tests.gpu.nvidia_smi import Row, row_of

_PRINT = 'while IFS= read -r line; do printf "%s\\n" "$line"; done <'
"""Without any program but the shell, since nothing else is on the PATH."""
_USAGE = "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help."
_WARNING = "WARNING: infoROM is corrupted at gpu 0000:18:00.0\n"


def install(
    profile: Profile,
    folder: Path,
    *,
    lists_profiles: bool = False,
    without: Collection[str] = (),
    afterwards: Mapping[str, str] | None = None,
) -> Path:
    """Write the program; its path.

    Args:
        profile: whose GPUs it shows.
        folder: on the PATH.
        lists_profiles: of MIG, also those of GPUs whose MIG is off.
        without: commands that it refuses, and attributes that it does not know.
        afterwards: elements of the first GPU's log that are others from the second time on.
    """

    def refused(command: str) -> bool:
        return command in without or any(command.startswith(f"--query-gpu={name} ") for name in without)

    program, texts = folder / "nvidia-smi", folder / "nvidia-smi.printed"
    texts.mkdir(exist_ok=True)
    printed = {command: text for command, text in _printed(profile, lists_profiles).items() if not refused(command)}
    cases = []
    for number, (command, text) in enumerate(printed.items()):
        (texts / str(number)).write_text(text, encoding="utf-8")
        cases.append(f'"{command}") {_PRINT} {texts}/{number} ;;')
    if afterwards:
        (texts / "afterwards").write_text(_log(profile, afterwards), encoding="utf-8")
        asked = f"[ -e {texts}/asked ] && {{ {_PRINT} {texts}/afterwards; exit; }}; : > {texts}/asked"
        cases.insert(0, f'"-q -x") {asked}; {_PRINT} {texts}/{[*printed].index("-q -x")} ;;')
    cases.append(f'*) echo "{_USAGE}" >&2; exit 2 ;;')
    program.write_text("\n".join(["#!/bin/sh", 'case "$*" in', *cases, "esac", ""]), encoding="utf-8")
    program.chmod(0o755)
    return program


def _printed(profile: Profile, lists_profiles: bool) -> dict[str, str]:
    """What it prints, by its arguments."""
    listed = [(index, gpu) for index, gpu in enumerate(profile.gpus) if gpu.mig_mode or lists_profiles]
    lines = {name: "".join(f"{value}\n" for value in values) for name, values in _columns(profile).items()}
    tables = {"mig -lgip": "".join(_lgip(profile, listed)), "mig -lgipp": "".join(_lgipp(profile, listed))}
    return {
        **{f"--query-gpu={name} --format=csv,noheader,nounits": text for name, text in lines.items()},
        "-q -x": _log(profile, {}),
        "-L": "".join(_list(profile)),
        "compute-policy --list": "".join(f"| {gpu.minor}  Timeslice  Default |\n" for gpu in profile.gpus),
        # without a GPU whose MIG is on it prints none, and ends with an error
        **{command: text for command, text in tables.items() if text},
    }


def _columns(profile: Profile) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for gpu in profile.gpus:
        known = facts(gpu, profile.type_of(gpu))
        mode = ("Enabled" if gpu.mig_mode else "Disabled") if known.mig_capable else "[N/A]"
        row = {
            "uuid": known.uuid,
            "name": known.name,
            "pci.bus_id": f"0000{known.pci_bus_id}".upper(),
            "pci.device_id": f"0x{known.pci_device_id:04X}10DE",
            "compute_cap": ".".join(map(str, known.compute_capability)),
            "serial": known.serial,
            "memory.total": "[N/A]" if known.memory_bytes is None else str(known.memory_bytes >> 20),
            "addressing_mode": known.addressing_mode or "[N/A]",
            "compute_mode": "Default",
            "mig.mode.current": mode,
            "mig.mode.pending": mode,
            "driver_version": profile.driver_version,
        }
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    return found


def _log(profile: Profile, elements: Mapping[str, str]) -> str:
    log = ElementTree.Element("nvidia_smi_log")
    ElementTree.SubElement(log, "driver_version").text = profile.driver_version
    ElementTree.SubElement(log, "cuda_version").text = ".".join(map(str, profile.cuda_driver_version))
    for gpu in profile.gpus:
        known = facts(gpu, profile.type_of(gpu))
        shown = ElementTree.SubElement(log, "gpu", id=f"0000{known.pci_bus_id}".upper())
        first = elements if gpu is profile.gpus[0] else {}
        for name, text in {
            "product_brand": known.brand.upper(),
            "product_architecture": known.architecture,
            "persistence_mode": "Enabled",
            "uuid": known.uuid,
            "minor_number": str(known.minor),
            "gpu_recovery_action": "None",
            "performance_state": "P0",
            "compute_mode": "Default",
            **first,
        }.items():
            ElementTree.SubElement(shown, name).text = text
        ecc = ElementTree.SubElement(shown, "ecc_mode")
        ElementTree.SubElement(ecc, "current_ecc").text = "Enabled"
    head = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
    return f"{head}{ElementTree.tostring(log, encoding='unicode')}\n{_WARNING}"


def _list(profile: Profile) -> list[str]:
    state = first_state(profile)
    lines = []
    for index, gpu in enumerate(profile.gpus):
        lines.append(f"GPU {index}: {profile.type_of(gpu).name} (UUID: {gpu.uuid})\n")
        uuids = [part.mig_uuid for made in state.gpus[gpu.uuid].instances for part in made.compute_instances]
        lines += [f"  MIG 3g.20gb     Device {number:>2}: (UUID: {uuid})\n" for number, uuid in enumerate(uuids)]
    return lines


def _lgip(profile: Profile, listed: Sequence[tuple[int, ProfileGpu]]) -> list[str]:
    return [
        _two_lines(index, row_of(profile_of(row)))
        for index, gpu in listed
        if (table := profile.type_of(gpu).mig) is not None
        for row in table.gi
    ]


def _two_lines(index: int, row: Row) -> str:
    return (
        f"|   {index}  MIG {row.name:<15} {row.id:>2}     1/1   {row.gib:>9.2f}       No    {row.multiprocessors:>3}"
        f"   {row.decoders:>3}   {row.encoders:>3}   |\n"
        f"|{'':61}{row.copy_engines:>3}   {row.jpeg_engines:>3}   {row.ofa_engines:>3}   |\n"
    )


def _lgipp(profile: Profile, listed: Sequence[tuple[int, ProfileGpu]]) -> list[str]:
    return [
        f"GPU {index:>2} Profile ID {row.id:>2} Placement{'s' if len(row.starts) > 1 else ' '}: "
        f"{{{','.join(map(str, row.starts))}}}:{row.size}\n"
        for index, gpu in listed
        if (table := profile.type_of(gpu).mig) is not None
        for row in table.gi
    ]
