"""What the tokens of the chart's accounts reach, tried at the sandbox's API server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack

import pytest

from dra_kit.apiserver.api import ALL_VERSIONS
from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.sandbox.drivers.accounts import create_accounts
from tests.charts.life import accounts
from tests.charts.rendering import NAMESPACE, RELEASE, Helm, Manifests
from tests.support.token_attempts import ATTEMPTS as ALL
from tests.support.token_reach import RELEASES, Attempt, Server, make_nodes, prepare, token_of

ATTEMPTS = [attempt for attempt in ALL if not attempt.real]


async def _tried(manifests: Manifests, attempts: list[Attempt]) -> dict[Attempt, str]:
    async with ApiServer(runtime_config=ALL_VERSIONS) as server, AsyncExitStack() as stack:
        everything = Credentials(Connection(server.url))
        admin = Server(everything)
        await make_nodes(admin)
        client = await stack.enter_async_context(Client(everything, user_agent="tests/1"))
        await create_accounts(accounts(manifests), server, client)
        place = await prepare(admin, NAMESPACE, RELEASE)
        tokens = {who: await token_of(admin, place, who) for who in {attempt.who for attempt in attempts}}
        holders = {who: Server(Credentials(Connection(server.url, f"Bearer {token}"))) for who, token in tokens.items()}
        return {attempt: await holders[attempt.who].refusal(attempt, place) for attempt in attempts}


@pytest.fixture(scope="module")
def answers(helm: Helm) -> Mapping[Attempt, str]:
    found: dict[Attempt, str] = {}
    for release, values in RELEASES.items():
        attempts = [attempt for attempt in ATTEMPTS if attempt.release == release]
        found |= asyncio.run(_tried(helm.render(values), attempts))
    return found


@pytest.mark.parametrize("attempt", [pytest.param(one, id=one.title) for one in ATTEMPTS])
def test_a_token_reaches_what_the_page_says(attempt: Attempt, answers: Mapping[Attempt, str]) -> None:
    assert attempt.is_answered(answers[attempt]), answers[attempt] or "allowed"
