"""The fixture ``dra`` in the project of somebody who writes a driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = """\
[tool.dra-kit]
driver = "bakery:driver"
[tool.pytest.ini_options]
dra_settings = ["flour=rye"]
dra_editable = ["price_list"]
"""

DRIVER = """\
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import dra_kit as dra
from pydantic import BaseModel


class Settings(BaseModel):
    flour: str = "wheat"
    price_list: Path = Path(__file__).with_name("prices")


class Oven(dra.DeviceProvider):
    async def discover(self) -> AsyncIterator[Sequence[dra.Device]]:
        yield [dra.Device(name=f"bread-{i}", attributes={"crust": "dark"}) for i in range(2)]


class Baker(dra.Preparer):
    def startup(self, context):
        self.settings = context.settings

    def prepare(self, claim, device):
        price = self.settings.price_list.read_text().strip()
        return dra.Prepared(env={"FLOUR": self.settings.flour, "PRICE": price})


driver = dra.Driver("bread.example", provider=Oven(), preparer=Baker(), settings=Settings)
"""

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
spec: {devices: {requests: [{name: bread, exactly: {deviceClassName: bread%s}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: guest}
spec:
  restartPolicy: Never
  containers:
  - name: eater
    image: busybox:stable
    command: [sh, -c, "%s"]
    resources: {claims: [{name: bread}]}
  resourceClaims: [{name: bread, resourceClaimName: loaf}]
"""

TESTS = '''\
import pytest
from dra_kit.testing import Harness, Invalid, NotFound

ORDER = """
{nothing}
"""


def test_a_container_gets_its_bread(dra: Harness):
    dra.apply("order.yaml")
    guest = dra.wait("guest", phase="Succeeded")
    assert guest.containers["eater"].environment["FLOUR"] == "rye"
    assert guest.containers["eater"].output == "mine\\n"
    dra.delete("Pod/guest")
    assert "allocation" not in dra.claim("loaf").get("status", {{}})


def test_no_bread_matches(dra):
    dra.apply(ORDER)
    assert dra.wait("guest", message="cannot allocate all claims").phase == "Pending"


def test_a_file_of_a_setting(dra):
    dra.replace_file("price_list", "3 euros")
    dra.apply("order.yaml")
    assert dra.wait("guest").containers["eater"].environment["PRICE"] == "3 euros"


def test_it_was_put_back(dra):
    dra.apply("order.yaml")
    assert dra.wait("guest").containers["eater"].environment["PRICE"] == "2 euros"


def test_what_the_server_refuses(dra):
    with pytest.raises(Invalid, match="deviceClassName"):
        dra.apply({{
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {{"name": "loaf"}},
            "spec": {{"devices": {{"requests": [{{"name": "bread", "exactly": {{"deviceClassName": "A B"}}}}]}}}},
        }})
    with pytest.raises(NotFound):
        dra.claim("loaf")


@pytest.mark.dra_namespace(labels={{"taste": "sour"}})
def test_the_namespace_is_ones_own(dra):
    assert dra.namespace.startswith("test-test-the-namespace-is-ones-own-")


def test_a_failure_tells_what_happened(dra):
    dra.apply("order.yaml")
    dra.wait("guest", phase="Failed", message="stale")
'''


@pytest.mark.timeout(300)
def test_a_project_with_a_driver_is_tested(tmp_path: Path) -> None:
    files = {
        "pyproject.toml": PROJECT,
        "bakery.py": DRIVER,
        "prices": "2 euros\n",
        "deviceclasses.yaml": CLASSES,
        "tests/order.yaml": ORDER % ("", "echo mine"),
        "tests/test_bread.py": TESTS.format(nothing=ORDER % (', selectors: [{cel: {expression: "false"}}]', "true")),
        "conftest.py": "import pytest\n\n"
        "@pytest.fixture(scope='session')\n"
        "def dra_bed(dra_bed):\n"
        "    import dataclasses\n"
        "    yield dataclasses.replace(dra_bed, timeout=20)\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")

    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "tests"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)

    assert "1 failed, 6 passed" in run.stdout, run.stdout + run.stderr
    assert "pod guest is Succeeded; it should be Failed and told 'stale'" in run.stdout
    assert "container eater ended with 0: mine" in run.stdout
