"""The table of good and bad configs, decided by node, webhook, and the policies in the sandbox's API server."""

from __future__ import annotations

from collections import Counter

import aiohttp

from dra_kit.apiserver.server import ApiServer
from tests.unit.policy.deciding import node_accepts, webhook_accepts
from tests.unit.policy.drivers import DRIVERS
from tests.unit.policy.table import COUNTS, Row, differences, policies, rows


def test_the_table_has_as_many_good_configs_as_bad_ones_of_each_driver() -> None:
    counts = Counter((row.driver, node_accepts(DRIVERS[row.driver], row.parameters)) for row in rows())
    assert counts == {(name, good): count // 2 for name, count in COUNTS.items() for good in (True, False)}


def test_the_webhook_decides_as_the_node() -> None:
    for row in rows():
        driver = DRIVERS[row.driver]
        assert webhook_accepts(driver, row.parameters, row.object_kind) == node_accepts(driver, row.parameters), row


async def test_policies_in_the_sandbox_decide_as_the_node_but_for_what_they_leave_to_it() -> None:
    refused: dict[Row, str | None] = {}
    async with ApiServer() as server, aiohttp.ClientSession(server.url) as session:
        for path, obj in policies():
            async with session.post(path, json=obj) as answer:
                assert answer.status == 201, await answer.text()
        for row in rows():
            async with session.post(row.path, json=row.object) as answer:
                said = await answer.json()
                assert answer.status in {201, 422}, (row, said)
                refused[row] = None if answer.status == 201 else said["message"]
    assert all("denied request" in reason for reason in refused.values() if reason is not None)
    assert differences(refused) == []
