"""Policies made of config models, on a real API server: the table of tests/unit/admission/policy."""

from __future__ import annotations

from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from tests.cluster.plane import Plane
from tests.unit.admission.policy.table import differences, installed, refusals


async def test_policies_decide_as_the_node_but_for_what_they_leave_to_it(plane: Plane) -> None:
    async with Client(await load_credentials(plane.kubeconfig), user_agent="tests/1") as client, installed(client):
        assert differences(await refusals(client, plane.versions("resource.k8s.io"))) == []
