"""What the sandbox's scheduler writes when a pod that it placed cannot be bound."""

from __future__ import annotations

from typing import Any

import pytest

from dra_kit.client.events import EventRecorder
from dra_kit.client.resources import PODS, RESOURCE_CLAIMS
from dra_kit.errors import NotFound
from dra_kit.kubernetes.resource.objects import object_key
from dra_kit.kubernetes.scheduler.assume_cache import ClaimTracker
from dra_kit.kubernetes.scheduler.cycle import Placement, Unschedulable
from dra_kit.sandbox.binder import Binder
from dra_kit.sandbox.control_plane import ControlPlane
from tests.unit.sandbox.cluster.scheduler.test_scheduler import add_claim, allocation_on


@pytest.mark.parametrize("consumed", [True, False], ids=["still a consumer", "no consumer any more"])
async def test_claim_is_given_back_if_the_pod_is_among_its_consumers(
    consumed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ControlPlane() as plane:
        client = await plane.connect("test")
        claim = await add_claim(client, "lunch")
        container = {"name": "eater", "image": "x"}
        spec = {"containers": [container], "resourceClaims": [{"name": "lunch", "resourceClaimName": "lunch"}]}
        pod = await client.create(  # with a gate, so that the cluster's own scheduler does not try it
            PODS, {"metadata": {"name": "guest"}, "spec": {**spec, "schedulingGates": [{"name": "x/y"}]}}, "default"
        )
        known, patches, patch = {object_key(claim): claim}, list[Any](), client.patch
        tracker = ClaimTracker(known, lambda *_: None)

        async def bind(*_: object, **__: object) -> dict[str, Any]:
            if not consumed:  # as if a controller had removed the pod, and the informer knew it
                current = await client.get(RESOURCE_CLAIMS, "lunch", "default")
                status = {**current["status"], "reservedFor": []}
                new = await client.update(RESOURCE_CLAIMS, {**current, "status": status}, subresource="status")
                known[object_key(claim)] = new
                tracker.seen(new, deleted=False)
            raise NotFound("the pod is gone")

        async def recorded(*args: Any, **options: Any) -> dict[str, Any]:
            patches.extend(args[2].get("status", {}).get("reservedFor", []))
            return await patch(*args, **options)

        monkeypatch.setattr(client, "create", bind)
        monkeypatch.setattr(client, "patch", recorded)
        binder = Binder(client, tracker, EventRecorder(client, controller="test", instance="test"))

        with pytest.raises(Unschedulable, match="the pod is gone"):
            await binder.bind(Placement(pod, "node-1", allocations=((claim, allocation_on("node-1")),)))

        assert patches == ([{"$patch": "delete", "uid": pod["metadata"]["uid"]}] if consumed else [])
        assert not (await client.get(RESOURCE_CLAIMS, "lunch", "default"))["status"].get("reservedFor")
