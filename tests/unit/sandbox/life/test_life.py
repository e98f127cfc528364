"""Plays the scenarios of a node's life in the sandbox: what they do and what they look at is as on a real node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.life import calls, releases, restarts, surroundings  # noqa: F401 - they fill PLAYS
from tests.life.node import Node
from tests.life.scenarios import PLAYS, SCENARIOS
from tests.unit.sandbox.life.cluster import SandboxCluster

# longer than any wait for what becomes true in the end, and for putting right what a scenario that failed has left
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.processes,
    # a connection by TLS that is closed while its peer is stopped or killed may outlive the event loop that closed it
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <function _SelectorTransport:pytest.PytestUnraisableExceptionWarning"
    ),
]
# scenarios that need short timeouts; separate, because a restarting driver needs long ones
HASTY = ("prepare-too-slow", "kubelet-deadline-missed", "slices-wiped")
STEADY = [item.id for item in SCENARIOS if item.sandbox and item.id not in HASTY]


@pytest.fixture(scope="module")
def steady() -> Iterator[Node]:
    with SandboxCluster.open() as cluster, Node.open(cluster) as node:
        yield node


@pytest.fixture(scope="module")
def hasty() -> Iterator[Node]:
    with SandboxCluster.open(alpha=True, hasty=True) as cluster, Node.open(cluster) as node:
        yield node


@pytest.mark.parametrize("scenario", STEADY)
def test_life(steady: Node, scenario: str) -> None:
    try:
        PLAYS[scenario](steady)
    finally:
        steady.settle()


@pytest.mark.parametrize("scenario", HASTY)
def test_life_with_alpha_gates(hasty: Node, scenario: str) -> None:
    try:
        PLAYS[scenario](hasty)
    finally:
        hasty.settle()
