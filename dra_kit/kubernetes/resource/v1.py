"""``ResourceClaim``: what was asked for, what was allocated, who uses it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from dra_kit.resource.v1.base import APIModel, Bool, Int64, ObjectMeta
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
    """A taint that a request accepts; ``operator`` is Exists or Equal, which is also what an empty one means."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: Int64 | None = None


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

    devices: DeviceAllocationResult = Field(default_factory=DeviceAllocationResult)
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None


class ResourceClaimConsumerReference(APIModel, frozen=True):
    """Who may use the claim: a pod, or something else that ``api_group`` and ``resource`` tell."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(APIModel, frozen=True):
    """The claim's allocation, users, and what drivers say of its devices (preserved as it came)."""

    allocation: AllocationResult | None = None
    reserved_for: tuple[ResourceClaimConsumerReference, ...] = ()


class CELDeviceSelector(APIModel, frozen=True):
    """A CEL expression over ``device``, which must be true."""

    expression: str = ""


class DeviceSelector(APIModel, frozen=True):
    """A condition on devices; without ``cel`` it is of a kind that this release does not know."""

    cel: CELDeviceSelector | None = None


class CapacityRequirements(APIModel, frozen=True):
    """How much a request needs of which capacity of a device (KEP-5075)."""

    requests: dict[str, Quantity] = {}


class DerivedAttribute(APIModel, frozen=True):
    """An attribute that CEL computes from a device, for the claim's constraints only (KEP-6080, alpha in 1.37)."""

    name: str = ""
    expression: str = ""


class DeviceSubRequest(APIModel, frozen=True):
    """One of several ways to satisfy a request; ``allocation_mode`` is ExactCount or All."""

    name: str = ""
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = ""
    count: Int64 = 0
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None
    derived_attributes: tuple[DerivedAttribute, ...] = ()


class ExactDeviceRequest(APIModel, frozen=True):
    """The only way to satisfy a request; ``allocation_mode`` is ExactCount or All."""

    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = ""
    count: Int64 = 0
    admin_access: Bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None
    derived_attributes: tuple[DerivedAttribute, ...] = ()


class DeviceRequest(APIModel, frozen=True):
    """Devices that a claim asks for: ``exactly`` or the ``first_available`` of up to eight ways (KEP-4816)."""

    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


class DeviceConstraint(APIModel, frozen=True):
    """What all devices of some (empty: all) of the requests must have in common, or in which they must differ."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaim(APIModel, frozen=True):
    """``spec.devices`` of a claim."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceClaimConfiguration, ...] = ()


class ResourceClaimSpec(APIModel, frozen=True):
    """What a claim asks for."""

    devices: DeviceClaim = Field(default_factory=DeviceClaim)


DeviceClaim.model_rebuild()  # before those that have it: they take what it is built of


class ResourceClaim(APIModel, frozen=True):
    """A request for devices and its outcome."""

    api_version: str = "resource.k8s.io/v1"
    kind: str = "ResourceClaim"
    metadata: ObjectMeta
    # to make the defaults builds both models, once: all processes read claims, and a first call is not to wait for that
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()
