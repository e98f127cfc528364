"""Device files of claims in the sandbox: a container whose device file does not exist does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_kit.testing import sandbox

DRIVER = """\
from pathlib import Path
import dra_kit as dra
from pydantic import BaseModel

class Settings(BaseModel):
    root: Path = Path("/")

class Ovens(dra.DeviceProvider):
    def discover(self):
        yield [dra.Device(name="oven-0")]

class Cook(dra.Preparer):
    def prepare(self, claim, device):
        return dra.Prepared(device_nodes=[dra.DeviceNode(path="/dev/dra-kit-oven0")])

driver = dra.Driver("ovens.example.com", provider=Ovens(), preparer=Cook(), settings=Settings)
"""
ORDER = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: ovens}
spec: {selectors: [{cel: {expression: 'device.driver == "ovens.example.com"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: lunch}
spec: {devices: {requests: [{name: oven, exactly: {deviceClassName: ovens}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: guest}
spec:
  restartPolicy: Never
  containers: [{name: main, image: busybox, command: ["true"], resources: {claims: [{name: oven}]}}]
  resourceClaims: [{name: oven, resourceClaimName: lunch}]
"""


@pytest.fixture
def driver(tmp_path: Path) -> str:
    (tmp_path / "file_givers.py").write_text(DRIVER)
    return f"{tmp_path}/file_givers.py"


def test_container_whose_device_file_does_not_exist_does_not_start(driver: str, tmp_path: Path) -> None:
    with sandbox(driver, time_scale=60, timeout=60) as bed, bed.harness("missing", directory=tmp_path) as dra:
        dra.apply(ORDER)
        guest = dra.wait("guest", message="is not on this machine")
        assert not guest.containers
        [text] = [text for text in guest.messages if "is not on this machine" in text]
        for part in ("device node /dev/dra-kit-oven0", "oven:node-1:oven-0", "ResourceClaim lunch"):
            assert part in text


def test_file_in_the_folder_of_the_simulated_hardware_will_do(driver: str, tmp_path: Path) -> None:
    (tmp_path / "fake" / "dev").mkdir(parents=True)
    (tmp_path / "fake" / "dev" / "dra-kit-oven0").touch()
    settings = {"root": str(tmp_path / "fake")}
    with (
        sandbox(driver, settings=settings, time_scale=60, timeout=60) as bed,
        bed.harness("simulated", directory=tmp_path) as dra,
    ):
        dra.apply(ORDER)
        assert list(dra.wait("guest", phase="Succeeded").containers["main"].device_nodes or ()) == [
            "/dev/dra-kit-oven0"
        ]
