"""The driver: NVIDIA GPUs for claims."""

import dra_kit as dra

from gpu_driver.devices.provider import GpuProvider
from gpu_driver.effects.compute_mode import SetComputeMode
from gpu_driver.effects.mig.compute_instance import CreateComputeInstance
from gpu_driver.effects.mig.gpu_instance import CreateGpuInstance
from gpu_driver.effects.mig.mode import SetMigMode
from gpu_driver.effects.mps.daemon import MpsDaemon
from gpu_driver.effects.mps.paths import MakeMpsFolder
from gpu_driver.effects.mps.pod import MpsPod
from gpu_driver.effects.time_slice import SetTimeSlice
from gpu_driver.effects.vfio import BindVfio
from gpu_driver.health import GpuHealth
from gpu_driver.opening import open_hardware
from gpu_driver.prepare.preparer import GpuPreparer
from gpu_driver.settings import Settings

driver = dra.Driver(
    "gpu.nvidia.com",
    provider=GpuProvider(),
    preparer=GpuPreparer(),
    effects=[
        SetComputeMode,
        SetTimeSlice,
        SetMigMode,
        CreateGpuInstance,
        CreateComputeInstance,
        MakeMpsFolder,
        MpsDaemon,
        MpsPod,
        BindVfio,
    ],
    settings=Settings,
    hardware=open_hardware,
    rescan_every=60,
    health=GpuHealth(),
)
