"""``CommonEdits``: what every container with a GPU gets, whichever it has."""

from collections.abc import Hashable

import dra_kit as dra

from gpu_driver.hardware import Hardware
from gpu_driver.prepare import ctk
from gpu_driver.prepare.driver_files import driver_files
from gpu_driver.prepare.edits import control_nodes
from gpu_driver.settings import Settings


class CommonEdits:
    """The control nodes, looked at each time, and the driver's files, looked for once for each version of the driver.

    ``nvidia-ctk`` opens every GPU to tell of them, which takes seconds.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, dra.ContainerEdits] = {}

    def of(self, hardware: Hardware, settings: Settings) -> dra.ContainerEdits:
        """The edits.

        Raises:
            NotYet: a control node or the driver's libraries are not on the host.
            TransientError: ``nvidia-ctk`` fails.
        """
        program = ctk.installed(hardware, settings.nvidia_ctk)
        changed = None if program is None else program.stat().st_mtime_ns
        key = (hardware.host, settings.driver_root, hardware.nvml.driver_version(), program, changed)
        files = self._known.get(key)
        if files is None:  # claims that are prepared at once may look at once: they see the same
            files = self._look(hardware, settings, by_tool=program is not None)
            self._known = {key: files}
        # keeps the container toolkit's own hook from adding GPUs that the claim does not have
        env = {**files.env, "NVIDIA_VISIBLE_DEVICES": "void"}
        return files.model_copy(update={"env": env, "device_nodes": control_nodes(hardware)})

    def _look(self, hardware: Hardware, settings: Settings, *, by_tool: bool) -> dra.ContainerEdits:
        if by_tool:
            return ctk.edits_of_driver(hardware, settings.nvidia_ctk, settings.driver_root)
        return dra.ContainerEdits(mounts=driver_files(hardware, settings.driver_root))
