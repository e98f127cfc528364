"""``ResourceClaim``: what was asked for, what was allocated, who uses it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from dra_kit.resource.v1.base import APIModel, ObjectMeta
from dra_kit.resource.v1.nodes import NodeSelector
from dra_kit.values.quantity import Quantity


class OpaqueDeviceConfiguration(APIModel, frozen=True):
    """Parameters in a driver's own format."""

    driver: str = ""
    parameters: Any = None


class DeviceClaimConfiguration(APIModel, frozen=True):
    """Configuration that a claim carries for some (empty: all) of its requests."""

    requests: tuple[str, ...] = ()
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceAllocationConfiguration(APIModel, frozen=True):
    """Configuration in an allocation; ``source`` is FromClass or FromClaim. Later entries are stronger."""

    source: str = ""
    requests: tuple[str, ...] = ()
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceToleration(APIModel, frozen=True):
    """A taint that a request accepts."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class DeviceRequestAllocationResult(APIModel, frozen=True):
    """One device for one request; ``request`` is ``name`` or ``name/subrequest``."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    share_id: str | None = Field(default=None, alias="shareID")
    consumed_capacity: dict[str, Quantity] = {}
    skip_node_operations: tuple[str, ...] = ()


class DeviceAllocationResult(APIModel, frozen=True):
    """All devices of a claim and the configuration that goes with them."""

    results: tuple[DeviceRequestAllocationResult, ...] = ()
    config: tuple[DeviceAllocationConfiguration, ...] = ()


class AllocationResult(APIModel, frozen=True):
    """What the scheduler chose."""

    devices: DeviceAllocationResult = DeviceAllocationResult()
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None


class ResourceClaimConsumerReference(APIModel, frozen=True):
    """Who may use the claim: a pod, or something else that ``api_group`` and ``resource`` tell."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(APIModel, frozen=True):
    """The claim's allocation, users, and what drivers say of its devices (kept as it came)."""

    allocation: AllocationResult | None = None
    reserved_for: tuple[ResourceClaimConsumerReference, ...] = ()


class DeviceClaim(APIModel, frozen=True):
    """``spec.devices`` of a claim; requests and constraints are the scheduler's business and kept as they came."""

    config: tuple[DeviceClaimConfiguration, ...] = ()


class ResourceClaimSpec(APIModel, frozen=True):
    """What a claim asks for."""

    devices: DeviceClaim = DeviceClaim()


class ResourceClaim(APIModel, frozen=True):
    """A request for devices and its outcome."""

    api_version: str = "resource.k8s.io/v1"
    kind: str = "ResourceClaim"
    metadata: ObjectMeta
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()
