"""Binding of a scheduled pod: writes its claims and its node; releases claims of pods that are gone.

Source: PreBind and Bind of kube-scheduler 1.37.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from dra_kit.client.api import STRATEGIC_MERGE_PATCH, Client
from dra_kit.client.claim_writes import write_finalizers, write_status
from dra_kit.client.events import EventRecorder, ObjectReference
from dra_kit.client.resources import PODS, RESOURCE_CLAIMS
from dra_kit.errors import Conflict, KubeError, NotFound
from dra_kit.kubernetes.resource.objects import format_time, is_reserved_for, object_key, object_name, seconds_since
from dra_kit.kubernetes.scheduler.assume_cache import ClaimTracker
from dra_kit.kubernetes.scheduler.claims import (
    BindingFailed,
    ExtendedClaim,
    extended_claim_owner,
    is_ready,
    results_with_binding_conditions,
)
from dra_kit.kubernetes.scheduler.controllers import DELETE_PROTECTION, consumer
from dra_kit.kubernetes.scheduler.cycle import Placement, PostFilterAction, Unschedulable
from dra_kit.kubernetes.values.json import ObjectView

logger: logging.Logger = logging.getLogger(__name__)
_BIND_ATTEMPTS: Final = 5
_CONDITIONS_TIMEOUT: Final = 600.0  # kube-scheduler's bindingTimeout


class Binder:
    """Writes placements; several may be under way. ``claims`` is notified of every claim that was made or written."""

    def __init__(self, client: Client, claims: ClaimTracker, events: EventRecorder, *, time_scale: float = 1.0) -> None:
        self._client = client
        self._claims = claims
        self._events = events
        self._timeout = _CONDITIONS_TIMEOUT / time_scale
        self._post_filter = PostFilterRunner(client)

    async def bind(self, placement: Placement) -> None:
        """Write all changes, or roll back those already written.

        Raises:
            Unschedulable: the claims changed in the meantime, a device was not made ready for the node, or the API
                server rejected a change.
        """
        written: list[ObjectView] = []
        try:
            await self._prepare(placement, written)
            await self._bind(placement)
        except Unschedulable:
            await self._take_back(placement.pod, written)
            raise

    def is_overdue(self, claim: ObjectView) -> bool:
        """Return whether the devices of an allocated claim had enough time to become ready for the node."""
        since = claim["status"]["allocation"].get("allocationTimestamp")
        return since is not None and seconds_since(since) > self._timeout

    async def _prepare(self, placement: Placement, written: list[ObjectView]) -> None:
        """Write the claims, and wait until their devices are ready; ``written`` is what was written so far."""
        try:
            await self._write_claims(placement, written)
            await self._binding_conditions(placement, written)
        except KubeError as error:
            raise _binding_failed(error.text) from None

    async def _write_claims(self, placement: Placement, written: list[ObjectView]) -> None:
        pod = placement.pod
        extended = placement.extended
        for claim, allocation in placement.allocations:
            if extended is None or claim is not extended.document:
                written.append(await self._reserve(claim, placement, allocation))
                continue
            with error_context(f"create claim for extended resources {pod['metadata']['namespace']}/"):
                written.append(await self._client.create(RESOURCE_CLAIMS, claim))
            self._claims.made(pod, written[-1])
            written[-1] = await self._reserve(written[-1], placement, allocation)
            await self._write_claim_status(pod, extended, written[-1])
        for claim in placement.reserve:
            reserved = await self._reserve(claim, placement, None)
            written.append(reserved)

    async def _bind(self, placement: Placement) -> None:
        """Write the pod's node."""
        pod = placement.pod
        namespace, name = object_key(pod)
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": pod["metadata"]["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": placement.node},
        }
        try:
            await self._client.create(PODS, binding, subresource="binding")
        except KubeError as error:
            text = f'running Bind plugin "DefaultBinder": {error.text}'
            raise Unschedulable(text, reason="SchedulerError") from None
        self._events.record(
            ObjectReference.to(pod),
            "Normal",
            reason="Scheduled",
            action="Binding",
            note=f"Successfully assigned {object_name(pod)} to {placement.node}",
        )

    async def _take_back(self, pod: ObjectView, written: list[ObjectView]) -> None:
        for claim in written:
            try:
                if extended_claim_owner(claim) is not None:
                    await self._post_filter.delete(claim)
                elif is_reserved_for(self._claims.claim(object_key(claim)) or claim, pod):
                    self._claims.written(pod, await self._post_filter.unreserve(claim, pod))
            except KubeError as error:
                logger.debug("claim not given back", extra={"claim": object_name(claim), "error": str(error)})

    async def _write_claim_status(self, pod: ObjectView, extended: ExtendedClaim, claim: ObjectView) -> None:
        """Write to the pod's status which claim its extended resources come from."""
        namespace, name = object_key(pod)
        if not extended.mappings:
            # so it is in 1.37 where a node has all of the resources itself and the pod has other claims
            text = f"nil or empty request mappings, no update of pod {object_name(pod)} ExtendedResourceClaimStatus"
            raise _binding_failed(text)
        status = {"resourceClaimName": claim["metadata"]["name"], "requestMappings": list(extended.mappings)}
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": {"extendedResourceClaimStatus": status}}
        with error_context(f"update pod {object_name(pod)} ExtendedResourceClaimStatus"):
            await self._client.patch(PODS, name, body, namespace, subresource="status")

    async def _reserve(
        self, claim: ObjectView, placement: Placement, allocation: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Give the claim its allocation, unless that is None, and the pod or its group as a consumer."""
        namespace, name = object_key(claim)
        current: ObjectView = claim
        if allocation is None and not claim.get("status", {}).get("allocation"):
            self._check(claim, claim, allocation)  # the pod that was to get it, with this one, has failed
        for _ in range(_BIND_ATTEMPTS - 1):
            with suppress(Conflict):
                return await self._reserve_once(current, placement, allocation)
            with error_context(f"get updated claim {object_name(claim)} after conflict"):
                current = await self._client.get(RESOURCE_CLAIMS, name, namespace)
            self._check(current, claim, allocation)
        return await self._reserve_once(current, placement, allocation)

    async def _reserve_once(
        self, claim: ObjectView, placement: Placement, allocation: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        pod, new = placement.pod, dict(claim)
        finalizers = claim["metadata"].get("finalizers", [])
        if allocation is not None and DELETE_PROTECTION not in finalizers:
            with error_context(f"add finalizer to claim {object_name(claim)}"):
                new = await write_finalizers(self._client, claim, [*finalizers, DELETE_PROTECTION])
        status = dict(new.get("status", {}))
        # as in 1.37: a claim that another writer allocated without a time gets one, and the API server rejects that
        status["allocation"] = {"allocationTimestamp": format_time(), **(allocation or status["allocation"])}
        if not is_reserved_for(new, pod):
            status["reservedFor"] = [*status.get("reservedFor", []), consumer(pod, new, placement.group)]
        what = "reservation" if allocation is None else "allocation and reservation"
        with error_context(f"add {what} to claim {object_name(claim)}"):
            new = await write_status(self._client, new, status)
        self._claims.written(pod, new)
        return new

    def _check(self, current: ObjectView, claim: ObjectView, allocation: Mapping[str, Any] | None) -> None:
        has = bool(current.get("status", {}).get("allocation"))
        if current["metadata"]["uid"] != claim["metadata"]["uid"] or "deletionTimestamp" in current["metadata"]:
            what = "deleted"
        elif allocation is not None and has:
            what = "allocated elsewhere"
        elif allocation is None and not has:
            what = "deallocated elsewhere"
        else:
            return
        raise _binding_failed(f"claim {object_name(claim)} got {what} in the meantime")

    # --- binding conditions (KEP-5007)

    async def _binding_conditions(self, placement: Placement, claims: Sequence[ObjectView]) -> None:
        """Wait until the drivers say that the devices are ready for the node."""
        if not any(results_with_binding_conditions(claim) for claim in claims):
            return
        namespace, name = object_key(placement.pod)
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
                        await self._claims.change()
        except TimeoutError:
            waiting = next(claim for claim in claims if not self._is_ready(claim))
            raise _binding_failed(f"device binding timeout: claim={waiting['metadata']['name']}") from None

    def _is_ready(self, claim: ObjectView) -> bool:
        current = self._claims.claim(object_key(claim))
        if current is None:
            raise _binding_failed(f'could not find ResourceClaim "{object_name(claim)}"')
        try:
            return is_ready(current)
        except BindingFailed as error:
            raise _binding_failed(str(error)) from None


def _binding_failed(text: str) -> Unschedulable:
    return Unschedulable(f'running PreBind plugin "DynamicResources": {text}', reason="SchedulerError")


@contextmanager
def error_context(what: str) -> Iterator[None]:
    """Prefix errors with the failed step, as kube-scheduler does."""
    try:
        yield
    except KubeError as error:
        error.text = f"{what}: {error.text}"
        raise


_RELEASE_ATTEMPTS = 5
_RELEASED = frozenset({"allocation", "reservedFor", "devices"})


class PostFilterRunner:
    """Deallocates claims, or removes their consumers."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def apply(self, remedy: PostFilterAction) -> None:
        """Apply a remedy.

        Raises:
            KubeError: the API server refuses.
        """
        if remedy.delete:
            await self.delete(remedy.claim)
            return
        status = {name: value for name, value in remedy.claim["status"].items() if name not in _RELEASED}
        await self._client.update(RESOURCE_CLAIMS, {**remedy.claim, "status": status}, subresource="status")

    async def unreserve(self, claim: ObjectView, pod: ObjectView) -> ObjectView:
        """Return the claim without the pod among its consumers.

        Raises:
            KubeError: the API server refuses.
        """
        namespace, name = object_key(claim)
        body = {
            "metadata": {"uid": claim["metadata"]["uid"]},
            "status": {"reservedFor": [{"$patch": "delete", "uid": pod["metadata"]["uid"]}]},
        }
        return await self._client.patch(
            RESOURCE_CLAIMS, name, body, namespace, subresource="status", content_type=STRATEGIC_MERGE_PATCH
        )

    async def delete(self, claim: ObjectView) -> None:
        """Delete a claim that was created for extended resources; remove its delete protection first.

        Raises:
            KubeError: the API server rejects the deletion.
        """
        namespace, name = object_key(claim)
        current = claim
        try:
            for attempt in range(_RELEASE_ATTEMPTS):
                finalizers = [item for item in current["metadata"].get("finalizers", []) if item != DELETE_PROTECTION]
                try:
                    await write_finalizers(self._client, current, finalizers)
                    break
                except Conflict:
                    if attempt == _RELEASE_ATTEMPTS - 1:
                        raise
                except KubeError as error:
                    error.text = f"update resourceclaim {object_name(claim)}: {error.text}"
                    raise
                current = await self._client.get(RESOURCE_CLAIMS, name, namespace)
            await self._client.delete(RESOURCE_CLAIMS, name, namespace)
        except NotFound:
            return
