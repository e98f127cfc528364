"""A release of Kubernetes: its version, its feature gates, and the rules that changed without a gate.

Sources: ``pkg/features/kube_features.go`` of Kubernetes 1.37.1 and 1.38.0-beta.0.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final, NamedTuple, Self

from msgspec import Struct


class KubernetesVersion(NamedTuple):
    """The version of a release, written as ``1.37``."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the version of ``1.37``, ``v1.37.1`` or ``1.38.0-beta.0``; it may be newer than :data:`NEWEST`.

        Raises:
            ValueError: it is not the version of a release with resource.k8s.io/v1.
        """
        found = _VERSION.match(text)
        if found is None:
            raise ValueError(f"{text!r} is not a Kubernetes release; write for example {NEWEST}")
        version = cls(1, int(found["minor"]))
        if version < OLDEST:
            raise ValueError(f"Kubernetes {version} has no resource.k8s.io/v1; use {OLDEST} to {NEWEST}")
        return version

    def has(self, change: Change) -> bool:
        """Return whether a rule has changed in this release or before."""
        return self.minor >= _CHANGED[change]

    @classmethod
    def named(cls, text: str) -> Self:
        """Return the version that a user names, such as ``1.37`` or ``v1.37.1``; it may be newer than :data:`NEWEST`.

        Raises:
            ValueError: the text is not a version and nothing else, or it is older than :data:`OLDEST`.
        """
        if _NAMED.fullmatch(text) is None:
            raise ValueError(f"{text!r} is not a Kubernetes release; use {OLDEST} to {NEWEST}")
        return cls.parse(text)

    @classmethod
    def supported(cls, text: str) -> Self:
        """Return the version that a user names, such as ``1.37`` or ``v1.37.1``.

        Raises:
            ValueError: see :meth:`named`, or it is newer than :data:`NEWEST`.
        """
        version = cls.named(text)
        if version > NEWEST:
            raise ValueError(f"Kubernetes {version} is newer than what dra-kit knows; use {OLDEST} to {NEWEST}")
        return version

    @classmethod
    def span(cls, text: str) -> tuple[Self, ...]:
        """Return the versions of ``1.34..1.37``, oldest first, or the only one of ``1.37``.

        Raises:
            ValueError: an end is not a supported version, or the first is newer than the last.
        """
        first, dots, last = text.partition("..")
        oldest = cls.supported(first)
        newest = cls.supported(last) if dots else oldest
        if oldest > newest:
            raise ValueError(f"{text} ends before it begins; use {newest}..{oldest}")
        return tuple(cls(oldest.major, minor) for minor in range(oldest.minor, newest.minor + 1))

    @property
    def published(self) -> str:
        """The version of a binary of this release, as ``/version`` and Nodes have it: ``v1.37.1``."""
        return _PUBLISHED.get(self.minor, f"v{self}.0")

    @property
    def before(self) -> KubernetesVersion:
        """The release before this one."""
        return KubernetesVersion(self.major, self.minor - 1)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


OLDEST: Final = KubernetesVersion(1, 34)
"""The first release that serves resource.k8s.io/v1 by default."""
NEWEST: Final = KubernetesVersion(1, 38)
"""The newest release whose fields, feature gates and rules dra-kit implements; it may be a beta."""
DEFAULT: Final = KubernetesVersion(1, 37)
"""What is simulated and judged by unless another release is named: the newest that is final."""
SUPPORTED: Final = tuple(KubernetesVersion(1, minor) for minor in range(OLDEST.minor, NEWEST.minor + 1))
"""All releases that users can name, oldest first."""
_VERSION: Final = re.compile(r"v?1\.(?P<minor>[0-9]{1,3})(?![0-9])")
_NAMED: Final = re.compile(r"v?1\.[0-9]{1,3}(\.[0-9]{1,3}([-+][0-9A-Za-z.+-]{1,60})?)?")
_PUBLISHED: Final = {34: "v1.34.2", 36: "v1.36.2", 37: "v1.37.1", 38: "v1.38.0-beta.0"}
"""The versions whose answers are known, by minor release."""


class Change(Enum):
    """A rule that changed without a feature gate; the code asks for each in one place, by :meth:`Release.has`.

    Code that knows a version but no gates, as CEL does, asks :meth:`KubernetesVersion.has`.
    """

    ALLOCATORS_ALIKE = auto()
    """The three allocators differ in their features only: each knows the rules that the experimental one had before."""
    VERSIONS_COMPARE_WITHOUT_BUILD = auto()
    """Constraints compare versions as semantic versions, so that build metadata does not count."""
    UNUSABLE_VALUES_FAIL = auto()
    """A constraint that meets a value without meaning to the scheduler fails the attempt; before, it did not match."""
    EMPTY_DERIVED_LISTS_MATCH = auto()
    """``matchAttribute`` accepts one device whose derived attribute is an empty list."""
    CAPACITY_NAMES_NORMALIZED = auto()
    """``<driver>/<name>`` and ``<name>`` are one capacity; before, names had to be spelled as published."""
    UNUSABLE_VALUES_FAIL_WHERE_READ = auto()
    """An attribute without meaning to CEL fails an expression where it is read; before, it failed every expression."""
    EMPTY_LISTS_ARE_UNUSABLE = auto()
    """An attribute that is an empty list has no meaning to CEL."""
    FULL_NAMES_WIN = auto()
    """An attribute or capacity that a device has with and without its driver's domain is the one with the domain."""
    TYPES_HAVE_A_SIZE = auto()
    """CEL estimates the size of the value of ``type(x)``; before, nothing bounded the cost of comparing it."""
    PARTS_OF_URLS_HAVE_A_SIZE = auto()
    """CEL estimates the size of ``url(x).getHost()`` and the like by that of the URL; before, nothing bounded it."""
    NEGATIVE_DEPTHS_ARE_UNBOUNDED = auto()
    """CEL estimates ``flatten`` with a negative depth as unbounded; before, as free."""
    EMPTY_TEXT_HAS_NO_ITEMS = auto()
    """``exists_one`` of an empty string is false; before, it was an error."""
    INCLUDES_IS_IN_THE_BASE = auto()
    """``includes`` exists without the gate, and in policies, in stored expressions; in new ones a release later."""
    MASKS_OF_NETWORKS = auto()
    """``isMask()`` of a CIDR exists in stored expressions; in new ones since the release after that."""
    NEGATIVE_AMOUNTS_FAIL = auto()
    """A negative amount in a request fails the attempt even where the request policy would round it up."""
    SHARES_BLOCK_WHOLE_DEVICES = auto()
    """A device that is no longer shareable is not allocated as a whole while a share of it is in use."""
    UNFINISHED_POOLS_FAIL_NODES = auto()
    """Allocation mode All with an incomplete or invalid pool fails the node; before, it failed the pod."""
    SLICES_ARE_SELECTED_BY_POOL = auto()
    """ResourceSlices can be selected by ``spec.pool.name``; before, that was a 400."""
    ALLOCATORS_PROMOTED = auto()
    """The stable allocator has the features of the incubating one, and that those of the experimental one."""
    BINDING_NEEDS_STATUS = auto()
    """DRAResourceClaimDeviceStatus does not choose an allocator without DRADeviceBindingConditions."""
    INCOMPLETE_POOLS_SKIPPED = auto()
    """No device of an incomplete pool is allocated; before, this was so in allocation mode All only."""
    INVALID_POOLS_FAIL_NODES = auto()
    """A pod that fits nowhere while a pool is invalid fails on this node; before, its whole attempt failed."""
    TOLERATIONS_IN_RESULTS = auto()
    """The result for a device has the tolerations of its request."""
    ALL_COUNTS_FULL = auto()
    """A device that is too small only because of other shares makes mode All fail; before, it was left out."""
    DISTINCT_VALUES_COMPARED = auto()
    """``distinctAttribute`` compares values; before, it only found a device not distinct from itself."""
    DISTINCT_FROM_ALL = auto()
    """``distinctAttribute`` compares with all devices; before, with the latest device of each request."""
    TAINT_RULES_HAVE_A_GATE = auto()
    """DeviceTaintRules need the gate DRADeviceTaintRules; before, they needed DRADeviceTaints only."""
    COUNTERS_ARE_GIVEN_BACK = auto()
    """Counters of a device or share that is rejected after all are free again; before, they stayed in use for a try."""
    POOLS_HAVE_OWN_COUNTERS = auto()
    """Pools of one name, of several drivers, have counters for themselves; before, those of the first that is used."""
    SHARES_USE_COUNTERS = auto()
    """The counters of a device are in use while a share of it is; before, only while it was used as a whole."""
    SHARES_USE_COUNTERS_ONCE = auto()
    """All shares of a device use its counters once; before, each share used them."""
    OWN_CAPACITY_IS_CHECKED = auto()
    """A device needs capacity of its own; before, also the one at its number in the request, in the same slice."""
    ALTERNATIVES_HAVE_OWN_DEVICES = auto()
    """Mode All in an alternative takes its devices; before, one device, the others as the first alternative does."""
    RESOURCES_OF_CLASSES_GET_DEVICES = auto()
    """Extended resources with names of DeviceClasses get devices; before, pods got a node and no device for them."""
    CONFIGS_FOR_ALL_NAME_NONE = auto()
    """A config that applies to all requests names none of them; before, there was one for each request it named."""
    AMOUNTS_CHECKED = auto()
    """An amount that is negative, or not exact in the arithmetic of the request policy, fails the attempt."""
    AMOUNTS_WRITTEN_LIKE_STEPS = auto()
    """An amount that is rounded up is written with the suffix of the step; before, as a plain number of ``Ki``."""
    INCLUDES_EXISTS = auto()
    """CEL has the function ``includes``."""
    LISTS_HAVE_FUNCTIONS = auto()
    """CEL has ``lists.range`` and the functions ``distinct``, ``flatten`` and the like of lists."""
    CLAIMS_LOSE_ALL_DISABLED_FIELDS = auto()
    """Claims lose ``distinctAttribute`` and ``tolerations`` without their gates, too."""
    ALLOCATION_TIMES_STAY = auto()
    """``allocationTimestamp`` is kept without DRADeviceBindingConditions; 1.38 has no such API server any more."""
    NONE_IS_AN_EFFECT = auto()
    """Taints and tolerations may have the effect None."""
    SLICES_HAVE_DEVICES_OR_COUNTERS = auto()
    """A slice has devices or counter sets; before, devices consumed the counters of their own slice only."""
    QUANTITIES_STOP_AT_INT64 = auto()
    """Quantities have 29 digits and stop at the limits of int64; before, they wrapped around."""
    NAMES_HAVE_ONE_SLASH = auto()
    """Names of attributes and capacities have at most one slash; before, names with two were not checked."""
    REQUESTED_CAPACITIES_ARE_CHECKED = auto()
    """Capacities in requests and results have valid names, amounts from 0 on, and at most 32 entries."""
    VERSIONS_HAVE_18_DIGITS = auto()
    """A number in a version attribute has at most 18 digits."""
    DEVICES_HAVE_ONE_SELECTOR_TERM = auto()
    """The node selector of a device has exactly one term, as that of a slice."""
    CAPACITY_KEYS_ARE_NAMES = auto()
    """A ``capacityKey`` that is not a name is reported as such; before, as not found."""
    DEVICE_LISTS_ARE_ONE_UNIT = auto()
    """An update checks all devices of a slice or, unchanged, none; before, parts of each device."""
    MULTIPLIERS_ARE_DECLARED = auto()
    """The rule that ``capacityKey`` and ``capacityMultiplier`` go with each other is declarative."""
    CONDITIONS_ARE_A_MAP = auto()
    """The rule that conditions have different types is declarative, and shows the whole condition."""
    OWNERS_ARE_DECLARED = auto()
    """The rule about required fields of owners is declarative, and has no text."""
    RESULTS_HAVE_VALID_TOLERATIONS = auto()
    """The tolerations of a result are checked like those of requests; before, they were not."""
    FULL_NAMES_HAVE_LOWER_CASE = auto()
    """The domain of an attribute in a constraint has lower case; before, it could have upper case."""
    DISTINCT_NEXT_TO_MATCH_IS_CHECKED = auto()
    """``distinctAttribute`` next to ``matchAttribute`` is a valid name; before, it was not looked at."""
    COUNTERS_ARE_LIMITED_BY_SET = auto()
    """Counters are limited by set, and devices with counters or taints to 64 of a slice; before, counters in total."""
    STEPS_ARE_POSITIVE = auto()
    """Steps of request policies are positive, and their ranges in int64; before, only a step of zero was refused."""
    DEFAULTS_OUT_OF_RANGE_ARE_NAMED = auto()
    """A default outside the range of its request policy is an error of the default; before, of the bound."""
    CHANGED_EFFECTS_BEGIN_NOW = auto()
    """A changed effect in a DeviceTaintRule begins with its update, unless that has another time."""
    RULES_ARE_DECLARED = auto()
    """Errors of declarative rules come last, and have the paths of the request's version; before, no rule was one."""
    DUPLICATES_ARE_WHOLE_ITEMS = auto()
    """An item that repeats is reported as a whole; before, its field that repeats was."""
    KEYS_ARE_ERRORS_OF_THEIR_MAP = auto()
    """A wrong key of a map is an error of the map; before, of its entry."""
    OWNERS_ARE_NUMBERED = auto()
    """Errors of owners have the number of the owner, and missing fields are required; before, they were invalid."""
    EMPTY_STATUSES_ARE_MISSING = auto()
    """A condition without status lacks a required value; before, it had an unsupported one."""
    LONG_LISTS_ARE_NOT_READ = auto()
    """The items of a list that is too long are not checked; before, they were."""
    UPDATED_CLAIMS_ARE_NOT_READ = auto()
    """The spec of an updated claim is only compared with the former one; before, it was also checked like a new one."""
    BINDINGS_NAME_NODES = auto()
    """The target of a Binding has the name of a node; before, it could be any text."""
    PROVIDERS_ARE_INVALID_WHEN_CHANGED = auto()
    """A changed ``providerID`` of a node is invalid; before, it was forbidden."""
    CLAIM_NAMES_ARE_THEIR_OWN_ERRORS = auto()
    """A wrong ``resourceClaimName`` in the status of a pod is an error of this field; before, of ``name``."""
    HEALTH_IN_USE_STAYS = auto()
    """Without ResourceHealthStatus, a pod whose status has the health of devices keeps it; before, it lost it."""
    DRIVERS_IN_UPPER_CASE_WARN = auto()
    """The API server warns about drivers whose names have upper case."""
    PRIORITIES_OF_GROUPS_ARE_UNLIMITED = auto()
    """The priority of a PodGroup may be above 1,000,000,000."""
    EMPTY_SELECTORS_WARN = auto()
    """The API server warns about a DeviceTaintRule that selects every device."""
    REGISTRATIONS_ARE_CHECKED = auto()
    """The kubelet refuses plugins with an invalid driver name, or an endpoint that is not a plain, absolute path."""
    TOLERATIONS_WITHOUT_EFFECT_PROTECT = auto()
    """A toleration without effect protects from eviction, too; before, it only let the pod be scheduled."""
    EXTENDED_RESOURCES_ARE_EVICTED = auto()
    """Pods are also evicted from devices that they use through extended resources."""
    DELETED_PODS_ARE_NOT_COUNTED = auto()
    """A rule does not count pods as evicted that another client deleted."""
    NEGATIVE_SHARES_STOP_THE_SCHEDULER = auto()
    """No claim is allocated while another one consumes a negative amount."""
    REMOVALS_TAKEN_BACK = auto()
    """resource.k8s.io/v1alpha3 stays; before, its removal was announced."""
    PATCHES_ARE_READ_FIRST = auto()
    """A patch that is not JSON is refused as such; before, it was read when the object was found."""
    STATUS_WRITERS_OWN_NO_METADATA = auto()
    """Who writes the status of a claim owns none of the metadata sent with it; before, although it was ignored."""
    NOMINATIONS_END_WITH_BINDING = auto()
    """A pod that gets its node loses ``nominatedNodeName`` (gate ClearingNominatedNodeNameAfterBinding)."""
    BINDINGS_BRING_LABELS = auto()
    """A pod takes over the labels of its Binding, besides the annotations (gate PodTopologyLabelsAdmission)."""
    UNREADABLE_OPTIONS_ARE_BAD = auto()
    """The body of a deletion that is not DeleteOptions is a 400; before, an internal error."""
    UNKNOWN_PATHS_GET_A_STATUS = auto()
    """The API server answers a path that it does not serve with a Status; before, with text."""
    WRONG_VERSIONS_ARE_INVALID = auto()
    """The API server refuses to get an object at a ``resourceVersion`` that is not a number with 422, not 500."""
    STATUSES_HAVE_VERSIONS = auto()
    """A Status that confirms a deletion, an eviction or a binding has the resource version of that change."""
    LAST_UPDATES_HAVE_VERSIONS_OF_DELETIONS = auto()
    """The update that removes an object answers with the resource version of the deletion; before, with the former."""
    ALL_CHANGEABLE_FIELDS_ARE_NAMED = auto()
    """The error of a wrong update of a pod also names the fields that may change while it has scheduling gates."""
    HEALTH_HAS_V1 = auto()
    """The kubelet calls v1 of the health service; before, v1alpha1 only."""
    IMMUTABLE_METADATA_IS_NOT_SHOWN = auto()
    """An error about immutable metadata has the value null; before, the refused one."""
    OWNERS_OF_CLAIMS_DO_NOT_BLOCK = auto()
    """A claim that was created for a pod does not block the pod's deletion in the foreground."""
    FINISHED_PODS_GET_NO_CLAIMS = auto()
    """No claims are created from templates for a pod that has finished."""
    POST_FILTER_IS_SILENT = auto()
    """The scheduler does not mention claims that it cannot deallocate for a pod that fits nowhere."""
    RUNTIME_ERRORS_NAME_DEVICES = auto()
    """The scheduler's message about an expression that fails names the device, and hints at optional fields."""
    QUOTAS_COUNT_EXTENDED_RESOURCES = auto()
    """ResourceQuotas of extended resources count claims for devices that stand for them."""


_CHANGED: Final = {
    Change.ALLOCATORS_ALIKE: 38,
    Change.VERSIONS_COMPARE_WITHOUT_BUILD: 38,
    Change.UNUSABLE_VALUES_FAIL: 38,
    Change.EMPTY_DERIVED_LISTS_MATCH: 38,
    Change.CAPACITY_NAMES_NORMALIZED: 38,
    Change.UNUSABLE_VALUES_FAIL_WHERE_READ: 38,
    Change.EMPTY_LISTS_ARE_UNUSABLE: 38,
    Change.FULL_NAMES_WIN: 38,
    Change.TYPES_HAVE_A_SIZE: 38,
    Change.PARTS_OF_URLS_HAVE_A_SIZE: 38,
    Change.NEGATIVE_DEPTHS_ARE_UNBOUNDED: 38,
    Change.EMPTY_TEXT_HAS_NO_ITEMS: 38,
    Change.INCLUDES_IS_IN_THE_BASE: 37,
    Change.MASKS_OF_NETWORKS: 38,
    Change.NEGATIVE_AMOUNTS_FAIL: 38,
    Change.SHARES_BLOCK_WHOLE_DEVICES: 38,
    Change.UNFINISHED_POOLS_FAIL_NODES: 38,
    Change.SLICES_ARE_SELECTED_BY_POOL: 37,
    Change.ALLOCATORS_PROMOTED: 36,
    Change.BINDING_NEEDS_STATUS: 35,
    Change.INCOMPLETE_POOLS_SKIPPED: 35,
    Change.INVALID_POOLS_FAIL_NODES: 35,
    Change.TOLERATIONS_IN_RESULTS: 35,
    Change.ALL_COUNTS_FULL: 37,
    Change.DISTINCT_VALUES_COMPARED: 35,
    Change.DISTINCT_FROM_ALL: 37,
    Change.TAINT_RULES_HAVE_A_GATE: 35,
    Change.COUNTERS_ARE_GIVEN_BACK: 37,
    Change.POOLS_HAVE_OWN_COUNTERS: 37,
    Change.SHARES_USE_COUNTERS: 36,
    Change.SHARES_USE_COUNTERS_ONCE: 35,
    Change.OWN_CAPACITY_IS_CHECKED: 35,
    Change.ALTERNATIVES_HAVE_OWN_DEVICES: 36,
    Change.RESOURCES_OF_CLASSES_GET_DEVICES: 35,
    Change.CONFIGS_FOR_ALL_NAME_NONE: 37,
    Change.AMOUNTS_CHECKED: 37,
    Change.AMOUNTS_WRITTEN_LIKE_STEPS: 37,
    Change.INCLUDES_EXISTS: 36,
    Change.LISTS_HAVE_FUNCTIONS: 34,
    Change.CLAIMS_LOSE_ALL_DISABLED_FIELDS: 35,
    Change.ALLOCATION_TIMES_STAY: 35,
    Change.NONE_IS_AN_EFFECT: 35,
    Change.SLICES_HAVE_DEVICES_OR_COUNTERS: 35,
    Change.QUANTITIES_STOP_AT_INT64: 38,
    Change.NAMES_HAVE_ONE_SLASH: 38,
    Change.REQUESTED_CAPACITIES_ARE_CHECKED: 38,
    Change.VERSIONS_HAVE_18_DIGITS: 38,
    Change.DEVICES_HAVE_ONE_SELECTOR_TERM: 38,
    Change.CAPACITY_KEYS_ARE_NAMES: 38,
    Change.DEVICE_LISTS_ARE_ONE_UNIT: 38,
    Change.MULTIPLIERS_ARE_DECLARED: 38,
    Change.CONDITIONS_ARE_A_MAP: 38,
    Change.OWNERS_ARE_DECLARED: 38,
    Change.RESULTS_HAVE_VALID_TOLERATIONS: 37,
    Change.FULL_NAMES_HAVE_LOWER_CASE: 37,
    Change.DISTINCT_NEXT_TO_MATCH_IS_CHECKED: 37,
    Change.COUNTERS_ARE_LIMITED_BY_SET: 35,
    Change.STEPS_ARE_POSITIVE: 37,
    Change.DEFAULTS_OUT_OF_RANGE_ARE_NAMED: 37,
    Change.CHANGED_EFFECTS_BEGIN_NOW: 36,
    Change.RULES_ARE_DECLARED: 37,
    Change.DUPLICATES_ARE_WHOLE_ITEMS: 35,
    Change.KEYS_ARE_ERRORS_OF_THEIR_MAP: 36,
    Change.OWNERS_ARE_NUMBERED: 37,
    Change.EMPTY_STATUSES_ARE_MISSING: 37,
    Change.LONG_LISTS_ARE_NOT_READ: 35,
    Change.UPDATED_CLAIMS_ARE_NOT_READ: 35,
    Change.BINDINGS_NAME_NODES: 37,
    Change.PROVIDERS_ARE_INVALID_WHEN_CHANGED: 37,
    Change.CLAIM_NAMES_ARE_THEIR_OWN_ERRORS: 36,
    Change.HEALTH_IN_USE_STAYS: 36,
    Change.DRIVERS_IN_UPPER_CASE_WARN: 35,
    Change.PRIORITIES_OF_GROUPS_ARE_UNLIMITED: 38,
    Change.EMPTY_SELECTORS_WARN: 38,
    Change.REGISTRATIONS_ARE_CHECKED: 38,
    Change.TOLERATIONS_WITHOUT_EFFECT_PROTECT: 38,
    Change.EXTENDED_RESOURCES_ARE_EVICTED: 38,
    Change.DELETED_PODS_ARE_NOT_COUNTED: 38,
    Change.NEGATIVE_SHARES_STOP_THE_SCHEDULER: 38,
    Change.REMOVALS_TAKEN_BACK: 38,
    Change.PATCHES_ARE_READ_FIRST: 37,
    Change.STATUS_WRITERS_OWN_NO_METADATA: 35,
    Change.NOMINATIONS_END_WITH_BINDING: 35,
    Change.BINDINGS_BRING_LABELS: 35,
    Change.UNREADABLE_OPTIONS_ARE_BAD: 35,
    Change.UNKNOWN_PATHS_GET_A_STATUS: 38,
    Change.WRONG_VERSIONS_ARE_INVALID: 38,
    Change.STATUSES_HAVE_VERSIONS: 38,
    Change.LAST_UPDATES_HAVE_VERSIONS_OF_DELETIONS: 38,
    Change.ALL_CHANGEABLE_FIELDS_ARE_NAMED: 38,
    Change.HEALTH_HAS_V1: 37,
    Change.IMMUTABLE_METADATA_IS_NOT_SHOWN: 38,
    Change.OWNERS_OF_CLAIMS_DO_NOT_BLOCK: 35,
    Change.FINISHED_PODS_GET_NO_CLAIMS: 38,
    Change.POST_FILTER_IS_SILENT: 37,
    Change.RUNTIME_ERRORS_NAME_DEVICES: 37,
    Change.QUOTAS_COUNT_EXTENDED_RESOURCES: 35,
}
"""The first minor release with each change."""


class GateHistory(NamedTuple):
    """What became of a feature gate, by minor releases.

    Attributes:
        known: the first release that has it.
        on: the first release in which it is on by default; None for none yet.
        locked: the first release in which it cannot be switched off; None for none yet.
        removed: the first release in which it cannot be named any more; None for none yet.
        needs: gates that must be on with it.
    """

    known: int
    on: int | None = None
    locked: int | None = None
    removed: int | None = None
    needs: tuple[str, ...] = ()

    def need(self, name: str) -> str:
        """Return since when a release has what this gate switches: ``1.34 with NAME; on by default since 1.36``."""
        since = "off by default" if self.on is None else f"on by default since 1.{self.on}"
        return f"1.{self.known} with {name}; {since}"


GATES: Final = {
    "DRAAdminAccess": GateHistory(32, on=34, locked=36),
    "DRAConsumableCapacity": GateHistory(34, on=36, locked=39),
    "DRADerivedAttributes": GateHistory(37),
    "DRADeviceBindingConditions": GateHistory(34, on=36, locked=38, needs=("DRAResourceClaimDeviceStatus",)),
    "DRADeviceCompatibilityGroups": GateHistory(37, needs=("DRAPartitionableDevices",)),
    "DRADeviceTaintRules": GateHistory(35, on=37, locked=38, needs=("DRADeviceTaints",)),
    "DRADeviceTaints": GateHistory(33, on=36, locked=38),
    "DRAExtendedResource": GateHistory(34, on=36, locked=37),
    "DRAFractionalCapacityRange": GateHistory(37, on=38, locked=39, needs=("DRAConsumableCapacity",)),
    "DRAListTypeAttributes": GateHistory(36),
    "DRANodeAllocatableResources": GateHistory(36),
    "DRAOptionalNodeOperations": GateHistory(37, needs=("NodeDeclaredFeatures",)),
    "DRAPartitionableDevices": GateHistory(33, on=36, locked=38),
    "DRAPartitionableDevicesType": GateHistory(37, needs=("DRAPartitionableDevices", "DRAResourcePoolStatus")),
    "DRAPrioritizedList": GateHistory(33, on=34, locked=37),
    "DRAResourceClaimDeviceStatus": GateHistory(32, on=33, locked=37),
    "DRAResourceClaimGranularStatusAuthorization": GateHistory(36, on=36, needs=("DRAResourceClaimDeviceStatus",)),
    "DRAResourcePoolStatus": GateHistory(36),
    "DRAWorkloadResourceClaims": GateHistory(36, needs=("GenericWorkload",)),
    "DynamicResourceAllocation": GateHistory(26, on=34, locked=35, removed=38),
    "GenericWorkload": GateHistory(35),
    "NodeDeclaredFeatures": GateHistory(35, on=36, locked=37),
    "ResourceHealthStatus": GateHistory(31, on=36),
    "ShardedListAndWatch": GateHistory(36, on=38),
}
"""The gates that have an effect here."""
INERT_GATES: Final = {
    "DeclarativeValidationBeta": "validation has only one implementation here",
    "DRASchedulerFilterTimeout": "the search for devices has no time limit here",
    "KubeletPodResourcesDynamicResources": "the kubelet here does not serve pod resources",
    "PodsAPI": "the kubelet here does not serve pods",
    "ResourceHealthStatusMessage": "the health of a device is always reported with its message here",
    "SchedulerPreQueueingHints": "it only makes a scheduler faster",
}
"""Gates for DRA in Kubernetes that have no effect here, with the reason."""
_NOT_ALPHA: Final = "DRAFractionalCapacityRange"
"""Beta from its first release on, and off for the sake of the release before."""
_DECLARED: Final = ("DRANodeAllocatableResources", "DRAOptionalNodeOperations")
_SWITCH: Final = {"true": True, "false": False}


class Release(Struct, frozen=True):
    """A release of Kubernetes with its feature gates: ``"DRADeviceTaints" in release``.

    Attributes:
        version: its version.
        enabled: the names of the feature gates that are on.
    """

    version: KubernetesVersion
    enabled: frozenset[str]

    @classmethod
    def of(cls, version: KubernetesVersion = DEFAULT) -> Self:
        """Return an unmodified release; of one that is newer than :data:`NEWEST` what is known of it."""
        on = {name for name, gate in GATES.items() if gate.on is not None and version.minor >= gate.on}
        return cls(version, frozenset(on))

    @classmethod
    def parse(cls, version: str) -> Self:
        """Return an unmodified release by its version as text.

        Raises:
            ValueError: see :meth:`KubernetesVersion.parse`.
        """
        return cls.of(KubernetesVersion.parse(version))

    @classmethod
    def named(cls, text: str, *, alpha: bool = False) -> Self:
        """Return the release that a user names, unmodified or with its alpha features.

        Raises:
            ValueError: see :meth:`KubernetesVersion.supported`.
        """
        version = KubernetesVersion.supported(text)
        return cls.alpha(version) if alpha else cls.of(version)

    @classmethod
    def alpha(cls, version: KubernetesVersion = DEFAULT) -> Self:
        """Return a release with the default gates and those of alpha features and of PodGroups, which are off."""
        release = cls.of(version)
        off = {name for name, gate in GATES.items() if version.minor >= gate.known and name != _NOT_ALPHA}
        return cls(version, release.enabled | off)

    @classmethod
    def settings(cls, version: KubernetesVersion) -> tuple[Self, Self, Self]:
        """Return a release with its default gates, with as few as it can run with, and with all of them."""
        known = {name: gate for name, gate in GATES.items() if gate.known <= version.minor}
        locked = (name for name, gate in known.items() if gate.locked is not None and gate.locked <= version.minor)
        return cls.of(version), cls(version, frozenset(locked)), cls(version, frozenset(known))

    def also(self, *names: str) -> Release:
        """Return this release with further gates switched on."""
        return Release(self.version, self.enabled | set(names))

    def without(self, *names: str) -> Release:
        """Return this release with some gates switched off."""
        return Release(self.version, self.enabled - set(names))

    def switched(self, flags: str) -> Release:
        """Return this release with changes in the form of ``--feature-gates``: ``Name=true,Name=false``.

        Raises:
            ValueError: a gate is unknown to the release, not implemented here, locked or depends on another gate that
                is off, or the text is malformed.
        """
        enabled = set(self.enabled)
        for flag in filter(None, (part.strip() for part in flags.split(","))):
            name, _, value = flag.partition("=")
            gate = self._gate(name)
            if value.lower() not in _SWITCH:
                raise ValueError(f"{flag!r} is not a feature gate with a value; write {name}=true or {name}=false")
            if not _SWITCH[value.lower()] and gate.locked is not None and self.version.minor >= gate.locked:
                raise ValueError(f"{name} cannot be switched off: it is generally available in {self.version}")
            (enabled.add if _SWITCH[value.lower()] else enabled.discard)(name)
        for name in sorted(enabled):
            for needed in GATES[name].needs:
                if needed not in enabled:
                    remedy = f"{name}=false" if needed in self.enabled else f"{needed}=true"
                    raise ValueError(f"{name} is on but needs {needed}, which is off; add {remedy}")
        return Release(self.version, frozenset(enabled))

    @property
    def declared_by_nodes(self) -> tuple[str, ...]:
        """The gates that kubelets declare in ``status.declaredFeatures``."""
        return tuple(name for name in _DECLARED if name in self.enabled)

    def has(self, change: Change) -> bool:
        """Return whether a rule has changed in this release or before."""
        return self.version.has(change)

    def __contains__(self, name: str) -> bool:
        return name in self.enabled

    def _gate(self, name: str) -> GateHistory:
        """Return the history of a gate that a user names.

        Raises:
            ValueError: the release does not have it, or it has no effect here.
        """
        if name in INERT_GATES:
            raise ValueError(
                f"{name} is a feature gate of Kubernetes without effect here ({INERT_GATES[name]}); remove it; "
                f"known gates are {', '.join(self._known())}"
            )
        gate = GATES.get(name)
        if gate is None:
            raise ValueError(
                f"{name} is not a feature gate of resource.k8s.io; known gates are {', '.join(self._known())}"
            )
        if self.version.minor < gate.known:
            raise ValueError(f"{name} is not a feature gate of Kubernetes {self.version}: it came with 1.{gate.known}")
        if gate.removed is not None and self.version.minor >= gate.removed:
            raise ValueError(
                f"{name} is not a feature gate of Kubernetes {self.version}: it was removed in 1.{gate.removed}, "
                "and what it switched is always on; remove it"
            )
        return gate

    def _known(self) -> list[str]:
        minor = self.version.minor
        return sorted(
            name for name, gate in GATES.items()
            if gate.known <= minor and (gate.removed is None or minor < gate.removed)
        )  # fmt: skip


UNMODIFIED: Final = Release.of(DEFAULT)
"""The release :data:`DEFAULT`, with its default gates."""
