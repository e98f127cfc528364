"""On a machine with a GPU: programs use CUDA in containers that get what the driver prepares for their claims."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from dra_kit.testing import ContainerFacts, Harness, TestBed, sandbox

from tests.gpu import container, cuda, nvidia_smi
from tests.gpu.claims import ROOT, cuda_folder, objects, obstacle

pytestmark = pytest.mark.gpu
MIB = 1000
"""Memory that a program asks for where it may have as much; three times as much is too much for it."""


@pytest.fixture(scope="module", autouse=True)
def whole_gpus() -> None:
    """Claims of this module get GPUs that are not divided, and nothing is changed on them."""
    reason = obstacle()
    if reason:
        pytest.skip(f"claims were not tested: {reason}")


@pytest.fixture(scope="module")
def dra_bed(whole_gpus: None) -> Iterator[TestBed]:
    """A cluster of one process whose driver has the real GPUs."""
    with sandbox("gpu_driver.driver:driver", settings={"fake_gpus": "", "driver_root": str(ROOT)}) as bed:
        yield bed


def pod(dra: Harness, **wanted: Any) -> ContainerFacts:
    """Run a pod with a device, as :func:`~tests.gpu.claims.objects` describes it; what its container gets."""
    dra.apply(*objects(**wanted))
    return dra.wait("one", phase="Running").containers["main"]


def compute(got: ContainerFacts, mebibytes: int = MIB, *, seconds: int = 0) -> dict[str, Any]:
    """Return what a CUDA program finds of its GPU in a container, the only one that it has.

    Args:
        got: what the container gets.
        mebibytes: of memory, that it asks for.
        seconds: for which it uses the GPU.
    """
    done = container.run(got, sys.executable, cuda.__file__, str(mebibytes), str(seconds))
    assert done.returncode == 0, done.stdout + done.stderr
    [found] = json.loads(done.stdout)["devices"]
    return dict(found)


def test_without_a_claim_a_container_has_no_gpu() -> None:
    done = container.run(ContainerFacts(), sys.executable, cuda.__file__, str(MIB))
    assert done.returncode != 0
    assert "libcuda.so.1" in done.stderr
    assert "is not in the container" in container.run(ContainerFacts(), "nvidia-smi", "-L").stderr


def test_a_container_computes_on_the_gpu_of_its_claim_and_sees_only_that_gpu(dra: Harness) -> None:
    got = pod(dra)
    [uuid] = [value for name, value in got.environment.items() if name.endswith("_UUID")]
    found = compute(got)
    assert (found["uuid"], found["gets_memory"]) == (uuid, True)
    shown = container.run(got, "nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")
    assert (shown.returncode, shown.stdout.split()) == (0, [uuid]), shown.stderr


def test_mps_clients_have_the_limits_of_their_claim_and_the_daemon_stops_with_it(dra: Harness) -> None:
    mps = {"defaultActiveThreadPercentage": 25, "defaultPinnedDeviceMemoryLimit": "1500Mi"}
    got = pod(dra, sharing={"strategy": "MPS", "mpsConfig": mps})
    pipe = Path(got.environment["CUDA_MPS_PIPE_DIRECTORY"])
    found = compute(got)
    assert found["gets_memory"]
    assert not compute(got, 3 * MIB)["gets_memory"]
    assert 0.2 < found["multiprocessors"] / without_mps(found["uuid"])["multiprocessors"] <= 0.25
    dra.delete("Pod/one")
    dra.delete("ResourceClaim/one")
    dra.wait_for(lambda: not pipe.parent.exists())


@pytest.mark.dra_process
def test_an_mps_client_keeps_computing_when_the_driver_is_killed(dra: Harness) -> None:
    got = pod(dra, sharing={"strategy": "MPS"})
    with ThreadPoolExecutor(1) as background:
        client = background.submit(compute, got, seconds=10)
        dra.kill()
        assert client.result()["gets_memory"]
    assert compute(got)["gets_memory"]


@pytest.mark.dra_namespace(labels={"resource.kubernetes.io/admin-access": "true"})
def test_a_management_pod_sees_every_gpu(dra: Harness) -> None:
    got = pod(dra, kind="monitor", allocationMode="All", adminAccess=True)
    shown = container.run(got, "nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")
    assert sorted(shown.stdout.split()) == sorted(nvidia_smi.query("uuid")), shown.stderr


def without_mps(uuid: str) -> dict[str, Any]:
    """Return what a CUDA program finds of a GPU on this machine itself."""
    variables = {"LD_LIBRARY_PATH": str(cuda_folder()), "PATH": os.environ["PATH"]}
    command = [sys.executable, cuda.__file__, str(MIB)]
    printed = subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout
    [found] = [device for device in json.loads(printed)["devices"] if device["uuid"] == uuid]
    return dict(found)
