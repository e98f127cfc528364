"""The blocks of docs/effects.md are one module that type-checks, and its program runs on a node."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.node.children import process_table
from tests.support.api import eventually
from tests.unit.node import role
from tests.unit.node.drivers import Doing, driver

PAGE = Path(__file__).resolve().parents[3] / "docs" / "effects.md"
CODE = "\n\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))


@pytest.fixture
def page() -> ModuleType:
    module = ModuleType("effects_page")
    exec(compile(CODE, str(PAGE), "exec"), module.__dict__)  # noqa: S102 - our own page
    return module


@pytest.fixture
def short(tmp_path: Path) -> Iterator[Path]:
    """A directory; what runs below it ends with the test."""
    yield tmp_path
    for process in process_table.marked(tmp_path):
        for pid in process_table.session_of(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_it_type_checks(tmp_path: Path) -> None:
    file = tmp_path / "page.py"
    file.write_text(CODE, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_the_object_asks_for_a_port_in_the_claims_namespace(page: ModuleType) -> None:
    attachment = page.Attachment(claim_uid="uid-1", namespace="default", port="7")
    assert str(attachment.address()) == "Attachment default/attachment-uid-1"
    assert attachment.body() == {"spec": {"port": "7"}}


def test_its_test_passes(page: ModuleType) -> None:
    page.test_a_claim_waits_for_its_port()


async def test_the_program_runs_as_long_as_a_claim_needs_it(page: ModuleType, short: Path) -> None:
    running: list[dra.RunningProcess] = []

    async def prepare(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        running.append(await device.ensure(page.OvenDaemon(oven="main", run_dir=str(short))))
        return dra.Prepared()

    daemons: dra.Driver[Any, Any] = driver(preparer=Doing(prepare), effects=[page.OvenDaemon])
    async with role.node() as node:
        lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
        async with node.running(daemons):
            await node.prepare(lunch, dinner)
            assert running[0] == running[1]
            assert process_table.runs(running[0])
            await node.unprepare(lunch)
            assert process_table.runs(running[0])
        async with node.running(daemons):  # a restart of the driver
            assert process_table.runs(running[0])
            await node.unprepare(dinner)
            await eventually(lambda: not process_table.runs(running[0]))
        assert node.is_clean()
