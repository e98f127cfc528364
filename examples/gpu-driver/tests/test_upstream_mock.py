"""Our ``libnvidia-ml.so.1`` answers as the mock of NVIDIA's k8s-test-infra does, wherever both answer.

``recorded/nvml-mock.json`` has the answers of that library (revision 3b2b865). ``python -m tests.test_upstream_mock
LIBRARY CONFIGS`` records them again, from the output of ``make -C pkg/gpu/mocknvml`` there and its folder ``configs``.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_driver.nvml.fake.profile import Profile, load
from tests.library_double import describe
from tests.nvml_calls import Answer

RECORDING = Path(__file__).parent / "recorded" / "nvml-mock.json"
PROFILES = {"a100": "a100-40gb", "h100": "h100", "gb200": "gb200"}
"""Our profile of the GPUs that a config of theirs is about."""

_XIDS_ALONE = 0x8
_NOT_SUPPORTED = "error 3"


def answers(library: Path, **environment: str) -> Answer:
    """What a library answers, in a process of its own."""
    command = [sys.executable, "-m", "tests.nvml_calls", str(library)]
    asked = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    found: Answer = json.loads(asked.stdout)
    return found


def of_the_same_gpus(profile: Profile, answers: Answer) -> Profile:
    """The profile with the identity, the memory and the versions of GPUs that answered."""
    count, cuda = answers["nvmlDeviceGetCount"], answers["nvmlSystemGetCudaDriverVersion"]
    assert isinstance(count, int)
    assert isinstance(cuda, int)
    first = [dict(_identity(answers, index)) for index in range(2)]
    rest = [
        {"uuid": f"GPU-{index}", "serial": str(index), "minor": index, "pci": f"00ff:{index:02x}:00.0"}
        for index in range(2, count)
    ]
    gpus = tuple(profile.gpus[0].model_copy(update=update) for update in [*first, *rest])
    kind = profile.type_of(profile.gpus[0])
    size, pci = answers["0 nvmlDeviceGetMemoryInfo"], answers["0 nvmlDeviceGetPciInfo"]
    assert isinstance(size, int)
    assert isinstance(pci, list)
    same = kind.model_copy(update={"memory_mib": size >> 20, "pci_device_id": pci[3] >> 16})
    return profile.model_copy(
        update={
            "driver_version": answers["nvmlSystemGetDriverVersion"],
            "cuda_driver_version": (cuda // 1000, cuda % 1000 // 10),
            "gpu_types": {profile.gpus[0].type: same},
            "gpus": gpus,
        }
    )


def _identity(answers: Answer, index: int) -> Answer:
    pci = answers[f"{index} nvmlDeviceGetPciInfo"]
    assert isinstance(pci, list)
    return {
        "uuid": answers[f"{index} nvmlDeviceGetUUID"],
        "serial": answers[f"{index} nvmlDeviceGetSerial"],
        "minor": answers[f"{index} nvmlDeviceGetMinorNumber"],
        "pci": f"{pci[0]:04x}:{pci[1]:02x}:{pci[2]:02x}.0",
    }


@pytest.mark.parametrize("config", PROFILES)
def test_fake_and_upstream_mock_give_the_same_answers(config: str, nvml_library: Path, tmp_path: Path) -> None:
    theirs: Answer = json.loads(RECORDING.read_text(encoding="utf-8"))[config]
    text = tmp_path / "gpus"
    profile = of_the_same_gpus(load(PROFILES[config]), theirs)
    text.write_text(describe(profile, _XIDS_ALONE), encoding="utf-8")
    ours = answers(nvml_library, NVML_DOUBLE_PROFILE=str(text))
    both = [call for call in theirs if _NOT_SUPPORTED not in {str(theirs[call]), str(ours[call])}]
    assert len(both) > 35
    assert {call: ours[call] for call in both} == {call: theirs[call] for call in both}


def _record(library: Path, configs: Path) -> None:
    found = {
        config: answers(library, MOCK_NVML_CONFIG=str(configs / f"mock-nvml-config-{config}.yaml"))
        for config in PROFILES
    }
    RECORDING.parent.mkdir(exist_ok=True)
    RECORDING.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _record(*map(Path, sys.argv[1:3]))
