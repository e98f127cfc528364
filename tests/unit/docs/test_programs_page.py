"""The program of docs/how-to/programs-and-objects.md outlives the driver, and its object is what the page says."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.node.effects.program import find_marked, is_running, session_of
from tests.support.api import eventually
from tests.unit.docs import pages
from tests.unit.node import role
from tests.unit.node.drivers import Doing, driver


@pytest.fixture
def page() -> ModuleType:
    return pages.page("programs-and-objects.md").load()


@pytest.fixture
def short(tmp_path: Path) -> Iterator[Path]:
    """A directory; what runs below it ends with the test."""
    yield tmp_path
    for process in find_marked(tmp_path):
        for pid in session_of(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_the_object_asks_for_a_port_in_the_claims_namespace(page: ModuleType) -> None:
    attachment = page.Attachment(claim_uid="uid-1", namespace="default", port="7")
    assert str(attachment.address()) == "Attachment default/attachment-uid-1"
    assert attachment.body() == {"spec": {"port": "7"}}


def test_its_test_passes(page: ModuleType) -> None:
    page.test_a_claim_waits_for_its_port()


async def test_the_program_runs_as_long_as_a_claim_needs_it(page: ModuleType, short: Path) -> None:
    running: list[dra.RunningProcess] = []

    async def prepare(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        running.append(await device.ensure(page.Daemon(card="main", run_dir=str(short))))
        return dra.Prepared()

    daemons: dra.Driver[Any, Any] = driver(preparer=Doing(prepare), effects=[page.Daemon])
    async with role.node() as node:
        lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
        async with node.running(daemons):
            await node.prepare(lunch, dinner)
            assert running[0] == running[1]
            assert is_running(running[0])
            await node.unprepare(lunch)
            assert is_running(running[0])
        async with node.running(daemons):  # a restart of the driver
            assert is_running(running[0])
            await node.unprepare(dinner)
            await eventually(lambda: not is_running(running[0]))
        assert node.is_clean()
