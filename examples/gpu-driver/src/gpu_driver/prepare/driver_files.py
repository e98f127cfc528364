"""The driver's libraries and programs for a container, where there is no ``nvidia-ctk``."""

import os
from collections.abc import Iterator
from pathlib import Path

import dra_kit as dra

from gpu_driver.hardware import Hardware
from gpu_driver.host.driver_root import LIBRARIES, behind, driver_root, program_folders

_LIBRARIES_AT = "/usr/local/nvidia/lib64"
_PROGRAMS_AT = "/usr/local/nvidia/bin"
"""Where images that are made for GPUs look (``LD_LIBRARY_PATH`` and ``PATH`` of ``nvidia/cuda``): no hook has to make
links, or the container's linker look elsewhere."""

_PROGRAMS = ("nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
_READ_ONLY = ("ro", "nosuid", "nodev")


def driver_files(hardware: Hardware, installed: Path) -> list[dra.Mount]:
    """Every library of the driver's version, by its own name and by those that link to it, and its programs.

    Args:
        hardware: of the node.
        installed: where the driver is, on the host.

    Raises:
        NotYet: no library has that version.
    """
    version = hardware.nvml.driver_version()
    root = driver_root(hardware.host, installed)
    on_host = root if hardware.fake else installed  # fake files are there to be mounted, too
    libraries = list(_libraries(hardware, root, version))
    if not libraries:
        raise dra.NotYet(
            f"no library of NVIDIA's driver {version} (*.so.{version}) below {root}; set --driver-root to where it is "
            "installed on the host"
        )
    programs = [
        _mount(on_host / folder.relative_to(root) / name, f"{_PROGRAMS_AT}/{name}")
        for folder in program_folders(root)
        for name in _PROGRAMS
        if _is_program(behind(folder / name, hardware.host))
    ]
    mounts: dict[str, dra.Mount] = {}
    for mount in (*libraries, *programs):
        mounts.setdefault(mount.container_path, mount)  # the first folder wins, as for this process
    return [mounts[path] for path in sorted(mounts)]


def _libraries(hardware: Hardware, root: Path, version: str) -> Iterator[dra.Mount]:
    host = hardware.host
    for folder in LIBRARIES:
        for name in sorted(os.listdir(root / folder) if (root / folder).is_dir() else ()):
            library = behind(root / folder / name, host)
            if library.name.endswith(f".so.{version}") and library.is_relative_to(host) and library.exists():
                on_host = library if hardware.fake else "/" / library.relative_to(host)
                for known in {name, library.name}:
                    yield _mount(on_host, f"{_LIBRARIES_AT}/{known}")


def _is_program(path: Path) -> bool:
    """Return whether this is a program; a script in front of one runs what no container has."""
    try:
        with path.open("rb") as file:
            return file.read(2) != b"#!"
    except OSError:
        return False


def _mount(source: Path, target: str) -> dra.Mount:
    return dra.Mount(host_path=str(source), container_path=target, options=_READ_ONLY)
