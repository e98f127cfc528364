"""``open_hardware``: the node's real GPUs, or fake ones with ``--fake-gpus``."""

from pathlib import Path

import dra_kit as dra

from gpu_driver.hardware import Hardware
from gpu_driver.host.driver_root import LIBRARY, driver_root, find_library, library_folders, program_folders
from gpu_driver.journal import Journal
from gpu_driver.nvml.errors import NvmlError, NvmlReturn
from gpu_driver.nvml.fake.hardware import fake_hardware
from gpu_driver.settings import Settings


def open_hardware(context: dra.Context[Settings]) -> Hardware:
    """Open the hardware for ``Driver(hardware=…)``, once per node. An error ends the process, which is started again.

    Raises:
        ConfigurationError: the profile does not exist, or the node has no NVIDIA driver.
        TransientError: the driver is installed and does not answer, such as while its kernel modules are not loaded.
    """
    settings = context.settings
    if settings.fake_gpus:
        folder = settings.fake_folder or context.state_dir / "fake-gpus"
        return fake_hardware(settings.fake_gpus, folder, context.node.name)
    root = driver_root(settings.host_root, settings.driver_root)
    library = find_library(root, settings.host_root)
    if library is None:
        raise dra.ConfigurationError(
            f"no NVIDIA driver on this node: {LIBRARY} is in none of {library_folders(root)}; set --driver-root to "
            "where it is installed on the host, or use fake GPUs with --fake-gpus PROFILE"
        )
    return real_hardware(library, root, settings.host_root, Journal(context.state_dir / "journal"))


def real_hardware(library: Path, root: Path, host: Path, journal: Journal) -> Hardware:
    """NVIDIA's library, opened, and the programs that came with it.

    Raises:
        ConfigurationError: the library cannot be loaded.
        TransientError: it does not answer.
    """
    from gpu_driver.nvml.library import NvmlLibrary  # fake GPUs need no binding

    nvml = NvmlLibrary(library)
    try:
        nvml.driver_version()
    except NvmlError as error:
        if error.code is NvmlReturn.LIBRARY_NOT_FOUND:
            raise dra.ConfigurationError(
                f"{error.subject}: NVML cannot be loaded; install the driver for this processor below {root}, or "
                "use fake GPUs with --fake-gpus PROFILE"
            ) from None
        raise dra.TransientError(
            f"NVIDIA's driver below {root} does not answer: {error}; see whether its kernel modules are loaded and fit "
            "its library (nvidia-smi)"
        ) from None
    # a container's own loader does not look below the driver root
    environment = {"LD_PRELOAD": str(library)} if root != Path("/") else {}
    return Hardware(
        nvml=nvml, host=host, programs=program_folders(root), journal=journal, environment=environment, fake=False
    )
