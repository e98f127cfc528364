"""What has been done to each of the fake's GPUs, as a file for people, stories and tests: ``gpus/gpu-0``."""

from pathlib import Path

from gpu_driver.nvml.fake.mig_rules import row_of
from gpu_driver.nvml.fake.profile import MigTable, Profile
from gpu_driver.nvml.fake.state import GpuState, NodeState

TIME_SLICES = ("Default", "Short", "Medium", "Long")
"""What ``nvidia-smi compute-policy`` calls 0 to 3."""


def show(profile: Profile, state: NodeState, folder: Path) -> None:
    """Write the files whose GPUs are others than before."""
    folder.mkdir(parents=True, exist_ok=True)
    for gpu in profile.gpus:
        text = "\n".join([*_lines(state.gpus[gpu.uuid], profile.type_of(gpu).mig), ""])
        file = folder / f"gpu-{gpu.minor}"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            new = file.with_suffix(".new")
            new.write_text(text, encoding="utf-8")
            new.replace(file)


def _lines(gpu: GpuState, table: MigTable | None) -> list[str]:
    on_bus = "lost" if gpu.lost else gpu.driver or "none"
    lines = [
        f"driver: {on_bus}",
        f"compute mode: {gpu.compute_mode.name}",
        f"time slice: {TIME_SLICES[gpu.time_slice]}",
        f"persistence mode: {_on(gpu.persistence)}",
    ]
    if table is None:
        return lines
    lines.append(f"MIG mode: {_on(gpu.mig_current)}")
    if not gpu.mig_current:
        return lines
    slices = ["."] * table.memory_slices
    partitions = []
    for number, made in enumerate(sorted(gpu.instances, key=lambda made: made.placement.start), start=1):
        row, start = row_of(table, made.profile_id), made.placement.start
        slices[start : start + row.size] = [str(number)] * row.size
        places = sorted((part.placement for part in made.compute_instances), key=lambda place: place.start)
        sizes = ", ".join(str(place.size) for place in places) or "none"
        partitions.append(f"partition {row.name} at {start}: compute slices {sizes}")
    lines += [f"memory slices: [{' '.join(slices)}]", *partitions]
    return lines


def _on(value: bool) -> str:
    return "on" if value else "off"
