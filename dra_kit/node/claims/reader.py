"""Reads a ResourceClaim from the API server and reduces it to what this driver must prepare."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Collection
from typing import Any, Final, Protocol

from msgspec import Struct
from pydantic import ValidationError

from dra_kit.author.claim import Claim, ConsumerReference, EffectRequests
from dra_kit.client.resources import RESOURCE_CLAIMS, Resource
from dra_kit.client.transport import ClientResponse
from dra_kit.errors import (
    DraKitError,
    InternalError,
    KubeError,
    NotFound,
    PermanentError,
    PrepareError,
    TransientError,
    Unavailable,
)
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.config import configs_for_driver
from dra_kit.kubernetes.resource.names import dns_label
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.process.tracing import span

POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
_REMEMBERED: Final = 256  # claims; more than a node has
_sorted_json: Final = json.JSONEncoder(sort_keys=True).encode


class ClaimApi(Protocol):
    """The part of the API client that is needed here."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> dict[str, Any]:
        """Return one object."""
        ...

    async def get_answer(self, resource: Resource, name: str, namespace: str | None = None) -> ClientResponse:
        """Return one object, undecoded."""
        ...


class AllocatedClaim(Struct, frozen=True):
    """A claim that is allocated to this driver, checked against the kubelet's request.

    Attributes:
        results: this driver's results, in the API's order.
        configs: for each result the entries with opaque parameters for this driver, weakest first.
        allocation: fingerprint of results and configs; if it is equal, the same is to be prepared.
        pod_names: the names of the pods that the claim is reserved for.
        pod_claim_name: the name in the pod's ``resourceClaims``, for claims made from a template.
    """

    reference: ClaimReference
    status: v1.ResourceClaimStatus
    raw: dict[str, Any]
    results: tuple[v1.DeviceRequestAllocationResult, ...]
    configs: tuple[tuple[v1.DeviceAllocationConfiguration, ...], ...]
    allocation: str
    pod_names: tuple[str, ...]
    pod_claim_name: str | None

    @property
    def pods(self) -> str | None:
        """The pods that the claim is reserved for, as logged: ``namespace/name``, separated by commas."""
        return ",".join([f"{self.reference.namespace}/{name}" for name in self.pod_names]) or None

    @property
    def consumers(self) -> tuple[ConsumerReference, ...]:
        """For whom the claim is reserved."""
        return tuple(
            ConsumerReference(item.api_group, item.resource, item.name, item.uid) for item in self.status.reserved_for
        )

    def for_author(self, effects: EffectRequests | None) -> Claim:
        """Return the claim as the preparer sees it."""
        metadata = self.raw["metadata"]
        return Claim(
            namespace=self.reference.namespace,
            name=self.reference.name,
            uid=self.reference.uid,
            labels=metadata.get("labels") or {},
            annotations=metadata.get("annotations") or {},
            reserved_for=self.consumers,
            pod_claim_name=self.pod_claim_name,
            raw=self.raw,
            effects=effects,
        )


class ClaimReader:
    """Reads claims for one driver; a claim that has not changed since the last read is not parsed again."""

    def __init__(self, api: ClaimApi, driver: str) -> None:
        self._api = api
        self._driver = driver
        self._bursts = RequestBatcher()
        self._read: OrderedDict[ClaimReference, tuple[bytes, AllocatedClaim]] = OrderedDict()

    async def fetch(self, reference: ClaimReference) -> AllocatedClaim:
        """Fetch the claim and check it.

        Raises:
            PermanentError: the claim does not exist (code ``claim-not-found``), or belongs to another driver.
            TransientError: the API server cannot be reached, or the claim was replaced or is not allocated.
        """
        try:
            with span("read claim"):
                async with self._bursts:
                    answer = await self._api.get_answer(RESOURCE_CLAIMS, reference.name, reference.namespace)
            text, known = self._read.get(reference, (b"", None))
            if known is not None and text == answer.text:
                return known
            raw = answer.decode()
        except NotFound as error:
            raise PermanentError(
                f"claim {reference} does not exist; delete the pod that uses it, or create the claim again",
                code="claim-not-found",
            ) from error
        except KubeError as error:
            hint = "; the kubelet tries again" if isinstance(error, Unavailable) else ""
            raise TransientError(f"claim {reference} cannot be read: {error}{hint}", code=error.code) from error
        claim = parse_allocated_claim(raw, reference, self._driver)
        self._read[reference] = answer.text, claim
        if len(self._read) > _REMEMBERED:
            self._read.popitem(last=False)
        return claim

    async def is_over(self, reference: ClaimReference, devices: Collection[tuple[str, str]] = ()) -> bool | None:
        """Return whether the claim is gone or lacks a device, see :func:`still_holds`; None without an answer."""
        try:
            raw = await self._api.get(RESOURCE_CLAIMS, reference.name, reference.namespace)
        except NotFound:
            return True
        except DraKitError:
            return None
        return not still_holds(raw, reference.uid, self._driver, devices)

    def forget(self, reference: ClaimReference) -> None:
        """Forget a released claim."""
        self._read.pop(reference, None)


def parse_allocated_claim(raw: dict[str, Any], reference: ClaimReference, driver: str) -> AllocatedClaim:
    """Check a claim object and reduce it to the part of this driver.

    Raises:
        PrepareError: it is not the claim ``reference``, is not allocated, or has no device of this driver.
    """
    uid = (raw.get("metadata") or {}).get("uid")
    try:
        # only the status matters here, and this runs with every call of the kubelet
        status = v1.ResourceClaimStatus.model_validate(raw.get("status") or {})
    except ValidationError as error:
        raise InternalError(
            f"claim {reference} cannot be parsed: {error.errors(include_url=False)[0]['msg']}"
        ) from error
    if uid != reference.uid:
        raise TransientError(
            f"claim {reference} was replaced: the kubelet asks for UID {reference.uid}, the API server has "
            f"{uid}; create the pod again",
            code="claim-replaced",
        )
    allocation = status.allocation
    if allocation is None:
        raise TransientError(
            f"claim {reference} is not allocated; it is prepared once the scheduler has allocated it",
            code="claim-not-allocated",
        )
    results = tuple(result for result in allocation.devices.results if result.driver == driver)
    if not results:
        others = sorted({result.driver for result in allocation.devices.results})
        raise PermanentError(
            f"claim {reference} has no device of driver {driver}, only of {', '.join(others) or 'no driver'}; "
            "another driver must prepare it",
            code="claim-of-other-driver",
        )
    configs = tuple(tuple(configs_for_driver(allocation.devices.config, result.request, driver)) for result in results)
    pods = tuple([item.name for item in status.reserved_for if item.resource == "pods" and not item.api_group])
    fingerprint = _fingerprint(results, configs)
    return AllocatedClaim(reference, status, raw, results, configs, fingerprint, pods, _pod_claim_name(raw["metadata"]))


def _pod_claim_name(metadata: dict[str, Any]) -> str | None:
    """Return the name in the pod's ``resourceClaims``.

    The creator of a claim can write any annotation. So the annotation with the name counts only if a pod controls the
    claim, which is so for a generated one, and if it is a name that a pod can use (a DNS label).
    """
    name = (metadata.get("annotations") or {}).get(POD_CLAIM_NAME)
    if not isinstance(name, str) or dns_label(name):
        return None
    generated = any(
        owner.get("controller") is True and owner.get("kind") == "Pod" and owner.get("apiVersion") == "v1"
        for owner in metadata.get("ownerReferences") or ()
    )
    return name if generated else None


def _fingerprint(
    results: tuple[v1.DeviceRequestAllocationResult, ...],
    configs: tuple[tuple[v1.DeviceAllocationConfiguration, ...], ...],
) -> str:
    # only fields that affect the preparation: a newer API server may add others to claims in use
    data = [
        [
            result.request, result.pool, result.device, result.share_id, bool(result.admin_access),
            {name: str(amount) for name, amount in result.consumed_capacity.items()},
            [entry.opaque.parameters for entry in entries if entry.opaque is not None],
        ]
        for result, entries in zip(results, configs, strict=True)
    ]  # fmt: skip
    return hashlib.sha256(_sorted_json(data).encode()).hexdigest()


def still_holds(raw: dict[str, Any], uid: str, driver: str, devices: Collection[tuple[str, str]]) -> bool:
    """Return whether a claim object is still the claim ``uid``, with a device of the driver and with all ``devices``.

    A claim that cannot be parsed counts as having them: a newer API server may send what this release does not know.
    """
    try:
        found = parse_allocated_claim(raw, ClaimReference("", "", uid), driver)
    except PrepareError:
        return False
    except InternalError:
        return True
    return {*devices} <= {(result.pool, result.device) for result in found.results}


_QUIET: Final = 0.004  # seconds without a further call
_LONGEST: Final = 0.02  # seconds that a request waits for others, at most


class RequestBatcher:
    """Batches requests: ``async with`` around a request waits until it may be sent.

    A single request is sent at once. Requests that arrive while one is in progress wait until no other has arrived for
    a short time, and are then sent together. Used in one event loop.
    """

    def __init__(self) -> None:
        self._in_progress = 0
        self._at_once = False  # requests of one loop iteration belong to one kubelet call
        self._burst: asyncio.Event | None = None
        self._latest = 0.0

    async def __aenter__(self) -> None:
        if self._burst is not None or (self._in_progress and not self._at_once):
            await self._wait()
        elif not self._at_once:
            self._at_once = True
            asyncio.get_running_loop().call_soon(self._round_over)
        self._in_progress += 1

    async def __aexit__(self, *_: object) -> None:
        self._in_progress -= 1

    def _round_over(self) -> None:
        self._at_once = False

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._latest = loop.time()
        if self._burst is None:
            self._burst = asyncio.Event()
            loop.call_later(_QUIET, self._send, self._burst, self._latest + _LONGEST)
        await self._burst.wait()

    def _send(self, burst: asyncio.Event, last: float) -> None:
        loop = asyncio.get_running_loop()
        until = min(self._latest + _QUIET, last)
        if loop.time() < until:
            loop.call_at(until, self._send, burst, last)
            return
        self._burst = None
        burst.set()
