"""Models of resource.k8s.io/v1: snake_case attributes, camelCase JSON, unknown fields preserved.

They are those of Kubernetes 1.34 to 1.38.

ResourcePoolStatusRequest is here too; it is served as v1alpha3.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field
from typing_extensions import override

from dra_kit.kubernetes.resource.api_model import APIModel, Bool, Int64, ObjectMeta, Time
from dra_kit.kubernetes.values.quantity import Quantity


class NodeSelectorRequirement(APIModel, frozen=True):
    """``key operator values`` over a node's labels or fields.

    ``operator`` is In, NotIn, Exists, DoesNotExist, Gt or Lt.
    """

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeSelectorTerm(APIModel, frozen=True):
    """Requirements that must all match."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(APIModel, frozen=True):
    """Terms of which any must match. ResourceSlices and devices have exactly one."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class DeviceAttribute(APIModel, frozen=True):
    """The value of one attribute: exactly one field is set. List values are alpha (DRAListTypeAttributes)."""

    int_: Int64 | None = Field(default=None, alias="int")
    bool_: Bool | None = Field(default=None, alias="bool")
    string: str | None = None
    version: str | None = None
    ints: tuple[Int64, ...] | None = None
    bools: tuple[Bool, ...] | None = None
    strings: tuple[str, ...] | None = None
    versions: tuple[str, ...] | None = None

    @override
    def to_json(self) -> dict[str, Any]:
        """See :meth:`APIModel.to_json`; faster for common attributes, because there are many."""
        usual = (("string", self.string), ("int", self.int_), ("bool", self.bool_), ("version", self.version))
        found: dict[str, Any] = {field: value for field, value in usual if value is not None}
        return found if len(found) == len(self.model_fields_set) == 1 else super().to_json()


class CapacityRequestPolicyRange(APIModel, frozen=True):
    """A request may be anything from ``min`` to ``max``, in multiples of ``step`` above ``min``."""

    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class CapacityRequestPolicy(APIModel, frozen=True):
    """Limits for the capacity that one claim can request from a shared device (KEP-5075)."""

    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    valid_range: CapacityRequestPolicyRange | None = None


class DeviceCapacity(APIModel, frozen=True):
    """A capacity of a device."""

    value: Quantity = Quantity(0)
    request_policy: CapacityRequestPolicy | None = None


class Counter(APIModel, frozen=True):
    """An amount that several devices consume."""

    value: Quantity = Quantity(0)


class CounterSet(APIModel, frozen=True):
    """Named amounts that several devices of one pool share (KEP-4815)."""

    name: str = ""
    counters: dict[str, Counter] = {}


class DeviceCounterConsumption(APIModel, frozen=True):
    """The counters of a set that a device consumes when it is allocated.

    ``compatibility_groups`` (KEP-5963, alpha in 1.37): devices that draw on one set must have a group in common.
    """

    counter_set: str = ""
    counters: dict[str, Counter] = {}
    compatibility_groups: tuple[str, ...] = ()


class DeviceTaint(APIModel, frozen=True):
    """Keeps claims away that do not tolerate it (KEP-5055); ``effect`` is None, NoSchedule or NoExecute."""

    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: Time | None = None


class NodeAllocatableResourceMapping(APIModel, frozen=True):
    """The amount of a node resource for a device: by consumed capacity or by device."""

    capacity_key: str | None = None
    capacity_multiplier: Quantity | None = None
    device_multiplier: Quantity | None = None


class NodeAllocatableResourceOverhead(APIModel, frozen=True):
    """Additional amounts for a pod, and for each of its containers that uses the claim."""

    per_pod: Quantity | None = None
    per_container: Quantity | None = None


class NodeAllocatableResource(APIModel, frozen=True):
    """How a device counts against cpu, memory or hugepages of its node (KEP-5517, alpha in 1.37)."""

    mapping: NodeAllocatableResourceMapping | None = None
    overhead: NodeAllocatableResourceOverhead | None = None


class AllocatedNodeResource(APIModel, frozen=True):
    """How a device counted against a resource of its node in 1.36, the first release with KEP-5517."""

    capacity_key: str | None = None
    allocation_multiplier: Quantity | None = None


class Device(APIModel, frozen=True):
    """One device of a ResourceSlice."""

    name: str = ""
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    consumes_counters: tuple[DeviceCounterConsumption, ...] = ()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: Bool | None = None
    taints: tuple[DeviceTaint, ...] = ()
    binds_to_node: Bool | None = None
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: Bool | None = None
    node_allocatable_resources: dict[str, NodeAllocatableResource] = {}
    node_allocatable_resource_mappings: dict[str, AllocatedNodeResource] = {}


class ResourcePool(APIModel, frozen=True):
    """The pool of a slice; all slices of a pool have the same values.

    ``generation`` rises whenever the set of slices changes; readers ignore all but the highest.
    """

    name: str = ""
    generation: Int64 = 0
    resource_slice_count: Int64 = 0


class ResourceSliceSpec(APIModel, frozen=True):
    """Exactly one of ``node_name``, ``node_selector``, ``all_nodes`` and ``per_device_node_selection`` is set."""

    driver: str = ""
    pool: ResourcePool = Field(default_factory=ResourcePool)
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: Bool | None = None
    per_device_node_selection: Bool | None = None
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()
    partition_type_attribute: str | None = None
    skip_node_operations: tuple[str, ...] = ()


class ResourceSlice(APIModel, frozen=True):
    """Part of a pool of devices."""

    api_version: str = "resource.k8s.io/v1"
    kind: str = "ResourceSlice"
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: ResourceSliceSpec = Field(default_factory=ResourceSliceSpec)


class Condition(APIModel, frozen=True):
    """``metav1.Condition``; ``status`` is True, False or Unknown."""

    type: str = ""
    status: str = ""
    observed_generation: Int64 | None = None
    last_transition_time: Time | None = None
    reason: str = ""
    message: str = ""


class NetworkDeviceData(APIModel, frozen=True):
    """A network device as the pod sees it; ``ips`` are interface addresses in CIDR form."""

    interface_name: str = ""
    ips: tuple[str, ...] = ()
    hardware_address: str = ""


class AllocatedDeviceStatus(APIModel, frozen=True):
    """The driver's status of an allocated device; ``data`` is a JSON object in the driver's format."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = Field(default=None, alias="shareID")
    conditions: tuple[Condition, ...] = ()
    data: Any = None
    network_data: NetworkDeviceData | None = None


class OpaqueDeviceConfiguration(APIModel, frozen=True):
    """Parameters in a driver's own format."""

    driver: str = ""
    parameters: Any = None


class DeviceClaimConfiguration(APIModel, frozen=True):
    """Configuration of a claim for some (empty: all) of its requests."""

    requests: tuple[str, ...] = ()
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceAllocationConfiguration(APIModel, frozen=True):
    """Configuration in an allocation; ``source`` is FromClass or FromClaim. Later entries take precedence."""

    source: str = ""
    requests: tuple[str, ...] = ()
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceToleration(APIModel, frozen=True):
    """A taint that a request tolerates; ``operator`` is Exists or Equal (the default)."""

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
    """The devices of a claim and their configuration."""

    results: tuple[DeviceRequestAllocationResult, ...] = ()
    config: tuple[DeviceAllocationConfiguration, ...] = ()


class AllocationResult(APIModel, frozen=True):
    """The devices and nodes selected by the scheduler."""

    devices: DeviceAllocationResult = Field(default_factory=DeviceAllocationResult)
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None


class ResourceClaimConsumerReference(APIModel, frozen=True):
    """A consumer of the claim: a pod, or another object by ``api_group`` and ``resource``."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(APIModel, frozen=True):
    """The claim's allocation, consumers, and device status (preserved unchanged)."""

    allocation: AllocationResult | None = None
    reserved_for: tuple[ResourceClaimConsumerReference, ...] = ()


class CELDeviceSelector(APIModel, frozen=True):
    """A CEL expression over ``device``, which must be true."""

    expression: str = ""


class DeviceSelector(APIModel, frozen=True):
    """A condition on devices; without ``cel`` it has an unknown kind."""

    cel: CELDeviceSelector | None = None


class CapacityRequirements(APIModel, frozen=True):
    """The requested capacities of a device (KEP-5075)."""

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
    """A request for devices: ``exactly``, or up to eight alternatives in ``first_available`` (KEP-4816)."""

    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


class DeviceConstraint(APIModel, frozen=True):
    """An attribute in which devices of some (empty: all) requests must be equal, or must differ."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaim(APIModel, frozen=True):
    """``spec.devices`` of a claim."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceClaimConfiguration, ...] = ()


class ResourceClaimSpec(APIModel, frozen=True):
    """The spec of a claim."""

    devices: DeviceClaim = Field(default_factory=DeviceClaim)


DeviceClaim.model_rebuild()  # before models that contain it, which copy its schema


class ResourceClaim(APIModel, frozen=True):
    """A request for devices and its outcome."""

    api_version: str = "resource.k8s.io/v1"
    kind: str = "ResourceClaim"
    metadata: ObjectMeta
    # creating the defaults builds both models now, so that the first call of a process does not wait for it
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class ResourceClaimTemplateSpec(APIModel, frozen=True):
    """Labels and annotations (``metadata``) and spec of the generated claims."""

    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: ResourceClaimSpec = Field(default_factory=ResourceClaimSpec)


class ResourceClaimTemplate(APIModel, frozen=True):
    """A template for claims of pods in its namespace."""

    api_version: str = "resource.k8s.io/v1"
    kind: str = "ResourceClaimTemplate"
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: ResourceClaimTemplateSpec = Field(default_factory=ResourceClaimTemplateSpec)


class DeviceClassConfiguration(APIModel, frozen=True):
    """Configuration for all claims of the class."""

    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClassSpec(APIModel, frozen=True):
    """A device belongs to the class if all selectors match it."""

    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[DeviceClassConfiguration, ...] = ()
    extended_resource_name: str | None = None


class DeviceClass(APIModel, frozen=True):
    """A class of devices, to which requests refer by name."""

    api_version: str = "resource.k8s.io/v1"
    kind: str = "DeviceClass"
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: DeviceClassSpec = Field(default_factory=DeviceClassSpec)


class DeviceTaintSelector(APIModel, frozen=True):
    """The devices of a rule, which match all set fields; a class and expressions are known to 1.34 only."""

    device_class_name: str | None = None
    driver: str | None = None
    pool: str | None = None
    device: str | None = None
    selectors: tuple[DeviceSelector, ...] = ()


class DeviceTaintRuleSpec(APIModel, frozen=True):
    """A taint and its devices: none without ``device_selector``, all with an empty one."""

    device_selector: DeviceTaintSelector | None = None
    taint: DeviceTaint = Field(default_factory=DeviceTaint)


class DeviceTaintRule(APIModel, frozen=True):
    """One taint for several devices."""

    api_version: str = "resource.k8s.io/v1"
    kind: str = "DeviceTaintRule"
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: DeviceTaintRuleSpec = Field(default_factory=DeviceTaintRuleSpec)


class ResourcePoolStatusRequestSpec(APIModel, frozen=True):
    """The pools to report: those of ``driver``, or one by name, at most ``limit``."""

    driver: str = ""
    pool_name: str | None = None
    limit: Int64 | None = None
    default_partition_type_attribute: str | None = None


class ResourcePoolStatusRequest(APIModel, frozen=True):
    """A request for the status of pools, which a controller answers once (KEP-5677)."""

    api_version: str = "resource.k8s.io/v1alpha3"
    kind: str = "ResourcePoolStatusRequest"
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: ResourcePoolStatusRequestSpec = Field(default_factory=ResourcePoolStatusRequestSpec)
