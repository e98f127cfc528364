"""``CommonEdits``: what every container with a GPU gets, whichever it has."""

from collections.abc import Hashable
from pathlib import Path

import dra_kit as dra

from gpu_driver.hardware import Hardware
from gpu_driver.prepare import ctk
from gpu_driver.prepare.driver_files import driver_files
from gpu_driver.prepare.edits import control_nodes
from gpu_driver.settings import Settings


class CommonEdits:
    """The control nodes, looked at each time, and the driver's files, looked for when they are others than before.

    ``nvidia-ctk`` opens every GPU, which takes seconds. Its output is cached as long as driver and tool are the same
    and every file is where it was.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[dra.ContainerEdits, frozenset[str]]] = {}

    def of(self, hardware: Hardware, settings: Settings) -> dra.ContainerEdits:
        """Return the common edits.

        Raises:
            NotYet: a control node or the driver's libraries are not on the host.
            TransientError: ``nvidia-ctk`` fails.
        """
        program = ctk.installed(hardware, settings.nvidia_ctk)
        tool = None if program is None else program.stat()
        version = None if tool is None else (tool.st_ino, tool.st_mtime_ns)
        key = (hardware.host, settings.driver_root, hardware.nvml.driver_version(), program, version)
        files, missing = self._known.get(key, (None, frozenset[str]()))
        if files is None or _missing(files, hardware.host) != missing:
            # claims that are prepared at once may look at once: they see the same
            files = self._look(hardware, settings, by_tool=program is not None)
            self._known = {key: (files, _missing(files, hardware.host))}
        # keeps the container toolkit's own hook from adding GPUs that the claim does not have
        env = {**files.env, "NVIDIA_VISIBLE_DEVICES": "void"}
        return files.model_copy(update={"env": env, "device_nodes": control_nodes(hardware)})

    def _look(self, hardware: Hardware, settings: Settings, *, by_tool: bool) -> dra.ContainerEdits:
        if by_tool:
            return ctk.edits_of_driver(hardware, settings.nvidia_ctk, settings.driver_root)
        return dra.ContainerEdits(mounts=driver_files(hardware, settings.driver_root))


def _missing(files: dra.ContainerEdits, host: Path) -> frozenset[str]:
    """Return what of all that is mounted and run is not on the host, or cannot be seen from here."""
    paths = [*(mount.host_path for mount in files.mounts), *(hook.path for hook in files.hooks)]
    return frozenset(path for path in paths if not _seen(host, Path(path)).exists())


def _seen(host: Path, path: Path) -> Path:
    """As this process sees it; fake files have their own path already."""
    return path if path.is_relative_to(host) else host / path.relative_to("/")
