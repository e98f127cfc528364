"""What a node's token may write to pods at the end of a driver, on a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_kit.client.api import STRATEGIC_MERGE_PATCH, Client
from dra_kit.client.credentials import load_credentials
from dra_kit.client.resources import PODS
from dra_kit.errors import Forbidden
from tests.charts.rendering import DEPLOYED
from tests.charts.test_confirmation_policy import EFFECT_PODS, MINE, OTHER, OWN, REFUSED, pod
from tests.cluster.plane import Plane
from tests.cluster.release import Release, release

NAME = "confirming"
ACCOUNT = f"{NAME}-node"


@pytest.fixture(scope="module")
def made(helm_plane: Plane) -> Iterator[Release]:
    """A release at its end, with two pods of its account that no node runs."""
    values = {**DEPLOYED, "driverName": "confirming.pizza.example", "controller": {"enabled": False}}
    # of a driver whose effects make pods: the policy of those must not refuse the confirmation
    with release(helm_plane, NAME, {**values, "node": {**EFFECT_PODS, "nodeSelector": {"kitchen": "none"}}}) as found:
        found.apply()
        for name in (OWN, OTHER):
            body = pod(name)
            body["metadata"]["namespace"] = found.namespace
            body["spec"] = {**body["spec"], "serviceAccountName": ACCOUNT, "nodeSelector": {"kitchen": "none"}}
            del body["spec"]["nodeName"]
            helm_plane.create(body)
        yield found


@pytest.fixture
async def own(made: Release, tmp_path: Path) -> AsyncIterator[Client]:
    """The rights of the pod's token."""
    plane, place = made.plane, ("--namespace", made.namespace)
    uid = plane.get("pod", OWN, *place)["metadata"]["uid"]
    token = plane.kubectl(
        "create", "token", ACCOUNT, *place,
        "--bound-object-kind=Pod", f"--bound-object-name={OWN}", f"--bound-object-uid={uid}",
    ).stdout.strip()  # fmt: skip
    kubeconfig = plane.token_kubeconfig(ACCOUNT, token, tmp_path / "kubeconfig")
    async with Client(await load_credentials(kubeconfig), user_agent="tests/1") as client:
        yield client


async def patch(client: Client, made: Release, name: str, body: dict[str, Any]) -> None:
    await client.patch(PODS, name, body, made.namespace, content_type=STRATEGIC_MERGE_PATCH, subresource="status")


async def test_a_pod_confirms_by_its_own_condition(made: Release, own: Client) -> None:
    await patch(own, made, OWN, {"status": {"conditions": [MINE]}})
    waited = ("wait", f"pod/{OWN}", "--for=condition=dra-kit/Decommissioned", "--timeout=60s", "-n", made.namespace)
    assert "condition met" in made.plane.kubectl(*waited).stdout


async def test_a_pod_does_not_confirm_for_another(made: Release, own: Client) -> None:
    with pytest.raises(Forbidden, match="may write the status of its own pod only"):
        await patch(own, made, OTHER, {"status": {"conditions": [MINE]}})


@pytest.mark.parametrize("change", REFUSED)
async def test_a_pod_changes_nothing_else_of_itself(change: str, made: Release, own: Client) -> None:
    with pytest.raises(Forbidden, match="may change nothing of its pod but the condition dra-kit/Decommissioned"):
        await patch(own, made, OWN, REFUSED[change])
