"""A double of ``nvidia-smi``: what this driver uses of it."""

import os
import sys
import time
from pathlib import Path

from gpu_driver.nvml.errors import NvmlError
from gpu_driver.nvml.fake.fake import FakeNvml
from gpu_driver.nvml.fake.hardware import FOLDER, NODE, PROFILE
from gpu_driver.nvml.fake.profile import load

_USAGE = "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help."


def main() -> int:
    """Run it with the process's arguments; the exit code."""
    profile = load(os.environ[PROFILE], os.environ[NODE])
    nvml = FakeNvml(profile, Path(os.environ[FOLDER]))
    time.sleep(profile.timing.smi)
    match sys.argv[1:]:
        case ["compute-policy", "-i", gpu, "--set-timeslice", number] if number in {"0", "1", "2", "3"}:
            return _set_time_slice(nvml, gpu, int(number))
        case ["-i", gpu, "--query-gpu=persistence_mode", "--format=csv,noheader"]:
            nvml.compute_mode(gpu)
            print("Enabled" if nvml.state.read().gpus[gpu].persistence else "Disabled")
            return 0
        case ["-i", gpu, "-pm", number] if number in {"0", "1"}:
            with nvml.state.changing() as state:
                state.gpus[gpu].persistence = number == "1"
            print(f"{'Enabled' if number == '1' else 'Disabled'} persistence mode for GPU {gpu}.")
            return 0
        case ["--query-gpu=index,uuid,name", "--format=csv,noheader"]:
            for index, facts in enumerate(nvml.gpus()):
                print(f"{index}, {facts.uuid}, {facts.name}")
            return 0
    print(_USAGE)
    return 2


def _set_time_slice(nvml: FakeNvml, gpu: str, number: int) -> int:
    known = {item.uuid: item for item in nvml.profile.gpus}
    if gpu not in known:
        print(f"No devices were found matching {gpu}")
        return 6
    try:
        nvml.compute_mode(gpu)
    except NvmlError as error:
        print(f"Unable to determine the device handle for GPU {known[gpu].pci}: {error.code.name}")
        return 15
    if not nvml.profile.type_of(known[gpu]).time_slice:
        print("Timeslice: Not Supported")
        return 3
    with nvml.state.changing() as state:
        state.gpus[gpu].time_slice = number
    print(f"Timeslice set to {number} for GPU {known[gpu].pci}")
    return 0
