"""Where MIG instances may be: the rules that NVML obeys, without state of their own."""

from collections.abc import Iterable, Sequence

from gpu_driver.nvml.backend import Placement
from gpu_driver.nvml.fake.profile import ComputeInstanceRow, GpuInstanceRow, MigTable


def row_of(table: MigTable, profile: int) -> GpuInstanceRow:
    """Return the profile with this id.

    Raises:
        KeyError: the GPU has none.
    """
    return {row.id: row for row in table.gi}[profile]


def placements(row: GpuInstanceRow) -> tuple[Placement, ...]:
    """Every place of a profile on an empty GPU."""
    return tuple(Placement(start, row.size) for start in row.starts)


def compute_placements(row: ComputeInstanceRow) -> tuple[Placement, ...]:
    """Every place of a compute profile in an empty GPU instance."""
    return tuple(Placement(start, row.c) for start in row.starts)


def taken(occupied: Iterable[Placement]) -> set[int]:
    """Return the slices that these placements occupy."""
    return {index for place in occupied for index in place.slices}


def fits(
    table: MigTable, row: GpuInstanceRow, start: int, existing: Sequence[tuple[GpuInstanceRow, Placement]]
) -> bool:
    """Whether a GPU instance of this profile can begin there beside those that exist.

    Memory slices are exclusive; compute slices are counted, so that 4g and 3g fit and 3g, 3g and 2g do not; and some
    profiles may exist only so often, whatever is free (``1g+me``).
    """
    if start not in row.starts:
        return False
    if set(Placement(start, row.size).slices) & taken(place for _, place in existing):
        return False
    if sum(other.c for other, _ in existing) + row.c > table.compute_slices:
        return False
    return sum(other.id == row.id for other, _ in existing) < row.instances


def compute_rows(table: MigTable, gpu_instance: GpuInstanceRow) -> list[ComputeInstanceRow]:
    """How a GPU instance of this profile may be cut."""
    return [row for row in table.ci if row.gi == gpu_instance.c]


def free_start(row: ComputeInstanceRow, wanted: int | None, existing: Iterable[Placement]) -> int | None:
    """Where a compute instance of this profile goes: the wanted place, or the first that is free; None: nowhere."""
    occupied = taken(existing)
    for start in row.starts:
        if wanted not in {None, start}:
            continue
        if not occupied & set(Placement(start, row.c).slices):
            return start
    return None
