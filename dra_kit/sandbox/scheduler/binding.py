"""Writes a placement: claims first, then the pod's node, as kube-scheduler's PreBind and Bind do (1.37)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from dra_kit.errors import Conflict, KubeError
from dra_kit.kube.client import Client
from dra_kit.kube.events import EventRecorder, ObjectReference
from dra_kit.kube.resources import PODS, RESOURCE_CLAIMS
from dra_kit.sandbox.controllers.release import DELETE_PROTECTION, consumer
from dra_kit.sandbox.pods import Object, is_reserved_for, key_of, shown, timestamp
from dra_kit.sandbox.scheduler.assumed import Assumed
from dra_kit.sandbox.scheduler.cycle import Placement, Unschedulable
from dra_kit.sandbox.scheduler.extended import ExtendedClaim

_ATTEMPTS: Final = 5
_CONDITIONS_TIMEOUT: Final = 600.0  # kube-scheduler's bindingTimeout


class Binder:
    """Writes placements; several may be under way.

    Args:
        client: to write with.
        assumed: is told of every claim that was written.
        events: of the scheduler.
        time_scale: waits are divided by this.
    """

    def __init__(self, client: Client, assumed: Assumed, events: EventRecorder, *, time_scale: float = 1.0) -> None:
        self._client = client
        self._assumed = assumed
        self._events = events
        self._timeout = _CONDITIONS_TIMEOUT / time_scale

    async def bind(self, placement: Placement) -> None:
        """Write everything.

        Raises:
            Unschedulable: something changed in the meantime, or a device was not made ready for the node.
            KubeError: the API server refuses.
        """
        pod = placement.pod
        extended = placement.extended
        written: list[dict[str, Any]] = []
        for claim, allocation in placement.allocations:
            if extended is not None and claim is extended.document:
                written.append(await self._reserve(await self._create_extended(pod, extended), pod, allocation))
            else:
                written.append(await self._reserve(claim, pod, allocation))
        written += [await self._reserve(claim, pod, None) for claim in placement.reserve]
        await self._binding_conditions(placement, written)
        namespace, name = key_of(pod)
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": pod["metadata"]["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": placement.node},
        }
        await self._client.create(PODS, binding, subresource="binding")
        self._events.record(
            ObjectReference.to(pod),
            "Normal",
            reason="Scheduled",
            action="Binding",
            note=f"Successfully assigned {shown(pod)} to {placement.node}",
        )

    async def _create_extended(self, pod: Object, extended: ExtendedClaim) -> dict[str, Any]:
        namespace, name = key_of(pod)
        claim = await self._client.create(RESOURCE_CLAIMS, extended.document)
        status = {"resourceClaimName": claim["metadata"]["name"], "requestMappings": list(extended.mappings)}
        body = {
            "metadata": {"uid": pod["metadata"]["uid"]},
            "status": {"extendedResourceClaimStatus": status},
        }
        try:
            await self._client.patch(PODS, name, body, namespace, subresource="status")
        except KubeError:
            await self._client.delete(RESOURCE_CLAIMS, claim["metadata"]["name"], namespace)
            raise
        return claim

    async def _reserve(self, claim: Object, pod: Object, allocation: Mapping[str, Any] | None) -> dict[str, Any]:
        """Give the claim its allocation, unless that is None, and the pod as a consumer."""
        namespace, name = key_of(claim)
        current: Object = claim
        for attempt in range(_ATTEMPTS):
            try:
                return await self._reserve_once(current, pod, allocation)
            except Conflict:
                if attempt == _ATTEMPTS - 1:
                    raise
            current = await self._client.get(RESOURCE_CLAIMS, name, namespace)
            self._check(current, claim, allocation)
        raise AssertionError

    async def _reserve_once(self, claim: Object, pod: Object, allocation: Mapping[str, Any] | None) -> dict[str, Any]:
        new = dict(claim)
        finalizers = claim["metadata"].get("finalizers", [])
        if allocation is not None and DELETE_PROTECTION not in finalizers:
            metadata = {**claim["metadata"], "finalizers": [*finalizers, DELETE_PROTECTION]}
            new = await self._client.update(RESOURCE_CLAIMS, {**claim, "metadata": metadata})
        status = dict(new.get("status", {}))
        if allocation is not None:
            status["allocation"] = {**allocation, "allocationTimestamp": timestamp()}
        if not is_reserved_for(new, pod):
            status["reservedFor"] = [*status.get("reservedFor", []), consumer(pod)]
        new = await self._client.update(RESOURCE_CLAIMS, {**new, "status": status}, subresource="status")
        self._assumed.written(new)
        return new

    def _check(self, current: Object, claim: Object, allocation: Mapping[str, Any] | None) -> None:
        name = claim["metadata"]["name"]
        has = bool(current.get("status", {}).get("allocation"))
        if current["metadata"]["uid"] != claim["metadata"]["uid"] or "deletionTimestamp" in current["metadata"]:
            what = "deleted"
        elif allocation is not None and has:
            what = "allocated elsewhere"
        elif allocation is None and not has:
            what = "deallocated elsewhere"
        else:
            return
        text = f'running PreBind plugin "DynamicResources": claim {name} got {what} in the meantime'
        raise Unschedulable(text, reason="SchedulerError")

    # --- binding conditions (KEP-5007)

    async def _binding_conditions(self, placement: Placement, claims: list[dict[str, Any]]) -> None:
        """Wait until the drivers say that the devices are ready for the node."""
        if not any(_awaited(claim) for claim in claims):
            return
        namespace, name = key_of(placement.pod)
        body = {"metadata": {"uid": placement.pod["metadata"]["uid"]}, "status": {"nominatedNodeName": placement.node}}
        await self._client.patch(PODS, name, body, namespace, subresource="status")
        self._events.record(
            ObjectReference.to(placement.pod),
            "Normal",
            reason="BindingConditionsPending",
            action="Scheduling",
            note=f"waiting for binding conditions for device on node {placement.node}",
        )
        try:
            async with asyncio.timeout(self._timeout):
                for claim in claims:
                    while not self._is_ready(claim):
                        await self._assumed.change()
        except TimeoutError:
            waiting = next(claim for claim in claims if not self._is_ready(claim))
            raise _binding_failed(f"device binding timeout: claim={shown(waiting)}") from None

    def _is_ready(self, claim: Object) -> bool:
        current = self._assumed.claim(key_of(claim))
        if current is None:
            raise _binding_failed(f"claim {claim['metadata']['name']} got deleted in the meantime")
        ready = True
        for result in _awaited(current):
            conditions = _conditions(current, result)
            for kind in result.get("bindingFailureConditions", []):
                if conditions.get(kind, {}).get("status") == "True":
                    reason, message = conditions[kind].get("reason", ""), conditions[kind].get("message", "")
                    raise _binding_failed(
                        f'device binding failed: claim={shown(claim)}, reason={reason}, message="{message}"'
                    )
            ready &= all(conditions.get(kind, {}).get("status") == "True" for kind in result["bindingConditions"])
        return ready


def _binding_failed(text: str) -> Unschedulable:
    return Unschedulable(f'running PreBind plugin "DynamicResources": {text}', reason="SchedulerError")


def _awaited(claim: Object) -> list[Any]:
    """The results whose devices have binding conditions."""
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return [item for item in results if item.get("bindingConditions")]


def _conditions(claim: Object, result: Object) -> dict[str, Any]:
    for device in claim.get("status", {}).get("devices", []):
        if all(device.get(name) == result.get(name) for name in ("driver", "pool", "device", "shareID")):
            return {item["type"]: item for item in device.get("conditions", [])}
    return {}
