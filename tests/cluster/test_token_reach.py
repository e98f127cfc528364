"""What the tokens of the chart's accounts reach, tried at real API servers of the oldest and the newest release.

The tokens are bound to Nodes, as a kubelet's are to the pod and the Node. The policies judge a moment after they are
stored: an attempt is made again until the answer is the right one, at most for a while.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from dra_kit.client.credentials import Connection, Credentials, load_credentials
from tests.cluster.access import Access, granted
from tests.cluster.plane import Plane
from tests.life.switches import until
from tests.support.token_attempts import ATTEMPTS
from tests.support.token_reach import (
    DRIVER,
    RELEASES,
    Attempt,
    Place,
    Server,
    make_nodes,
    prepare,
    reload,
    remove,
    remove_nodes,
    token_of,
)

DEADLINE_SECONDS = 60
POLICIES = (
    "node", "node-status", "node-objects", "effect-pods", "controller", "controller-status", "controller-taint-rules"
)  # fmt: skip


@pytest.fixture(scope="module")
def installed(plane: Plane) -> Iterator[Mapping[str, Access]]:
    """The plane, whose roles are in force."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(granted(plane, release=f"tokens-{name}", driver=DRIVER, given=values))
            for name, values in RELEASES.items()
        }


@pytest.fixture(scope="module")
def answers(plane: Plane, installed: Mapping[str, Access]) -> Mapping[Attempt, str]:
    """The answers to all attempts; those to DeviceTaintRules only where the server has these."""
    return asyncio.run(_answers(plane, installed))


async def _answers(plane: Plane, installed: Mapping[str, Access]) -> Mapping[Attempt, str]:
    admin, found = Server(await load_credentials(plane.kubeconfig)), dict[Attempt, str]()
    await make_nodes(admin)
    try:
        for name, access in installed.items():
            attempts = [attempt for attempt in ATTEMPTS if attempt.release == name]
            place = await prepare(admin, access.namespace, access.release)
            try:
                tokens = {
                    who: Server(_credentials(plane, await token_of(admin, place, who)))
                    for who in {attempt.who for attempt in attempts}
                }
                # what must be refused first: until then a policy may not be in force
                for refused in (True, False):
                    found |= await _try([one for one in attempts if bool(one.refusal) is refused], tokens, admin, place)
            finally:
                await remove(admin, place)
    finally:
        await remove_nodes(admin)
    return found


def _credentials(plane: Plane, token: str) -> Credentials:
    """Return those of a token's holder, who has no certificate of the administrator."""
    [entry] = yaml.safe_load(plane.kubeconfig.read_text(encoding="utf-8"))["clusters"]
    cluster = entry["cluster"]
    authority = (
        Path(cluster["certificate-authority"]).read_bytes()
        if "certificate-authority" in cluster
        else base64.b64decode(cluster["certificate-authority-data"])
    )
    return Credentials(Connection(cluster["server"], f"Bearer {token}", ca=authority))


async def _try(
    attempts: list[Attempt], tokens: Mapping[str, Server], admin: Server, place: Place
) -> dict[Attempt, str]:
    end, answers, left = time.monotonic() + DEADLINE_SECONDS, dict[Attempt, str](), list(attempts)
    while left and time.monotonic() < end:
        await reload(admin, place)
        for attempt in left:
            answers[attempt] = await tokens[attempt.who].refusal(attempt, place)
        left = [attempt for attempt in left if not attempt.is_answered(answers[attempt])]
        await asyncio.sleep(0.5 if left else 0)
    return answers


@pytest.mark.parametrize("attempt", [pytest.param(one, id=one.title) for one in ATTEMPTS])
def test_a_token_reaches_what_the_page_says(attempt: Attempt, answers: Mapping[Attempt, str]) -> None:
    answer = answers[attempt]
    if answer == "404: the server could not find the requested resource":
        pytest.skip("this server does not serve what the attempt is about")
    assert attempt.is_answered(answer), answer or "allowed"


@pytest.mark.parametrize("policy", POLICIES)
def test_the_server_finds_no_error_of_types_in_the_policies(
    policy: str, plane: Plane, installed: Mapping[str, Access]
) -> None:
    name = f"{installed['strict'].release}-{policy}"
    until(f"the types of {name}", lambda: plane.type_errors(name) is not None)
    assert plane.type_errors(name) == {}
