"""Mistakes in claims, as their authors meet them: when the claim is applied, or as an Event of the pod."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dra_kit.testing import Harness, Invalid

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "job"},
    "spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "main",
                "image": "busybox:stable",
                "command": ["sleep", "3600"],
                "resources": {"claims": [{"name": "gpu"}]},
            }
        ],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}],
    },
}


def claim(parameters: str, requests: str = "[gpu]") -> str:
    return f"""
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: gpu}}
spec:
  devices:
    requests:
    - {{name: gpu, exactly: {{deviceClassName: gpu.nvidia.com}}}}
    config:
    - requests: {requests}
      opaque:
        driver: gpu.nvidia.com
        parameters: {{apiVersion: resource.nvidia.com/v1beta1, {parameters}}}
"""


def test_a_config_of_the_wrong_kind_for_its_request_is_an_event(dra: Harness) -> None:
    dra.apply(claim("kind: MigDeviceConfig"), POD)
    dra.wait("job", message="MigDeviceConfig of the claim, for gpu does not fit gpu-0, which takes GpuConfig")


def test_a_config_for_all_requests_is_ignored_by_other_devices(dra: Harness) -> None:
    dra.apply(claim("kind: MigDeviceConfig", requests="[]"), POD)
    dra.wait("job", phase="Running")


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        (
            "kind: GpuConfig, sharing: {strategy: MPS, mpsConfig: {defaultActiveThreadPercentage: 101}}",
            "sharing.mpsConfig.defaultActiveThreadPercentage",
        ),
        ("kind: GpuConfig, sharing: {strategy: TimeSlicing, mpsConfig: {}}", "mpsConfig goes with strategy MPS"),
        ("kind: GpuConfig, Sharing: {strategy: MPS}", "Sharing"),
        ("kind: GpuConfigs", "GpuConfigs"),
    ],
)
def test_an_invalid_config_is_rejected_when_the_claim_is_applied(dra: Harness, parameters: str, problem: str) -> None:
    with pytest.raises(Invalid, match=problem):
        dra.apply(claim(parameters))


def test_limits_of_a_device_outside_the_claim_are_an_event(dra: Harness) -> None:
    limits = "{strategy: MPS, mpsConfig: {defaultPerDevicePinnedMemoryLimit: {'7': 1Gi}}}"
    dra.apply(claim(f"kind: GpuConfig, sharing: {limits}"), POD)
    dra.wait("job", message="device 7 does not exist in this group of 1")


def test_a_share_with_admin_access_is_rejected(dra: Harness) -> None:
    asked: Any = claim("kind: GpuConfig", requests="[]").replace(
        "deviceClassName: gpu.nvidia.com", "deviceClassName: monitor.gpu.nvidia.com"
    )
    dra.apply(asked, POD)
    dra.wait("job", message="write adminAccess: true, or ask for a GPU")


MPS = "sharing: {strategy: MPS, mpsConfig: {defaultActiveThreadPercentage: 25}}"
ENFORCED = f"""
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: shared.example}}
spec:
  selectors:
  - cel: {{expression: "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"}}
  config:
  - opaque:
      driver: gpu.nvidia.com
      parameters: {{apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, enforced: true, {MPS}}}
"""


def of_class(parameters: str) -> str:
    """A claim for the class that enforces MPS."""
    return claim(parameters).replace("deviceClassName: gpu.nvidia.com", "deviceClassName: shared.example")


@pytest.mark.parametrize(
    "parameters",
    [
        "kind: GpuConfig",
        "kind: GpuConfig, sharing: {strategy: TimeSlicing}",
        "kind: GpuConfig, enforced: true, sharing: {strategy: MPS}",
        "kind: GpuConfig, sharing: {strategy: MPS, mpsConfig: {defaultActiveThreadPercentage: 100}}",
    ],
)
def test_a_claim_cannot_replace_what_its_class_enforces(dra: Harness, parameters: str) -> None:
    dra.apply(ENFORCED, of_class(parameters), POD)
    dra.wait("job", message="cannot replace GpuConfig of the DeviceClass, for all requests: the class enforces its own")


def test_a_claim_may_repeat_what_its_class_enforces(dra: Harness) -> None:
    dra.apply(ENFORCED, of_class(f"kind: GpuConfig, {MPS}"), POD)
    assert "CUDA_MPS_PIPE_DIRECTORY" in dra.wait("job", phase="Running").containers["main"].environment


def test_lint_finds_a_claim_that_replaces_what_its_class_enforces(tmp_path: Path) -> None:
    (tmp_path / "manifests.yaml").write_text(f"{ENFORCED}---{of_class('kind: GpuConfig')}")
    command = [sys.executable, "-m", "dra_kit", "lint", "--driver", ".", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "class-config-replaced" in done.stdout + done.stderr
