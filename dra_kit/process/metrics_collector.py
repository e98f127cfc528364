"""Converts the plain numbers of a process for prometheus-client; loaded when metrics are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from dra_kit.process.measures import Durations
from dra_kit.process.metrics import Family, Reading


def register_collectors(
    registry: CollectorRegistry, readings: Sequence[Callable[[], Iterable[Reading]]], labels: Mapping[str, str]
) -> None:
    """Make a registry tell the numbers, and those of the operating system about the process.

    Args:
        registry: the process's.
        readings: give the numbers of now.
        labels: that each number has before its own.
    """
    registry.register(_Readings(readings, labels))
    ProcessCollector(registry=registry)


class _Readings(Collector):
    def __init__(self, readings: Sequence[Callable[[], Iterable[Reading]]], labels: Mapping[str, str]) -> None:
        self._readings = readings
        self._labels = dict(labels)

    def describe(self) -> Iterable[Metric]:
        return ()  # else the registry would ask for the numbers to know their names

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
