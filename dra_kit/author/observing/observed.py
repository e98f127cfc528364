"""``ObservedClaim`` and ``ObservedDevice``: a claim as the controller sees it, without its node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_kit.author.preparing.claim import ConsumerReference
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.kubernetes.values.quantity import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedDevice:
    """One device of a claim's allocation (``status.allocation.devices.results[]`` of resource.k8s.io/v1).

    Attributes:
        name: the device's name.
        pool: its pool.
        request: the request of the claim that it satisfies; ``gpu/small`` for an alternative of a request.
        share_id: distinguishes the shares of a device with ``allow_multiple_allocations``.
        consumed_capacity: what this claim takes of such a device.
        admin_access: the claim may look at the device while others use it.
        binding_conditions: the conditions that must be true before the pod is bound (KEP-5007).
        binding_failure_conditions: those with one of which the device has failed.
    """

    name: str
    pool: str
    request: str = ""
    share_id: str | None = None
    consumed_capacity: Mapping[str, Quantity] = field(default_factory=dict)
    admin_access: bool = False
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedClaim(ClaimReference):
    """A ResourceClaim with the devices of this driver that it holds, or held last.

    Attributes:
        devices: of this driver; those of other drivers are nothing to it.
        consumers: who may use the claim in that state (``status.reservedFor``).
        node: the node that the allocation is bound to; None where several may use it.
    """

    devices: tuple[ObservedDevice, ...] = ()
    consumers: tuple[ConsumerReference, ...] = ()
    node: str | None = None
