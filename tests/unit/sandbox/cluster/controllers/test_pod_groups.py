"""PodGroups as clients see them: the API, and the protection of groups that have pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_kit.client.api import Client
from dra_kit.client.resources import POD_GROUPS, PODS
from dra_kit.errors import Forbidden, KubeError
from dra_kit.kubernetes.release import Release
from dra_kit.sandbox.control_plane import ControlPlane
from tests.unit.sandbox.cluster.kubelet.polling import until

Object = dict[str, Any]
GROUP: Object = {"metadata": {"name": "band"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}


def member(name: str) -> Object:
    spec = {"containers": [{"name": "c", "image": "x"}], "schedulingGroup": {"podGroupName": "band"}}
    return {"metadata": {"name": name}, "spec": spec}


@pytest.fixture
async def plane() -> AsyncIterator[ControlPlane]:
    async with ControlPlane(release=Release.alpha()) as plane:
        yield plane


@pytest.fixture
async def client(plane: ControlPlane) -> Client:
    return await plane.connect("test")


async def test_new_group_gets_defaults_priority_and_finalizer(client: Client) -> None:
    group = await client.create(POD_GROUPS, GROUP, "default")

    assert group["metadata"]["finalizers"] == ["scheduling.k8s.io/podgroup-protection"]
    assert "generation" not in group["metadata"]
    assert group["spec"] == {**GROUP["spec"], "disruptionMode": {"single": {}}, "priority": 0}
    assert group["status"] == {}


async def test_fields_of_features_that_are_off_are_dropped() -> None:
    more = {
        "parentCompositePodGroupName": "x",
        "preemptionPolicy": "Never",
        "schedulingConstraints": {"topology": [{"key": "a"}]},
        "resourceClaims": [{"name": "c", "resourceClaimName": "c"}],
    }

    async with ControlPlane(release=Release.alpha().without("DRAWorkloadResourceClaims")) as plane:
        client = await plane.connect("test")
        group = await client.create(POD_GROUPS, {**GROUP, "spec": {**GROUP["spec"], **more}}, "default")

    assert not more.keys() & group["spec"].keys()


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"priorityClassName": "nope"}, "no PriorityClass with name nope was found"),
        (
            {"priority": 5},
            r"priority set in the pod group \(5\) must match the priority computed \(0\) based on the priority class",
        ),
    ],
)
async def test_priority_is_that_of_the_class(client: Client, spec: Object, problem: str) -> None:
    with pytest.raises(Forbidden, match=problem):
        await client.create(POD_GROUPS, {**GROUP, "spec": {**GROUP["spec"], **spec}}, "default")


async def test_deleted_group_stays_until_its_last_pod_has_finished(plane: ControlPlane, client: Client) -> None:
    await client.create(POD_GROUPS, GROUP, "default")
    await client.create(PODS, member("one"), "default")
    groups, pods = plane.informers.objects(POD_GROUPS), plane.informers.objects(PODS)
    await until(lambda: bool(groups) and bool(pods))
    await client.delete(POD_GROUPS, "band", "default")
    await until(lambda: "deletionTimestamp" in groups["default", "band"]["metadata"])
    await asyncio.sleep(0.1)

    assert await client.get(POD_GROUPS, "band", "default")

    await client.patch(PODS, "one", {"status": {"phase": "Succeeded"}}, "default", subresource="status")
    await until(lambda: not groups)


async def test_without_the_gate_groups_are_not_served() -> None:
    async with ControlPlane() as plane:
        client = await plane.connect("test")

        with pytest.raises(KubeError, match="could not find the requested resource"):
            await client.create(POD_GROUPS, GROUP, "default")
        pod = await client.create(PODS, member("one"), "default")

        assert "schedulingGroup" not in pod["spec"]
