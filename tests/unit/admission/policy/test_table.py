"""The table of good and bad configs, decided by node, webhook, and the policies in the sandbox's API server."""

from __future__ import annotations

from collections import Counter

from dra_kit.apiserver.api import ALL_VERSIONS
from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from tests.unit.admission.policy.deciding import node_accepts, webhook_accepts
from tests.unit.admission.policy.drivers import DRIVERS
from tests.unit.admission.policy.table import COUNTS, differences, installed, refusals, rows


def test_the_table_has_as_many_good_configs_as_bad_ones_of_each_driver() -> None:
    counts = Counter((row.driver, node_accepts(DRIVERS[row.driver], row.parameters)) for row in rows())
    assert counts == {(name, good): count // 2 for name, count in COUNTS.items() for good in (True, False)}


def test_the_webhook_decides_as_the_node() -> None:
    for row in rows():
        driver = DRIVERS[row.driver]
        assert webhook_accepts(driver, row.parameters, row.object_kind) == node_accepts(driver, row.parameters), row


async def test_sandbox_policies_decide_as_the_node_except_for_rules_left_to_it() -> None:
    async with (
        ApiServer(runtime_config=ALL_VERSIONS) as server,
        Client(Credentials(Connection(server.url)), user_agent="tests/1") as client,
        installed(client),
    ):
        assert differences(await refusals(client, {row.version for row in rows()})) == []
