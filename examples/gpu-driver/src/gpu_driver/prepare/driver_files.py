"""The driver's libraries and programs for a container, where no ``nvidia-ctk`` tells of them."""

from collections.abc import Iterator
from pathlib import Path

import dra_kit as dra

from gpu_driver.hardware import Hardware

LIBRARIES = "/usr/local/nvidia/lib64"
PROGRAMS = "/usr/local/nvidia/bin"
"""Where images that are made for GPUs look (``LD_LIBRARY_PATH`` and ``PATH`` of ``nvidia/cuda``): no hook has to make
links, or the container's linker look elsewhere."""

_FOLDERS = ("usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib", "lib64", "lib")
_PROGRAMS = ("nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
_READ_ONLY = ("ro", "nosuid", "nodev")


def driver_files(hardware: Hardware, driver_root: Path) -> list[dra.Mount]:
    """Every library of the driver's version, by its own name and by those that link to it, and its programs.

    Args:
        hardware: of the node.
        driver_root: where the driver is installed, on the host.

    Raises:
        NotYet: there is no library of that version.
    """
    version = hardware.nvml.driver_version()
    root = hardware.host / str(driver_root).lstrip("/")
    on_host = root if hardware.fake else driver_root  # pretended files are there to be mounted, too
    mounts = {mount.container_path: mount for mount in _libraries(root, on_host, version)}
    if not mounts:
        raise dra.NotYet(
            f"no library of NVIDIA's driver {version} (*.so.{version}) below {root}; set --driver-root to where it is "
            "installed on the host"
        )
    for name in _PROGRAMS:
        for folder in ("usr/bin", "bin"):
            if (root / folder / name).exists():
                mounts.setdefault(f"{PROGRAMS}/{name}", _mount(on_host / folder / name, f"{PROGRAMS}/{name}"))
    return [mounts[path] for path in sorted(mounts)]


def _libraries(root: Path, on_host: Path, version: str) -> Iterator[dra.Mount]:
    for folder in _FOLDERS:
        for library in (root / folder).glob(f"*.so.{version}"):
            links = library.parent.glob(f"{library.name.removesuffix(version)}*")
            names = {library.name, *(link.name for link in links if _links(link, library))}
            for name in names:
                yield _mount(on_host / folder / library.name, f"{LIBRARIES}/{name}")


def _links(link: Path, library: Path) -> bool:
    return link.is_symlink() and link.resolve() == library.resolve()


def _mount(source: Path, target: str) -> dra.Mount:
    return dra.Mount(host_path=str(source), container_path=target, options=_READ_ONLY)
