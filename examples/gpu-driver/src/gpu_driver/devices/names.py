"""Names of devices, and numbers as the API wants them."""

import re

import dra_kit as dra

from gpu_driver.nvml.backend import Placement


def whole(minor: int) -> str:
    """``gpu-0``: by the minor number, which stays when another GPU falls off the bus."""
    return f"gpu-{minor}"


def partition(minor: int, profile: str, profile_id: int, placement: Placement) -> str:
    """``gpu-0-mig-1g10gb-19-3``: profile, its id, and where it starts."""
    short = re.sub(r"[^a-z0-9]+", "-", profile.lower().replace(".", "")).strip("-")
    return f"gpu-{minor}-mig-{short}-{profile_id}-{placement.start}"


def part(partition: str, start: int) -> str:
    """``gpu-0-mig-3g20gb-9-0-c1``: of compute slices from ``start`` on, where others have the rest of the partition."""
    return f"{partition}-c{start}"


def passthrough(minor: int) -> str:
    """``gpu-vfio-0``."""
    return f"gpu-vfio-{minor}"


def monitor(minor: int) -> str:
    """``gpu-0-monitor``."""
    return f"gpu-{minor}-monitor"


def camel(name: str) -> str:
    """``default_active_thread_percentage`` as manifests write it: ``defaultActiveThreadPercentage``."""
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def kind(name: str) -> str:
    """Return what a name is of: ``gpu``, ``mig``, ``vfio`` or ``monitor``."""
    rest = name.split("-")[2:3]
    return rest[0] if rest else "gpu"


def version(text: str) -> dra.Version:
    """Return a driver's version as a semantic version: ``580.65.06`` is 580.65.6, ``575.57`` is 575.57.0.

    It ends before the first part that is not a number, as in ``580.65.06-beta``.
    """
    numbers = [int(part) for part in re.findall(r"\d+", re.split(r"[^0-9.]", text)[0])]
    return dra.Version(".".join(map(str, [*numbers, 0, 0, 0][:3])))
