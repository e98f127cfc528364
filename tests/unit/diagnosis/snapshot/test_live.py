"""Reading an API server: only the objects that explanations need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials, load_credentials
from dra_kit.client.resources import EVENTS, PODS
from dra_kit.diagnosis.explain.cluster import ClusterDocuments
from dra_kit.diagnosis.live_cluster import ReadScope, read_live
from tests.unit.diagnosis.operation.parts import api_server

Document = dict[str, Any]


async def cluster(client: Client) -> None:
    """A pod that is pending, two that have ended, and Events."""
    for name, phase in (("waits", "Pending"), ("ended", "Succeeded"), ("failed", "Failed")):
        spec = {"containers": [{"name": "c", "image": "busybox"}]}
        await client.create(PODS, {"metadata": {"name": name}, "spec": spec}, "default")
        await client.patch(PODS, name, {"status": {"phase": phase}}, "default", subresource="status")
    for kind, type_ in (("Pod", "Warning"), ("Pod", "Normal"), ("ResourceClaim", "Warning")):
        event: Document = {
            "metadata": {"name": f"{kind}.{type_}".lower(), "namespace": "default"},
            "regarding": {"kind": kind, "namespace": "default", "name": "waits"},
            "type": type_,
            "reason": "FailedScheduling",
            "action": "Scheduling",
            "note": "no devices",
            "eventTime": "2026-01-01T00:00:00.000000Z",
            "reportingController": "default-scheduler",
            "reportingInstance": "default-scheduler",
        }
        await client.create(EVENTS, event, "default")


def names(objects: ClusterDocuments, kind: str) -> set[str]:
    return {document["metadata"]["name"] for document in objects.documents[kind]}


@pytest.mark.parametrize(
    ("ended", "pods", "events"),
    [
        (None, {"waits", "ended", "failed"}, {"pod.warning", "pod.normal", "resourceclaim.warning"}),
        ((), {"waits"}, {"pod.warning"}),
        (("failed", "waits", "absent"), {"waits", "failed"}, {"pod.warning"}),
    ],
)
async def test_pods_that_have_ended_are_read_only_where_they_are_named(
    tmp_path: Path, ended: tuple[str, ...] | None, pods: set[str], events: set[str]
) -> None:
    with api_server(tmp_path) as config:
        credentials: Credentials = await load_credentials(config)
        async with Client(credentials, user_agent="dra-kit/test", timeout=30) as client:
            await cluster(client)

        objects = await read_live(credentials, ReadScope("default", ended=ended))

    assert names(objects, "Pod") == pods
    assert names(objects, "Event") == events
    assert len(objects.documents["Pod"]) == len(pods)


async def test_pods_of_the_namespace_and_of_drivers_are_read_for_claims(tmp_path: Path) -> None:
    labels = {"app.kubernetes.io/component": "node"}
    spec = {"containers": [{"name": "c", "image": "busybox"}]}
    with api_server(tmp_path) as config:
        credentials: Credentials = await load_credentials(config)
        async with Client(credentials, user_agent="dra-kit/test", timeout=30) as client:
            for namespace, name, of in (("default", "user", {}), ("kube-system", "driver", labels),
                                        ("kube-system", "other", {}), ("default", "own-driver", labels)):  # fmt: skip
                await client.create(PODS, {"metadata": {"name": name, "labels": of}, "spec": spec}, namespace)

        objects = await read_live(credentials, ReadScope("default", kinds=("Pod",), only_claims=True))

    assert [document["metadata"]["name"] for document in objects.documents["Pod"]] == ["own-driver", "user", "driver"]
    view = objects.cluster()
    assert view.knows_pods("default")
    assert not view.knows_pods("kube-system")
