"""The project of a driver with an effect, in two releases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PROJECT = """\
[tool.dra-kit]
driver = "ovens:driver"
[tool.dra-kit.sandbox.settings]
oven_dir = "{directory}/oven"
[tool.pytest.ini_options]
asyncio_default_fixture_loop_scope = "function"
"""

DRIVER = """\
from collections.abc import Iterator, Sequence
from pathlib import Path

import dra_kit as dra
from pydantic import BaseModel

BREADS = ("bread-0", "bread-1")
DEGREES = 200


class Settings(BaseModel):
    oven_dir: Path = Path("/sys/oven")


class BakeConfig(dra.OpaqueConfig, api_version="bread.example/v1"):
    crust: str = "thin"


class Heat(dra.Effect[str], id="heat"):
    bread: str
    degrees: int
    oven_dir: str

    def keys(self) -> list[str]:
        return [self.bread]

    def title(self) -> str:
        return f"{self.degrees} degrees for {self.bread}"

    def apply(self, previous: str | None) -> str:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(str(self.degrees))
        return f"flame-{self.degrees}"

    def holds(self, outcome: str) -> bool:
        return self.file.exists()

    def revert(self, outcome: str | None) -> None:
        self.file.unlink(missing_ok=True)

    @property
    def file(self) -> Path:
        return Path(self.oven_dir) / self.bread


class Oven(dra.DeviceProvider):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [dra.Device(name=name, attributes={"crusty": True}, capacity={"slices": "8"}) for name in BREADS]


class Baker(dra.Preparer[BakeConfig]):
    def startup(self, context: dra.Context[Settings]) -> None:
        self.oven_dir = str(context.settings.oven_dir)

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[BakeConfig]) -> dra.Prepared:
        flame = await device.ensure(Heat(bread=device.name, degrees=DEGREES, oven_dir=self.oven_dir))
        burns = dra.Condition(type="Burns", status="True", reason="Lit", message="it burns")
        return dra.Prepared(env={"FLAME": flame}, status=dra.DeviceStatus(conditions=[burns]))


driver = dra.Driver("bread.example", provider=Oven(), preparer=Baker(), settings=Settings, effects=[Heat])
"""

NEXT = (
    DRIVER.replace('"bread-1")', '"bread-1", "bread-2")')
    .replace("DEGREES = 200", "DEGREES = 250")
    .replace('crust: str = "thin"', 'crust: str = "thin"\n    seeds: bool = False')
)
BROKEN = DRIVER.replace("self.oven_dir = str", "raise RuntimeError('the oven is cold')\n        self.oven_dir = str")

CLASSES = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: bread}
spec: {selectors: [{cel: {expression: device.driver == "bread.example"}}]}
"""

ORDER = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: loaf}
spec: {devices: {requests: [{name: bread, exactly: {deviceClassName: bread}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: guest}
spec:
  restartPolicy: Always
  terminationGracePeriodSeconds: 0
  containers:
  - name: eater
    image: busybox:stable
    command: [sh, -c, "echo $FLAME; sleep 3600"]
    resources: {claims: [{name: bread}]}
  resourceClaims: [{name: bread, resourceClaimName: loaf}]
"""

SEEDS = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: seeds}
spec:
  devices:
    requests: [{name: bread, exactly: {deviceClassName: bread}}]
    config:
    - opaque: {driver: bread.example, parameters: {apiVersion: bread.example/v1, kind: BakeConfig, seeds: true}}
"""


def write_project(folder: Path, others: dict[str, str] | None = None) -> Path:
    """The project in a folder, with further files by path."""
    files = {
        "pyproject.toml": PROJECT,
        "ovens.py": DRIVER,
        "next_ovens.py": NEXT,
        "broken_ovens.py": BROKEN,
        "deviceclasses.yaml": CLASSES,
        "tests/order.yaml": ORDER,
        **(others or {}),
    }
    write_files(folder, files)
    return folder


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Files by path, relative to a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
