"""The metrics of a process: their names, units, labels and buckets, and their text in the format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Struct
from prometheus_client import CollectorRegistry, Histogram, Metric, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from dra_kit import __version__
from dra_kit.client.api import Client
from dra_kit.process.supervisor import PartState, Supervisor
from dra_kit.slices.publisher import PublicationCounts

Role: TypeAlias = Literal["node", "controller", "webhook"]


class MetricDescription(Struct, frozen=True):
    """The description of a metric.

    Attributes:
        name: its name; for a counter without ``_total``, which the text format adds.
        labels: in addition to ``driver``, which all have.
        buckets: upper bounds of a histogram's buckets in seconds, ascending.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    roles: tuple[Role, ...] = ("node",)
    buckets: tuple[float, ...] = ()

    @property
    def shown_name(self) -> str:
        """The name in queries; a histogram's series have ``_bucket``, ``_sum`` and ``_count`` appended."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    def of(self, value: float, *labels: str) -> Metric:
        """Return a counter or gauge with one series, for one scrape."""
        return self.of_each([(labels, value)])

    def of_each(self, series: Iterable[tuple[Sequence[str], float]]) -> Metric:
        """Return a counter or gauge for one scrape; each of its series has the labels' values in order, and a value."""
        metric = (CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily)(
            self.name, self.help, labels=self.labels
        )
        for labels, value in series:
            metric.add_metric(labels, value)
        return metric

    def histogram(self) -> Histogram:
        """Return a histogram without values, which belongs to no registry."""
        return Histogram(self.name, self.help, self.labels, registry=None, buckets=self.buckets)


_ALL: Final[tuple[Role, ...]] = ("node", "controller", "webhook")
_CLIENTS: Final[tuple[Role, ...]] = ("node", "controller")
"""The roles that have a client of the API server."""
DEVICE_INFO: Final = MetricDescription(
    "dra_device_info", "gauge", "A device in use, with its hardware id and the pod that uses it; always 1.",
    ("pool", "device", "share", "hardware_id", "namespace", "claim", "pod", "container"),
)  # fmt: skip
BUILD_INFO: Final = MetricDescription(
    "dra_driver_build_info", "gauge", "The version of dra-kit; always 1.", ("version", "role"), _ALL
)
KUBELET_CALL_SECONDS: Final = MetricDescription(
    "dra_driver_kubelet_call_duration_seconds", "histogram",
    "Duration of a call of the kubelet; its result is an error if any of its claims fails.", ("method", "result"),
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0),  # answered within 40 seconds
)  # fmt: skip
KUBELET_CLAIMS: Final = MetricDescription(
    "dra_driver_kubelet_claims", "counter",
    "Claims that the kubelet asked to prepare or unprepare, by error code.",
    ("method", "result", "code"),
)  # fmt: skip
REGISTERED: Final = MetricDescription(
    "dra_driver_registered", "gauge",
    "1 if the kubelet has registered this process; 0 if it rejected or has not called it, or calls an older process.",
)  # fmt: skip
PREPARED_CLAIMS: Final = MetricDescription("dra_driver_prepared_claims", "gauge", "Prepared claims on the node.")
DEVICES: Final = MetricDescription(
    "dra_driver_devices", "gauge",
    "Devices of the inventory by state (prepared, free) and health (healthy, unhealthy, unknown, not_reported).",
    ("state", "health"),
)  # fmt: skip
PUBLICATIONS: Final = MetricDescription(
    "dra_driver_publications", "counter", "Comparisons of the ResourceSlices with the inventory.", ("result",),
    _CLIENTS,
)  # fmt: skip
SLICE_WRITES: Final = MetricDescription(
    "dra_driver_slice_writes", "counter", "ResourceSlices written.", ("verb",), _CLIENTS
)
LAST_PUBLICATION: Final = MetricDescription(
    "dra_driver_last_publication_timestamp_seconds", "gauge",
    "When the ResourceSlices last matched the inventory; 0 for never.", (),
    _CLIENTS,
)  # fmt: skip
POOL_GENERATION: Final = MetricDescription(
    "dra_driver_pool_generation", "gauge", "Generation of the published pool.", ("pool",), _CLIENTS
)
EFFECTS: Final = MetricDescription(
    "dra_driver_effects", "gauge",
    "Effects by state: in_force, pending (being applied or waiting for a retry), reverting, revert_failed.",
    ("effect", "state"),
)  # fmt: skip
STORE_COMMIT_SECONDS: Final = MetricDescription(
    "dra_driver_store_commit_duration_seconds", "histogram", "Duration of a durable transaction of the node's state.",
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0),
)  # fmt: skip
STORE_BYTES: Final = MetricDescription(
    "dra_driver_store_size_bytes", "gauge", "Size of the node's state database with its log."
)
STORE_CORRUPT_ROWS: Final = MetricDescription(
    "dra_driver_store_corrupt_rows", "gauge", "Corrupt rows of the node's state."
)
HOOK_CALLS: Final = MetricDescription(
    "dra_driver_pod_hooks", "counter",
    "Calls of the driver's pod hooks by result: ok, failed, late (the container runtime got an error in time).",
    ("hook", "result"),
)  # fmt: skip
HOOKS_SKIPPED: Final = MetricDescription(
    "dra_driver_pod_hooks_skipped", "counter",
    "Pods and containers that started while the driver was not connected to the container runtime.",
)  # fmt: skip
RUNTIME_CONNECTED: Final = MetricDescription(
    "dra_driver_runtime_connected", "gauge",
    "1 if the driver's pod hooks run: it is connected to the container runtime.",
)  # fmt: skip
RUNTIME_RECONNECTS: Final = MetricDescription(
    "dra_driver_runtime_reconnects", "counter", "Attempts to connect to the container runtime again."
)
API_REQUESTS: Final = MetricDescription(
    "dra_driver_api_requests", "counter",
    "Requests to the API server, except kopf's, by HTTP status; code error without a response.",
    ("verb", "code"), _CLIENTS,
)  # fmt: skip
LOOP_LAG_SECONDS: Final = MetricDescription(
    "dra_driver_event_loop_lag_seconds", "histogram", "Delay of the event loop, measured every second.", (), _ALL,
    buckets=(0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 10.0),
)  # fmt: skip
KOPF_RESTARTS: Final = MetricDescription(
    "dra_driver_kopf_restarts", "counter", "Restarts of kopf after it stopped.", (), _CLIENTS
)
PART_READY: Final = MetricDescription(
    "dra_driver_part_ready", "gauge", "1 if the part of the process is ready.", ("part",), _ALL
)
CLAIMS: Final = MetricDescription(
    "dra_driver_claims", "gauge", "Claims in the cluster with allocated devices of the driver.", (), ("controller",)
)
REVIEW_DURATION: Final = MetricDescription(
    "dra_driver_review_duration_seconds", "histogram", "Duration of an admission review.", ("result",), ("webhook",),
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0),  # the API server waits for 10 seconds
)  # fmt: skip
CERTIFICATE_EXPIRY: Final = MetricDescription(
    "dra_driver_webhook_certificate_expiry_timestamp_seconds", "gauge",
    "When the webhook's certificate expires: the serving certificate, and its authority if the webhook created it.",
    ("certificate",), ("webhook",),
)  # fmt: skip
LEADER: Final = MetricDescription(
    "leader_election_master_status", "gauge",
    "1 in the replica that holds the Lease of that name, 0 in the others; the same name as in Kubernetes.",
    ("name",), ("controller",),
)  # fmt: skip
FAMILIES: Final = tuple(value for value in list(globals().values()) if isinstance(value, MetricDescription))
"""All metrics."""
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OTHER: Final = "other"
"""Replaces a label's value when there are too many of them."""


class BoundedLabel:
    """Limits the number of values of a label that other code defines, such as error codes; further ones become one."""

    def __init__(self, most: int = 50) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, value: str) -> str:
        """Return the value, or ``OTHER`` if there are too many already."""
        if value not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(value)
        return value


class Metrics:
    """The metrics of one process.

    Attributes:
        registry: the author's collectors are registered here, from any thread.
    """

    def __init__(self) -> None:
        self.registry: CollectorRegistry = CollectorRegistry()
        self._reads = False

    def read(self, readings: Callable[[], Iterable[Metric]], *, driver: str) -> None:
        """Read metrics of a part of the process on each scrape, and those of the operating system about the process.

        ``readings`` is called in its own thread. All metrics get the label ``driver``.
        """
        self.registry.register(_DriverCollector(readings, driver))
        if not self._reads:
            self._reads = True
            ProcessCollector(registry=self.registry)

    def text(self) -> bytes:
        """All current numbers; calls the collectors, which may take time and raise anything."""
        return generate_latest(self.registry)


class _DriverCollector(Collector):
    """Adds the label ``driver``; drops metrics without series, and the time at which each histogram was created."""

    def __init__(self, readings: Callable[[], Iterable[Metric]], driver: str) -> None:
        self._readings = readings
        self._driver = driver

    def collect(self) -> Iterator[Metric]:
        for metric in self._readings():
            metric.samples = [
                sample._replace(labels={"driver": self._driver, **sample.labels})
                for sample in metric.samples
                if not sample.name.endswith("_created")
            ]
            if metric.samples:
                yield metric


def publication_metrics(counts: PublicationCounts) -> Iterator[Metric]:
    """Yield what was published so far; may be called from any thread."""
    yield PUBLICATIONS.of_each(((result,), counts.results[result]) for result in ("success", "error"))
    yield SLICE_WRITES.of_each(((verb,), counts.writes[verb]) for verb in ("create", "update", "delete"))
    yield LAST_PUBLICATION.of(counts.last_success)
    yield POOL_GENERATION.of_each(((pool,), generation) for pool, generation in counts.generations.items())


def process_metrics(role: Role, client: Client | None, supervisor: Supervisor, lag: Histogram) -> Iterator[Metric]:
    """Yield the metrics that all roles have; may be called from any thread."""
    yield BUILD_INFO.of(1, __version__, role)
    if client is not None:
        yield API_REQUESTS.of_each(list(client.answers.items()))
    yield from lag.collect()
    yield PART_READY.of_each(
        ((name,), int(part.state is PartState.READY)) for name, part in supervisor.status().items()
    )
