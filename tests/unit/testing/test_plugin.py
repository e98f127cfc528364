"""The fixture ``dra`` in the project of a driver."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dra_kit.errors import ConfigurationError
from dra_kit.testing import sandbox
from tests.unit.testing.bakery import CLASSES, write_files

pytestmark = pytest.mark.processes

PROJECT = """\
[tool.dra-kit]
driver = "bakery:driver"
[tool.pytest.ini_options]
dra_settings = ["flour=rye"]
dra_editable = ["price_list", "shelf"]
"""

DRIVER = """\
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import dra_kit as dra
from pydantic import BaseModel


class Settings(BaseModel):
    flour: str = "wheat"
    price_list: Path = Path(__file__).with_name("prices")
    recipe: Path = Path(__file__).with_name("recipe")
    oven: Path = Path(__file__).parent
    shelf: Path = Path(__file__).with_name("shelf")


class Oven(dra.DeviceProvider):
    async def discover(self) -> AsyncIterator[Sequence[dra.Device]]:
        while True:
            breads = int(self.context.settings.shelf.read_text())
            yield [dra.Device(name=f"bread-{i}", attributes={"crust": "dark"}) for i in range(breads)]
            await self.context.stopping.sleep(0.1)


class Baker(dra.Preparer):
    def startup(self, context):
        self.settings = context.settings

    def prepare(self, claim, device):
        price = self.settings.price_list.read_text().strip()
        if price == "sold out":
            raise dra.PermanentError("the bread is sold out")
        return dra.Prepared(env={"FLOUR": self.settings.flour, "PRICE": price})


driver = dra.Driver("bread.example", provider=Oven(), preparer=Baker(), settings=Settings)
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
import base64
import json
import ssl
import time
import urllib.error
import urllib.request
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
    end = time.monotonic() + 60
    while "allocation" in dra.claim("loaf").get("status", {{}}):  # a controller takes it away
        assert time.monotonic() < end
        time.sleep(0.1)


def test_no_bread_matches(dra):
    dra.apply(ORDER)
    assert dra.wait("guest", message="cannot allocate all claims").phase == "Pending"


def test_others_are_not_let_in(dra):
    [cluster] = json.loads(dra.cluster.kubeconfig.read_text())["clusters"]
    authority = base64.b64decode(cluster["cluster"]["certificate-authority-data"]).decode()
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(
            cluster["cluster"]["server"] + "/api", context=ssl.create_default_context(cadata=authority)
        )


def test_devices_can_be_looked_at_and_waited_for(dra):
    dra.replace_file("shelf", "3")
    assert set(dra.devices()) == {{"bread-0", "bread-1", "bread-2"}}
    assert dra.devices()["bread-2"].attributes == {{"crust": "dark"}}
    dra.replace_file("shelf", "1")
    dra.wait_for(lambda: list(dra.devices()) == ["bread-0"])


def test_something_can_be_waited_for(dra):
    dra.apply("order.yaml")
    assert dra.wait_for(lambda: dra.claim("loaf")["metadata"]["uid"])
    dra.wait_for(lambda: dra.wait("guest").phase == "Succeeded")
    with pytest.raises(AssertionError, match="its last result was KeyError: 'nothing'"):
        dra.wait_for(lambda: dra.claim("loaf")["nothing"], timeout=0)
    dra.delete("Pod/guest")
    dra.wait_gone("Pod/guest")


def test_a_driver_is_restarted_with_a_pod_that_runs(dra):
    dra.apply("order.yaml")
    dra.wait("guest")
    dra.restart()
    assert dra.wait("guest").containers["eater"].environment["FLOUR"] == "rye"
    dra.delete("Pod/guest")  # released by the process that has not prepared it


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


def test_failure_lists_events_and_output(dra):
    dra.apply("order.yaml")
    dra.wait("guest", phase="Failed", message="stale", timeout=70)


def test_failure_explains_unsuitable_devices(dra):
    dra.apply(ORDER)
    dra.wait("guest", message="cannot allocate all claims")
    dra.wait("guest", timeout=1)


def test_an_object_that_the_server_refuses(dra):
    dra.apply(ORDER.replace("deviceClassName: bread", "deviceClassName: A B"))


def test_a_manifest_that_is_not_there(dra):
    dra.apply("orders.yaml")


def test_a_pod_that_was_never_applied(dra):
    dra.wait("nope", timeout=100_000)


def test_permanently_rejected_claim(dra):
    dra.replace_file("price_list", "sold out")
    dra.apply("order.yaml")
    dra.wait("guest", timeout=100_000)


def test_a_container_that_does_not_exist(dra):
    dra.apply("order.yaml")
    dra.wait("guest").containers["eatre"]


def test_a_variable_that_does_not_exist(dra):
    dra.apply("order.yaml")
    dra.wait("guest", phase="Succeeded").containers["eater"].environment["FLUOR"]


def test_a_file_of_the_project(dra):
    dra.replace_file("recipe", "more salt")


def test_a_setting_that_does_not_exist(dra):
    dra.replace_file("prices", "3 euros")


def test_setting_that_is_not_a_file(dra):
    dra.replace_file("oven", "hot")
'''

FAILURES = {
    "test_failure_lists_events_and_output": "AssertionError: pod guest is Succeeded; expected Failed with 'stale'",
    "test_failure_explains_unsuitable_devices": "AssertionError: pod guest is Pending; expected Running",
    "test_an_object_that_the_server_refuses": "dra_kit.errors.Invalid: CREATE resourceclaims.resource.k8s.io",
    "test_a_manifest_that_is_not_there": "dra_kit.errors.ConfigurationError: {project}/tests/orders.yaml cannot be "
    "read: No",
    "test_a_pod_that_was_never_applied": "AssertionError: pod nope does not exist; expected Running; the test "
    "applied nothing",
    "test_permanently_rejected_claim": "AssertionError: pod guest is Pending; expected Running",
    "test_a_container_that_does_not_exist": "KeyError: 'pod guest has no started container eatre; did you mean "
    '"eater"? existing: eater\'',
    "test_a_variable_that_does_not_exist": "KeyError: 'container eater has no variable FLUOR; did you mean "
    '"FLOUR"? existing: FLOUR, HOME, HOSTNAME, PATH, PRICE\'',
    "test_a_file_of_the_project": "dra_kit.errors.ConfigurationError: the driver's setting 'recipe' names "
    "{project}/recipe itself, which would be overwritten; add recipe to pytest's setting dra_editable",
    "test_a_setting_that_does_not_exist": "dra_kit.errors.ConfigurationError: the driver has no setting 'prices' whose "
    "file can be replaced; its settings: flour, price_list, recipe, oven, shelf",
    "test_setting_that_is_not_a_file": "dra_kit.errors.ConfigurationError: the driver's setting 'oven' is '{project}', "
    "which is not a file that can be replaced",
}
"""The tests that fail, and how the line begins that says why."""


@pytest.mark.timeout(600)
def test_a_project_with_a_driver_is_tested(tmp_path: Path) -> None:
    files = {
        "pyproject.toml": PROJECT,
        "bakery.py": DRIVER,
        "prices": "2 euros\n",
        "shelf": "2",
        "recipe": "salt\n",
        "deviceclasses.yaml": CLASSES,
        "tests/order.yaml": ORDER % ("", "echo mine"),
        "tests/test_bread.py": TESTS.format(nothing=ORDER % (', selectors: [{cel: {expression: "false"}}]', "true")),
        "conftest.py": "import pytest\n\n"
        "@pytest.fixture(scope='session')\n"
        "def dra_bed(dra_bed):\n"
        "    import dataclasses\n"
        "    yield dataclasses.replace(dra_bed, timeout=70)\n",
    }
    write_files(tmp_path, files)
    output = report(tmp_path)

    assert f"{len(FAILURES)} failed, 10 passed" in output
    assert "container eater exited with 0: mine" in output
    assert "claim bread: request bread: no device matches" in output
    assert re.search(r"claim bread: request bread: \d+ devices? on 1 node: \d+ not `false`", output), output
    assert "kopf." not in output
    assert re.search(r"claim not prepared claim=test-\S+/loaf .*code=prepare-permanent permanent=true", output), output
    assert (tmp_path / "recipe").read_text() == "salt\n"
    for test, told in FAILURES.items():
        section = re.search(rf"^_+ {test} _+$(.*?)^(?:-+ |_+ |=+ )", output, re.DOTALL | re.MULTILINE)
        assert section is not None, output
        lines = section[1].strip().splitlines()
        assert re.fullmatch(rf"tests/test_bread\.py:\d+: in {test}", lines[0]), section[1]
        # the author's line, what it marks, and the message: no frame of dra-kit
        assert not [line for line in lines if "dra_kit/" in line], section[1]
        messages = [line for line in lines if line.startswith("E ")]
        assert messages[0].removeprefix("E").strip().startswith(told.format(project=tmp_path)), section[1]


def report(project: Path, *options: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", *options, "tests"]
    run = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=500)
    return run.stdout + run.stderr


SURROUNDINGS = """\
import logging
import os
from pathlib import Path

HERE = os.getcwd()
LEVELS = {{name: logging.getLogger(name).level for name in ("", "aiohttp", "asyncio", "grpc", "dra_kit")}}


def look(caplog):
    assert os.getcwd() == HERE == "{here}"
    assert {{name: logging.getLogger(name).level for name in LEVELS}} == LEVELS
    logging.getLogger("mine").info("not asked for")
    assert not [item for item in caplog.records if item.name == "mine"]
    with caplog.at_level("INFO"):
        logging.getLogger("mine").info("asked for")
    assert [item.getMessage() for item in caplog.records if item.name == "mine"] == ["asked for"]


def test_before(caplog):
    look(caplog)


def test_beside(dra, caplog):
    look(caplog)
    dra.apply("order.yaml")
    assert dra.wait("guest").containers["eater"].environment["FLOUR"] == "rye"


def test_after(caplog):
    look(caplog)
"""


@pytest.mark.timeout(600)
def test_other_tests_see_neither_another_working_directory_nor_another_log_level(tmp_path: Path) -> None:
    here = tmp_path / "elsewhere"
    write_files(
        tmp_path,
        {
            "pyproject.toml": PROJECT,
            "bakery.py": DRIVER,
            "prices": "2 euros\n",
            "shelf": "2",
            "deviceclasses.yaml": CLASSES,
            "elsewhere/order.yaml": ORDER % ("", "true"),
            "elsewhere/test_surroundings.py": SURROUNDINGS.format(here=here),
        },
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    run = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False, timeout=500)
    assert "3 passed" in run.stdout, run.stdout + run.stderr


BAKERY = {
    "pyproject.toml": PROJECT,
    "bakery.py": DRIVER,
    "dough.py": "\ndef f(:\n",
    "tests/test_bread.py": "def test_nothing(dra):\n    pass\n",
}


def test_driver_that_does_not_start_is_reported_in_one_line(tmp_path: Path) -> None:
    write_files(tmp_path, BAKERY)
    output = report(tmp_path, "-o", "dra_target=./dough.py")
    section = re.search(r"^_+ ERROR at setup of test_nothing _+$(.*?)^=+ ", output, re.DOTALL | re.MULTILINE)
    assert section is not None, output
    [line] = section[1].strip().splitlines()
    told = f"TARGET ./dough.py does not import: SyntaxError: invalid syntax at {tmp_path}/dough.py:2:7, in 'def f(:' "
    assert line.startswith(told)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"editable": ["prices"]}, "the driver has no setting 'prices' whose file can be replaced; its settings: "),
        (
            {"settings": {"flowr": "rye"}},
            "driver bread.example has no setting 'flowr'; did you mean \"flour\"? its settings: ",
        ),
    ],
)
def test_setting_that_the_driver_lacks_is_refused(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    write_files(tmp_path, BAKERY)
    with pytest.raises(ConfigurationError, match=f"^{re.escape(told)}"), sandbox(str(tmp_path), **options):
        pass


OF_RELEASES = """\
import pytest


def test_release(dra, dra_bed):
    assert str(dra_bed.kubernetes) == dra.get("Node/node-1")["status"]["nodeInfo"]["kubeletVersion"][1:5] == "1.35"


@pytest.mark.dra_kubernetes(since="1.34", until="1.35")
def test_runs(dra):
    pass


@pytest.mark.dra_kubernetes(since="1.36")
def test_newer(dra):
    pass


@pytest.mark.dra_kubernetes(since="1.36")
def test_newer_bed(dra_bed):
    assert False


@pytest.mark.dra_kubernetes(since="1.37")
class TestBoth:
    @pytest.mark.dra_kubernetes(until="1.37")
    def test_limits_of_the_class_count_too(self, dra):
        assert False


@pytest.mark.dra_kubernetes(since="1.34-rubbish!")
def test_wrong_release(dra):
    pass


@pytest.mark.dra_kubernetes(since=None)
def test_none(dra):
    pass


@pytest.mark.dra_kubernetes(since="1.36")
def test_without_cluster():
    pass


@pytest.mark.dra_kubernetes("1.36")
def test_wrong_mark(dra):
    pass
"""


@pytest.mark.timeout(600)
def test_a_test_runs_on_the_releases_that_it_names(tmp_path: Path) -> None:
    files = {
        "pyproject.toml": PROJECT + 'dra_kubernetes = "1.99"\n', "bakery.py": DRIVER, "prices": "2 euros\n",
        "shelf": "2", "recipe": "salt\n", "deviceclasses.yaml": CLASSES, "tests/test_releases.py": OF_RELEASES,
    }  # fmt: skip
    write_files(tmp_path, files)

    output = report(tmp_path, "--dra-kubernetes", "1.35", "-rs")
    wrong = report(tmp_path)
    both = report(tmp_path, "--dra-kubernetes", "1.35", "--dra-kubeconfig", "k")

    assert "3 passed, 3 skipped, 3 errors" in output, output
    assert "the marker dra_kubernetes: '1.34-rubbish!' is not a Kubernetes release" in output
    assert "the marker dra_kubernetes: since=None is not a text" in output
    assert "this test is for releases since 1.37" in output
    assert both.startswith("ERROR: --dra-kubernetes chooses the release of the sandbox, and the cluster of "), both
    assert "the cluster is Kubernetes 1.35; this test is for releases since 1.36" in output
    assert "the marker dra_kubernetes takes since and until" in output
    assert "kubernetes (--dra-kubernetes): Kubernetes 1.99 is newer than what dra-kit knows; use 1.34 to" in wrong
