"""What happens in a sandbox, as records: one class for each kind; immutable, and JSON when they are written.

Every record says when it happened and which node, driver or object it is about.
"""

from __future__ import annotations

from typing import TypeAlias

from dra_kit.sandbox.timeline.records.base import TimelineRecord
from dra_kit.sandbox.timeline.records.cluster import (
    ClusterEnding,
    ClusterStarted,
    ManifestsApplied,
    ManifestsRefused,
    ObjectChanged,
    RecordsLost,
    RunEnded,
)
from dra_kit.sandbox.timeline.records.containers import (
    ContainerEnded,
    ContainerOutput,
    ContainerReference,
    ContainerStarted,
    Exit,
    PodTerminating,
)
from dra_kit.sandbox.timeline.records.driver import (
    DriverEnded,
    DriverLogged,
    DriverNotServing,
    DriverRefused,
    DriverServing,
    DriverStarting,
)
from dra_kit.sandbox.timeline.records.kubelet import (
    PREPARE,
    UNPREPARE,
    CallEnded,
    CallOverdue,
    CallStarted,
    CdiSpecWritten,
    PluginConnected,
    PluginDisconnected,
    PreparedDevice,
    SlicesWiped,
)
from dra_kit.sandbox.timeline.records.scheduler import DeviceResult, PodExplained, PodScheduled, PodUnschedulable

__all__ = [
    "PREPARE",
    "UNPREPARE",
    "CallEnded",
    "CallOverdue",
    "CallStarted",
    "CdiSpecWritten",
    "ClusterEnding",
    "ClusterStarted",
    "ContainerEnded",
    "ContainerOutput",
    "ContainerReference",
    "ContainerStarted",
    "DeviceResult",
    "DriverEnded",
    "DriverLogged",
    "DriverNotServing",
    "DriverRefused",
    "DriverServing",
    "DriverStarting",
    "Exit",
    "ManifestsApplied",
    "ManifestsRefused",
    "ObjectChanged",
    "PluginConnected",
    "PluginDisconnected",
    "PodExplained",
    "PodScheduled",
    "PodTerminating",
    "PodUnschedulable",
    "PreparedDevice",
    "Record",
    "RecordsLost",
    "RunEnded",
    "SlicesWiped",
    "TimelineRecord",
]

Record: TypeAlias = (
    ClusterStarted
    | ClusterEnding
    | ObjectChanged
    | PodScheduled
    | PodUnschedulable
    | PodExplained
    | PluginConnected
    | PluginDisconnected
    | SlicesWiped
    | CallStarted
    | CallOverdue
    | CallEnded
    | CdiSpecWritten
    | ContainerStarted
    | ContainerOutput
    | ContainerEnded
    | PodTerminating
    | DriverStarting
    | DriverServing
    | DriverNotServing
    | DriverRefused
    | DriverEnded
    | DriverLogged
    | ManifestsApplied
    | ManifestsRefused
    | RunEnded
    | RecordsLost
)
