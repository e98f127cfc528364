"""The catalogue of checks: what a kubelet, an API server and a cluster may expect of a DRA driver.

Sources: the DRA service and its helper in Kubernetes 1.37 (``k8s.io/kubelet`` and
``k8s.io/dynamic-resource-allocation`` v0.37.1), and the behaviours of KEP-5970.
"""

from __future__ import annotations

import enum
from typing import Final

from msgspec import Struct

PAGE: Final = "docs/reference/conformance.md"
"""The page with a section on each check."""


class CheckLevel(enum.StrEnum):
    """How much a check weighs: only a failed ``MUST`` changes the verdict."""

    MUST = "must"
    SHOULD = "should"
    OPTIONAL = "optional"


class Behaviour(enum.StrEnum):
    """The behaviours of KEP-5970, by its names."""

    REGISTRATION = "registration"
    SLICES = "slice publishing"
    ALLOCATION = "allocation"
    PREPARE = "prepare"
    ENVIRONMENT = "pod runs with driver-injected env"
    UNPREPARE = "unprepare"
    REUSE = "device reuse"


class ConformanceCheck(Struct, frozen=True):
    """One check.

    Attributes:
        id: letter of the group, and number; it never changes its meaning.
        title: what a conforming driver does, in one line.
        level: how much it weighs.
        feature: the optional feature that it is about; empty for a check of every driver.
        behaviour: the behaviour of KEP-5970 that it belongs to; None for none.
        evidence: what a failure shows.
    """

    id: str
    title: str
    level: CheckLevel
    evidence: str
    feature: str = ""
    behaviour: Behaviour | None = None

    @property
    def group(self) -> str:
        """The letter of its group."""
        return self.id[0]

    @property
    def link(self) -> str:
        """Where the check is explained."""
        return f"{PAGE}#{self.id.lower()}"


GROUPS: Final = {
    "R": "registration",
    "P": "prepare",
    "U": "unprepare",
    "S": "slices",
    "H": "health",
    "M": "metadata",
    "A": "API",
    "L": "life-cycle",
    "C": "cluster",
}
"""Names of the groups, in the order in which they are checked."""
CLUSTER_GROUP: Final = "C"
"""The group that is checked in a real cluster; the others are checked by a simulated kubelet and API server."""
_MUST, _SHOULD, _OPTIONAL = CheckLevel.MUST, CheckLevel.SHOULD, CheckLevel.OPTIONAL
_REGISTRATION, _SLICES, _PREPARE, _UNPREPARE = (
    Behaviour.REGISTRATION, Behaviour.SLICES, Behaviour.PREPARE, Behaviour.UNPREPARE,
)  # fmt: skip

_CHECKS: Final = (
    # --- registration
    ConformanceCheck(
        "R1", "GetInfo returns type, name, endpoint and versions that the kubelet accepts", _MUST,
        "the answer of GetInfo", behaviour=_REGISTRATION,
    ),
    ConformanceCheck("R2", "versions of a service are advertised newest first", _SHOULD, "supported_versions"),
    ConformanceCheck(
        "R3", "GetInfo answers within one second while the API server is down", _MUST, "the time or the error",
        behaviour=_REGISTRATION,
    ),
    ConformanceCheck(
        "R4", "GetInfo and NotifyRegistrationStatus can be called repeatedly", _MUST, "the answers in order",
        behaviour=_REGISTRATION,
    ),
    ConformanceCheck(
        "R5", "a registration that the kubelet rejects is visible: in the log, as an error, or by an exit", _SHOULD,
        "what was sent, and the end of the log",
    ),
    ConformanceCheck(
        "R6", "sockets that a killed process left behind do not prevent a new registration", _MUST,
        "the sockets and what answers at them", behaviour=_REGISTRATION,
    ),
    ConformanceCheck("R7", "SIGTERM removes the sockets", _SHOULD, "the sockets that are left"),
    ConformanceCheck(
        "R8", "paths of sockets have at most 107 bytes below /var/lib/kubelet, with the UID of a pod too", _MUST,
        "the paths and their lengths",
    ),
    ConformanceCheck(
        "R9", "the service socket accepts connections before the registration socket does", _MUST,
        "the order of events", behaviour=_REGISTRATION,
    ),
    ConformanceCheck(
        "R10", "a plugin without an endpoint serves DRA at its registration socket", _OPTIONAL,
        "the call and its error", feature="one shared socket",
    ),
    # --- prepare
    ConformanceCheck(
        "P1", "every advertised version of the DRA service prepares the same claim with the same result", _MUST,
        "the answers by version", behaviour=_PREPARE,
    ),
    ConformanceCheck(
        "P2", "the answer has exactly one entry for each claim of the call", _MUST, "UIDs sent and answered",
        behaviour=_PREPARE,
    ),
    ConformanceCheck(
        "P3", "a repeated call returns the identical result, in any order of claims", _MUST, "both answers",
        behaviour=_PREPARE,
    ),
    ConformanceCheck("P4", "a restarted driver returns the identical result", _MUST, "both answers"),
    ConformanceCheck(
        "P5", "a repeated call writes CDI files again that were deleted", _MUST, "the CDI ids that do not resolve"
    ),
    ConformanceCheck(
        "P6", "a claim that cannot be prepared gets an error and does not fail the other claims of the call", _SHOULD,
        "the answer, or the error of the call",
    ),
    ConformanceCheck(
        "P7", "claims that are unknown, not allocated, or have another UID are not prepared", _MUST,
        "the devices that were returned", behaviour=_PREPARE,
    ),
    ConformanceCheck(
        "P8", "request_names are names of requests, without the name of a subrequest", _MUST, "request_names"
    ),
    ConformanceCheck(
        "P9", "results of other drivers in the same claim are ignored", _MUST, "the devices that were returned"
    ),
    ConformanceCheck(
        "P10", "a device that is prepared for one claim is refused to another one", _SHOULD,
        "both claims and their answers",
    ),
    ConformanceCheck(
        "P11", "a call that missed its deadline can be repeated", _MUST, "the answers of the second call",
        behaviour=_PREPARE,
    ),
    ConformanceCheck(
        "P12", "admin access neither needs nor takes the exclusive use of a device", _OPTIONAL,
        "the calls and their answers", feature="admin access",
    ),
    ConformanceCheck(
        "P13", "shares of one device have their own share_id and CDI ids", _OPTIONAL, "the devices of both claims",
        feature="devices that allow multiple allocations",
    ),
    ConformanceCheck(
        "P14", "configuration of a claim beats that of its class, and applies only to the requests that it names",
        _MUST, "the configurations, and what the container gets", feature="opaque configuration",
    ),
    ConformanceCheck(
        "P15", "two processes of a rolling update do not prepare one device for two claims", _OPTIONAL,
        "the answers of both processes", feature="rolling updates",
    ),
    ConformanceCheck(
        "P16", "every CDI id of the answer resolves to a device of a valid CDI file", _MUST,
        "the ids and the errors of the files", behaviour=Behaviour.ENVIRONMENT,
    ),
    ConformanceCheck(
        "P17", "a container gets the variables, mounts and device nodes that the profile expects", _MUST,
        "what is missing", feature="a profile with expectations", behaviour=Behaviour.ENVIRONMENT,
    ),
    ConformanceCheck(
        "P18", "the answer names pool, device and request of each result of the allocation", _MUST,
        "results of the allocation, and devices of the answer", behaviour=_PREPARE,
    ),
    ConformanceCheck(
        "P19", "a driver that is killed during a call prepares the claim after its restart", _MUST,
        "the answer after the restart",
    ),
    # --- unprepare
    ConformanceCheck(
        "U1", "a claim is unprepared after its object was deleted", _MUST, "the answer, and the CDI devices left",
        behaviour=_UNPREPARE,
    ),
    ConformanceCheck(
        "U2", "unprepare of a claim that the driver does not know succeeds", _MUST, "the answer", behaviour=_UNPREPARE
    ),
    ConformanceCheck("U3", "unprepare can be repeated", _MUST, "both answers", behaviour=_UNPREPARE),
    ConformanceCheck(
        "U4", "a restarted driver unprepares what its predecessor prepared", _MUST,
        "the answer, and the CDI devices left",
    ),
    ConformanceCheck(
        "U5", "a prepare that is still running when its claim is unprepared does not bring it back", _MUST,
        "the CDI devices that appeared",
    ),
    ConformanceCheck(
        "U6", "unprepare removes what an interrupted prepare left, temporary files too", _SHOULD, "the files left"
    ),
    ConformanceCheck(
        "U7", "claims that were deleted without unprepare are released in time", _OPTIONAL, "the CDI devices left",
        feature="reconciliation of orphaned claims",
    ),
    ConformanceCheck(
        "U8", "a device can be prepared for another claim after it was unprepared", _MUST, "the answers in order",
        behaviour=Behaviour.REUSE,
    ),
    # --- slices
    ConformanceCheck(
        "S1", "slices of a node name it, and are owned by its Node object", _MUST, "the slice", behaviour=_SLICES
    ),
    ConformanceCheck("S2", "slices are not written while nothing changes", _MUST, "the writes", behaviour=_SLICES),
    ConformanceCheck("S3", "a restart without changes writes no slices", _SHOULD, "the writes"),
    ConformanceCheck(
        "S4", "slices that others delete or edit are restored", _MUST, "the slices before and after",
        behaviour=_SLICES,
    ),
    ConformanceCheck("S5", "a slice that is deleted right after an update is restored", _SHOULD, "the slices"),
    ConformanceCheck(
        "S6", "slices of a pool have one generation, and as many exist as the pool announces", _MUST,
        "generations and counts", behaviour=_SLICES,
    ),
    ConformanceCheck(
        "S7", "a slice has at most 128 devices, or 64 with taints, counters or list attributes", _MUST,
        "the slices and their numbers of devices",
    ),
    ConformanceCheck(
        "S8", "a slice has at most 8 counter sets, and none beside devices", _OPTIONAL, "the slices",
        feature="partitionable devices",
    ),
    ConformanceCheck(
        "S9", "fields that the API server drops are reported, and not written again and again", _SHOULD,
        "the writes, and the end of the log",
    ),
    ConformanceCheck(
        "S10", "a pool that the API server rejects is reported, and does not hide the other pools", _SHOULD,
        "the slices, and the end of the log",
    ),
    ConformanceCheck(
        "S11", "timeAdded of a taint stays when slices are written again", _OPTIONAL, "the taints",
        feature="device taints",
    ),
    ConformanceCheck(
        "S12", "a pool without devices is one slice, or none, and not written again and again", _SHOULD, "the slices"
    ),
    ConformanceCheck(
        "S13", "slices of other drivers and other nodes stay unchanged", _MUST, "the slices that changed"
    ),
    ConformanceCheck(
        "S14", "a driver that was uninstalled publishes nothing any more", _MUST, "slices written after its exit"
    ),
    ConformanceCheck(
        "S15", "published devices can be allocated by a device class of the driver", _MUST,
        "why no device was allocated", behaviour=Behaviour.ALLOCATION,
    ),
    # --- health
    ConformanceCheck(
        "H1", "the first report of health has all devices", _MUST, "devices missing in the report",
        feature="device health",
    ),
    ConformanceCheck(
        "H2", "health is reported again before its timeout", _MUST, "times of the reports", feature="device health"
    ),
    ConformanceCheck(
        "H3", "every advertised version of the health service reports the same", _MUST, "the reports by version",
        feature="device health",
    ),
    ConformanceCheck(
        "H4", "without a health service a call is answered with Unimplemented, and logged at most once", _SHOULD,
        "the answers, and the end of the log",
    ),
    ConformanceCheck(
        "H5", "a client that reads slowly delays neither other streams nor calls", _MUST, "the calls and their times",
        feature="device health",
    ),
    ConformanceCheck(
        "H6", "a stream that is opened again begins with a full report", _MUST, "the first report",
        feature="device health",
    ),
    # --- metadata
    ConformanceCheck(
        "M1", "metadata files are mounted at the paths of KEP-5304", _MUST, "the mounts", feature="device metadata"
    ),
    ConformanceCheck(
        "M2", "a metadata file is a stream of versions, with metadata.resource.k8s.io/v1beta1", _MUST, "the file",
        feature="device metadata",
    ),
    ConformanceCheck(
        "M3", "metadata that comes later increases the generation", _OPTIONAL, "both contents of the file",
        feature="device metadata that is updated",
    ),
    ConformanceCheck(
        "M4", "metadata files are replaced atomically", _MUST, "what a reader saw", feature="device metadata"
    ),
    ConformanceCheck(
        "M5", "unprepare removes metadata files and their CDI files", _MUST, "the files left",
        feature="device metadata",
    ),
    # --- API
    ConformanceCheck(
        "A1", "a driver uses a version of resource.k8s.io that the API server serves", _SHOULD,
        "the requests, and the end of the log",
    ),
    ConformanceCheck(
        "A2", "the rights of a node's driver end at its node", _SHOULD, "the requests that were allowed",
        feature="RBAC of the driver's manifests",
    ),
    ConformanceCheck(
        "A3", "status.devices is written for own devices only, and entries of other drivers stay", _OPTIONAL,
        "status.devices before and after", feature="device status",
    ),
    ConformanceCheck(
        "A4", "status.devices is written with the rights of Kubernetes 1.36 and newer", _OPTIONAL,
        "the request and its answer", feature="device status",
    ),
    # --- life-cycle
    ConformanceCheck(
        "L1", "SIGTERM stops the process within 30 seconds, and its slices stay", _MUST, "the time, and the slices"
    ),
    ConformanceCheck(
        "L2", "a driver that cannot serve exits or reports that it is not ready", _SHOULD, "the process and its log"
    ),
    ConformanceCheck(
        "L3", "a rolling update hands over without a gap, and slices keep their UIDs", _OPTIONAL,
        "slices, sockets and failed calls", feature="rolling updates",
    ),
    ConformanceCheck(
        "L4", "claims are prepared again after a reboot", _MUST, "the answer, and the CDI ids that do not resolve"
    ),
    # --- cluster
    ConformanceCheck(
        "C1", "the kubelet of a node has registered the driver", _MUST, "the kubelet's metrics, and its Events",
        behaviour=_REGISTRATION,
    ),
    ConformanceCheck(
        "C2", "the driver has published complete pools with devices, and does not change them without a reason", _MUST,
        "the slices", behaviour=_SLICES,
    ),
    ConformanceCheck(
        "C3", "the scheduler allocates a device of the driver to a claim", _MUST, "what the scheduler says of the pod",
        behaviour=Behaviour.ALLOCATION,
    ),
    ConformanceCheck(
        "C4", "the kubelet prepares the claim of a pod", _MUST, "Events of the pod", behaviour=_PREPARE
    ),
    ConformanceCheck(
        "C5", "the pod runs, and a container with the claim gets what the driver injects", _MUST,
        "what is missing, and Events of the pod", behaviour=Behaviour.ENVIRONMENT,
    ),
    ConformanceCheck(
        "C6", "the kubelet unprepares the claim of a deleted pod, and the pod ends", _MUST,
        "the kubelet's metrics, and Events of the pod", behaviour=_UNPREPARE,
    ),
    ConformanceCheck(
        "C7", "a pod runs with the device that another pod had before", _MUST, "what is said of the second pod",
        behaviour=Behaviour.REUSE,
    ),
)  # fmt: skip

CATALOGUE: Final = {check.id: check for check in _CHECKS}
"""All checks by id, in the order in which they run."""


def selected(only: str, *, cluster: bool = False) -> list[ConformanceCheck]:
    """Return the checks that a list of groups and ids names, such as ``P,U2``; all for an empty list.

    Args:
        only: the list.
        cluster: select among the checks of a real cluster, not among the others.

    Raises:
        ValueError: an entry is neither a group nor an id; the text lists what there is.
    """
    checks = [check for check in _CHECKS if (check.group == CLUSTER_GROUP) == cluster]
    groups = list(dict.fromkeys(check.group for check in checks))
    wanted = [word.strip().upper() for word in only.split(",") if word.strip()]
    known = {*groups, *(check.id for check in checks)}
    if unknown := [word for word in wanted if word not in known]:
        elsewhere = unknown[0] in GROUPS or unknown[0] in CATALOGUE
        problem = (
            f"{unknown[0]} is checked {'without' if cluster else 'with'} --cluster only"
            if elsewhere
            else f"{unknown[0]} is neither a group nor a check"
        )
        ranges = ", ".join(f"{group}1 to {group}{sum(check.group == group for check in checks)}" for group in groups)
        raise ValueError(f"{problem}; groups: {', '.join(groups)}; checks: {ranges}")
    return [check for check in checks if not wanted or check.id in wanted or check.group in wanted]
