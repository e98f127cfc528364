"""A whole fake node: the fake NVML, the host's files, and NVIDIA's programs beside it."""

import os
import sys
from pathlib import Path

from gpu_driver.hardware import Hardware
from gpu_driver.journal import Journal
from gpu_driver.nvml.fake.bus import FakeBus
from gpu_driver.nvml.fake.fake import FakeNvml
from gpu_driver.nvml.fake.profile import load

PROFILE = "GPU_DRIVER_FAKE_PROFILE"
FOLDER = "GPU_DRIVER_FAKE_FOLDER"
NODE = "GPU_DRIVER_FAKE_NODE"
"""Variables by which the doubles of NVIDIA's programs find the GPUs."""

_DOUBLES = {
    "nvidia-smi": "gpu_driver.doubles.nvidia_smi",
    "nvidia-cuda-mps-control": "gpu_driver.doubles.nvidia_cuda_mps_control",
}


def fake_hardware(profile: str, folder: Path, node: str = "") -> Hardware:
    """Make a node with a profile's GPUs; what is done to them stays in the folder.

    With the name of a ``node``, their UUIDs are not those of another node with the same profile.

    Raises:
        ConfigurationError: the profile does not exist.
    """
    nvml = FakeNvml(load(profile, node), folder)
    programs = folder / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    for name, module in _DOUBLES.items():
        script = programs / name
        script.write_text(f"#!{sys.executable}\nimport sys\nfrom {module} import main\n\nsys.exit(main())\n")
        script.chmod(0o755)
    return Hardware(
        nvml=nvml,
        host=folder / "host",
        programs=(programs,),
        journal=Journal(folder / "journal"),
        mps_root=folder / "mps",
        environment={
            PROFILE: profile,
            FOLDER: str(folder),
            NODE: node,
            "PYTHONPATH": ":".join(filter(None, sys.path)),
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        },
        fake=True,
        bus=FakeBus(nvml.profile, nvml.state),
    )
