"""A folder with a driver and manifests, in which ``dra-kit sandbox`` is run."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dra_kit.cli.app import cli
from tests.support.processes import processes

DRIVER = """
    from collections.abc import Iterator, Sequence

    import dra_kit as dra


    class Oven(dra.DeviceProvider):
        def discover(self) -> Iterator[Sequence[dra.Device]]:
            {discover}


    class Waiter(dra.Preparer):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            {prepare}


    driver = dra.Driver("dra.pizza", provider=Oven(), preparer=Waiter())
"""
DISCOVER = 'yield [dra.Device(name=f"pizza-{i}", attributes={"dough": "pan"}) for i in range(2)]'
MOUNT = 'dra.Mount(host_path="/oven", container_path="/srv/oven")'
PREPARE = f'return dra.Prepared(env={{f"{{device.env_name}}_HOT": "yes"}}, mounts=[{MOUNT}])'

CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "pizza"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "dra.pizza"'}}]},
}
TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "one-pizza"},
    "spec": {"spec": {"devices": {"requests": [{"name": "pizza", "exactly": {"deviceClassName": "pizza"}}]}}},
}


def pod(name: str, *command: str, restart: str = "Never", **claim: str) -> dict[str, Any]:
    """A pod with a claim, by default one of the template."""
    container: dict[str, object] = {"name": "eater", "image": "busybox", "resources": {"claims": [{"name": "pizza"}]}}
    if command:
        container["command"] = list(command)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "resourceClaims": [{"name": "pizza", **(claim or {"resourceClaimTemplateName": "one-pizza"})}],
        },
    }


class Kitchen:
    """A folder with a driver and manifests, and the command run in it.

    Attributes:
        nap: a number of seconds to sleep that no other process on this machine uses.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.nap = f"4321.{secrets.randbelow(10**9)}"
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(directory / "run"), "TMPDIR": str(directory / "t")}
        (directory / "run").mkdir()
        (directory / "t").mkdir()
        self.driver()

    def driver(self, *, discover: str = DISCOVER, prepare: str = PREPARE) -> None:
        text = textwrap.dedent(DRIVER).replace("{discover}", discover).replace("{prepare}", prepare)
        (self.directory / "pizzeria.py").write_text(text)

    def settings(self, *fields: str) -> None:
        """Give the driver settings."""
        file = self.directory / "pizzeria.py"
        model = "\n".join(("import pydantic", "class Settings(pydantic.BaseModel):", *(f"    {one}" for one in fields)))
        text = file.read_text().replace("preparer=Waiter()", "preparer=Waiter(), settings=Settings")
        file.write_text(text.replace("driver =", f"{model}\n\n\ndriver ="))

    def project(self, driver: str, **settings: str) -> None:
        """Make the folder a project."""
        lines = [f"{name} = {value!r}" for name, value in settings.items()]
        text = ["[tool.dra-kit]", f"driver = {driver!r}", "[tool.dra-kit.sandbox.settings]", *lines]
        (self.directory / "pyproject.toml").write_text("\n".join(text))

    def order(self, *objects: dict[str, object]) -> None:
        text = yaml.safe_dump_all([CLASS, TEMPLATE, *objects])
        (self.directory / "order.yaml").write_text(text)

    def command(self, *arguments: str) -> list[str]:
        return [str(Path(sys.executable).with_name("dra-kit")), "sandbox", *arguments]

    def call(self, *arguments: str, code: int = 0) -> str:
        """What the command prints in the process of the tests, which saves seconds: imports are most of a short run."""
        with chdir(self.directory), pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", self.environment["TMPDIR"])
            runner = CliRunner(env=self.environment)
            result = runner.invoke(cli, ["sandbox", *arguments], prog_name="dra-kit", catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result.output

    def run(self, *arguments: str, code: int = 0) -> str:
        """What the command prints as a process of its own: the script, its exit code, its end."""
        result = subprocess.run(
            self.command(*arguments),
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert result.returncode == code, result.stdout + result.stderr
        return result.stdout + result.stderr

    def report(self) -> dict[str, Any]:
        """What a run with ``--report r.json`` wrote."""
        report: dict[str, Any] = json.loads((self.directory / "r.json").read_text())
        return report

    def run_in_vain(self, *arguments: str, seconds: float, tells: Sequence[str]) -> str:
        """What a run tells whose pods do not come to their end in the time that they have.

        Args:
            *arguments: of the command.
            seconds: that the pods have; where the machine is slow and it does not tell everything yet, they get more.
            tells: what it is to tell.
        """
        for timeout in (seconds, 15, 60):
            text = self.call(*arguments, "--timeout", str(timeout), code=1)
            if all(part in text for part in tells):
                return text
        raise AssertionError(text)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def left_behind(self) -> list[str]:
        """What a run left among the temporary files."""
        return [path.name for path in (self.directory / "t").iterdir()]


def sleeping(seconds: str) -> bool:
    """Whether a process ``sleep <seconds>`` exists; one that was killed may take a moment to go."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if not any(process.command[:2] == ("sleep", seconds) for process in processes()):
            return False
        time.sleep(0.05)
    return True
