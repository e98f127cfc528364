"""The metrics of a process: their names, units and labels, and their text in the format of Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Struct
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from dra_kit import __version__
from dra_kit.client.api import Client
from dra_kit.process.liveness import LoopWatchdog
from dra_kit.process.measures import Durations
from dra_kit.process.supervisor import PartState, Supervisor
from dra_kit.slices.publisher import PublicationCounts

Role: TypeAlias = Literal["node", "controller", "webhook"]


class Family(Struct, frozen=True):
    """A metric.

    Attributes:
        name: its name; for a counter without ``_total``, which the text format adds.
        kind: the metric type.
        help: its description, in one sentence.
        labels: in addition to ``driver``, which all have.
        roles: the roles whose processes report it.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    roles: tuple[Role, ...] = ("node",)

    @property
    def shown_name(self) -> str:
        """The name in queries; a histogram's series have ``_bucket``, ``_sum`` and ``_count`` appended."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    def of(self, value: float | Durations, *values: str) -> Reading:
        """Return a reading of this family.

        Args:
            value: the current value.
            values: the values of its labels, in their order.
        """
        return self, values, value


Reading: TypeAlias = "tuple[Family, Sequence[str], float | Durations]"
_ALL: Final[tuple[Role, ...]] = ("node", "controller", "webhook")
_CLIENTS: Final[tuple[Role, ...]] = ("node", "controller")
"""The roles that have a client of the API server."""
DEVICE_INFO: Final = Family(
    "dra_device_info", "gauge", "A device in use, with what the hardware calls it and who has it; always 1.",
    ("pool", "device", "share", "hardware_id", "namespace", "claim", "pod", "container"),
)  # fmt: skip
BUILD_INFO: Final = Family(
    "dra_driver_build_info", "gauge", "The release of dra-kit that runs; always 1.", ("version", "role"), _ALL
)
KUBELET_CALL_SECONDS: Final = Family(
    "dra_driver_kubelet_call_duration_seconds", "histogram",
    "Time of a call of the kubelet; its result is an error when any of its claims has one.", ("method", "result"),
)  # fmt: skip
KUBELET_CLAIMS: Final = Family(
    "dra_driver_kubelet_claims", "counter",
    "Claims that the kubelet has asked to prepare or unprepare, by the code of the error.",
    ("method", "result", "code"),
)  # fmt: skip
REGISTERED: Final = Family(
    "dra_driver_registered", "gauge",
    "1 when the kubelet has registered this process, 0 when it has refused or not come, or an older process serves.",
)  # fmt: skip
PREPARED_CLAIMS: Final = Family("dra_driver_prepared_claims", "gauge", "Claims that are prepared on the node.")
DEVICES: Final = Family(
    "dra_driver_devices", "gauge",
    "Devices of the inventory: prepared or free, and their health: healthy, unhealthy, unknown or not_reported.",
    ("state", "health"),
)  # fmt: skip
PUBLICATIONS: Final = Family(
    "dra_driver_publications", "counter", "Times that the slices were compared with the inventory.", ("result",),
    _CLIENTS,
)  # fmt: skip
SLICE_WRITES: Final = Family("dra_driver_slice_writes", "counter", "ResourceSlices written.", ("verb",), _CLIENTS)
LAST_PUBLICATION: Final = Family(
    "dra_driver_last_publication_timestamp_seconds", "gauge",
    "When the slices were last found, or made, as they are wanted; 0 for never.", (),
    _CLIENTS,
)  # fmt: skip
POOL_GENERATION: Final = Family(
    "dra_driver_pool_generation", "gauge", "Generation of the published pool.", ("pool",), _CLIENTS
)
EFFECTS: Final = Family(
    "dra_driver_effects", "gauge",
    "Effects on the hardware: in_force, pending (being applied, or to be applied again), reverting, revert_failed.",
    ("effect", "state"),
)  # fmt: skip
STORE_COMMIT_SECONDS: Final = Family(
    "dra_driver_store_commit_duration_seconds", "histogram", "Time of a durable transaction of the node's state."
)
STORE_BYTES: Final = Family("dra_driver_store_size_bytes", "gauge", "Size of the node's state, its log included.")
STORE_DAMAGED: Final = Family("dra_driver_store_damaged_rows", "gauge", "Rows of the state that are damaged.")
API_REQUESTS: Final = Family(
    "dra_driver_api_requests", "counter",
    "Requests to the API server, but kopf's own, by HTTP status; code error when there was no answer.",
    ("verb", "code"), _CLIENTS,
)  # fmt: skip
LOOP_LAG_SECONDS: Final = Family(
    "dra_driver_event_loop_lag_seconds", "histogram", "How late the event loop is, asked every second.", (), _ALL
)
KOPF_RESTARTS: Final = Family(
    "dra_driver_kopf_restarts", "counter", "Times that kopf has ended and was started again.", (), _CLIENTS
)
PART_READY: Final = Family(
    "dra_driver_part_ready", "gauge", "1 for a part of the process that does what it is there for.", ("part",), _ALL
)
CLAIMS: Final = Family(
    "dra_driver_claims", "gauge", "Claims of the cluster that hold devices of the driver.", (), ("controller",)
)
REVIEW_DURATION: Final = Family(
    "dra_driver_review_duration_seconds", "histogram", "Time of an admission review.", ("result",), ("webhook",)
)
CERTIFICATE_EXPIRY: Final = Family(
    "dra_driver_webhook_certificate_expiry_timestamp_seconds", "gauge",
    "When the webhook's certificate expires: serving, and the authority of one that it made itself.",
    ("certificate",), ("webhook",),
)  # fmt: skip
LEADER: Final = Family(
    "leader_election_master_status", "gauge",
    "1 in the replica that holds the Lease of that name, 0 in those that stand by; named as Kubernetes' own.",
    ("name",), ("controller",),
)  # fmt: skip
FAMILIES: Final = tuple(value for value in list(globals().values()) if isinstance(value, Family))
"""All metric families."""
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """One registry per process. prometheus-client is loaded when an author has a metric, or on the first scrape."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._registry: CollectorRegistry | None = None
        self._readings: list[Callable[[], Iterable[Reading]]] = []
        self._labels: dict[str, str] = {}
        self._collects = False

    @property
    def registry(self) -> CollectorRegistry:
        """Where collectors are registered; always the same registry, in every thread."""
        with self._lock:
            if self._registry is None:
                self._registry = CollectorRegistry()
            return self._registry

    def read(self, readings: Callable[[], Iterable[Reading]], **labels: str) -> None:
        """Read the numbers of a part of the process on each scrape.

        Args:
            readings: returns the current numbers, in its own thread.
            labels: labels of all numbers of the process.
        """
        self._readings.append(readings)
        self._labels |= labels

    def text(self) -> bytes:
        """All current numbers; calls the collectors, which may take time and raise anything."""
        if self._registry is None and not self._readings:
            return b""
        registry = self.registry
        if self._readings and not self._collects:
            self._collects = True
            register_collectors(registry, self._readings, self._labels)
        return generate_latest(registry)


def publication_metrics(counts: PublicationCounts) -> Iterator[Reading]:
    """Yield what was published so far; may be called from any thread."""
    for result in ("success", "error"):
        yield PUBLICATIONS.of(counts.results[result], result)
    for verb in ("create", "update", "delete"):
        yield SLICE_WRITES.of(counts.writes[verb], verb)
    yield LAST_PUBLICATION.of(counts.last_success)
    for pool, generation in counts.generations.items():
        yield POOL_GENERATION.of(generation, pool)


def process_metrics(
    role: Role, client: Client | None, supervisor: Supervisor, watchdog: LoopWatchdog
) -> Iterator[Reading]:
    """Yield the current readings; may be called from any thread.

    Args:
        role: of the process.
        client: of the API server; None if there is none.
        supervisor: runs the parts of the process.
        watchdog: of the event loop.
    """
    yield BUILD_INFO.of(1, __version__, role)
    for (verb, code), count in list(client.answers.items()) if client is not None else ():
        yield API_REQUESTS.of(count, verb, code)
    yield LOOP_LAG_SECONDS.of(watchdog.lag)
    for name, part in supervisor.status().items():
        yield PART_READY.of(int(part.state is PartState.READY), name)


def register_collectors(
    registry: CollectorRegistry, readings: Sequence[Callable[[], Iterable[Reading]]], labels: Mapping[str, str]
) -> None:
    """Make a registry report the numbers, and those of the operating system about the process.

    Args:
        registry: the process's.
        readings: return the current numbers.
        labels: labels that precede each number's own.
    """
    registry.register(_Readings(readings, labels))
    ProcessCollector(registry=registry)


class _Readings(Collector):
    def __init__(self, readings: Sequence[Callable[[], Iterable[Reading]]], labels: Mapping[str, str]) -> None:
        self._readings = readings
        self._labels = dict(labels)

    def describe(self) -> Iterable[Metric]:
        return ()  # otherwise the registry would read the numbers to get their names

    def collect(self) -> Iterator[Metric]:
        found: dict[str, Metric] = {}
        for read in self._readings:
            for family, values, value in read():
                metric = found.get(family.name)
                if metric is None:
                    metric = found[family.name] = self._metric(family)
                _add(metric, [*self._labels.values(), *values], value)
        yield from found.values()

    def _metric(self, family: Family) -> Metric:
        labels = [*self._labels, *family.labels]
        match family.kind:
            case "counter":
                return CounterMetricFamily(family.name, family.help, labels=labels)
            case "gauge":
                return GaugeMetricFamily(family.name, family.help, labels=labels)
            case "histogram":
                return HistogramMetricFamily(family.name, family.help, labels=labels)


def _add(metric: Metric, labels: Sequence[str], value: float | Durations) -> None:
    if isinstance(metric, HistogramMetricFamily):
        assert isinstance(value, Durations)  # noqa: S101 - for type checkers
        metric.add_metric(labels, buckets=list(value.buckets()), sum_value=value.sum)
    elif isinstance(metric, CounterMetricFamily | GaugeMetricFamily) and not isinstance(value, Durations):
        metric.add_metric(labels, value)
