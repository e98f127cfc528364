"""What a controller tells Prometheus: the names of the table, and of a node where they mean the same."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

import dra_kit as dra
from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.controller.agent import ControllerSettings, run_controller
from dra_kit.controller.author_handlers import AuthorHandlers
from dra_kit.controller.context import ControllerContext
from dra_kit.process.metrics import FAMILIES, Metrics
from tests.support.api import eventually
from tests.support.ports import kept_free
from tests.support.probes import ask
from tests.unit.client.operator_api import OperatorApi
from tests.unit.controller.cluster import DRIVER, cancelled
from tests.unit.controller.test_pools import Giver, Warehouse, pool

HANDLERS = """
import kopf

@kopf.on.event("v1", "pods")
async def pod_changed(**_):
    pass
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dra.Driver]:
    """With pools of no node and handlers of its own."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_handlers.py").write_text(HANDLERS)
    yield dra.Driver(DRIVER, preparer=Giver(), cluster_provider=Warehouse(pool()), handlers="own_handlers")
    sys.modules.pop("own_handlers", None)


@pytest.fixture
async def kubeconfig(tmp_path: Path) -> AsyncIterator[Path]:
    """Of an API server that allows everything."""
    async with ApiServer() as server:
        file = tmp_path / "config"
        file.write_text(yaml.safe_dump(server.kubeconfig()))
        yield file


@pytest.mark.processes
async def test_the_controller_serves_exactly_its_documented_metrics(driver: dra.Driver, kubeconfig: Path) -> None:
    with kept_free() as port:
        settings = ControllerSettings(kubeconfig=kubeconfig, probe_address=f"127.0.0.1:{port}")
        task = asyncio.create_task(run_controller(driver, settings))
        published = 'dra_driver_publications_total{driver="disk.example.com",result="success"} '
        text = ""
        try:
            async with asyncio.timeout(60):
                while published not in text or f"{published}0" in text:
                    assert not task.done()
                    with suppress(OSError):
                        text = (await asyncio.to_thread(ask, port, "/metrics"))[1]
                    await asyncio.sleep(0.05)
        finally:
            await cancelled(task)
    served = {line.partition("{")[0].partition(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    for suffix in ("_bucket", "_sum", "_count"):
        served = {name.removesuffix(suffix) if name.endswith(f"seconds{suffix}") else name for name in served}
    served = {name for name in served if not name.startswith("process_")}
    assert served == {family.shown_name for family in FAMILIES if "controller" in family.roles}


@pytest.mark.processes
async def test_restarts_of_kopf_are_counted_across_leaderships(driver: dra.Driver) -> None:
    with OperatorApi() as api:
        credentials = Credentials(Connection(api.url))
        async with Client(credentials, user_agent="tests/1") as client:
            part = AuthorHandlers(
                driver, driver.handlers, ControllerContext(DRIVER, None, Metrics()),
                credentials=credentials, client=client, user_agent="tests/1",
            )  # fmt: skip

            def restarts() -> int:
                [metric] = part.readings()
                [sample] = metric.samples
                assert sample.name == "dra_driver_kopf_restarts_total"
                return int(sample.value)

            assert restarts() == 0
            for _ in range(2):
                before, ready = restarts(), asyncio.Event()
                api.token = "of-another-user"
                task = asyncio.create_task(part.run(ready))
                await eventually(lambda before=before: restarts() > before)  # type: ignore[misc]
                api.token = None
                await ready.wait()
                await cancelled(task)
                assert restarts() > before
