"""The metrics of a process, as Prometheus scrapes them."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from dra_kit.process.metrics import (
    DEVICE_INFO,
    FAMILIES,
    KUBELET_CLAIMS,
    LEADER,
    LOOP_LAG_SECONDS,
    OTHER,
    PREPARED_CLAIMS,
    REVIEW_DURATION,
    BoundedLabel,
    Metrics,
)
from tests.unit.process.test_probes import asked, probing

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "metrics.md"


class Broken(Collector):
    """Fails in each scrape."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        raise OSError("the oven is out")


class Slow(Collector):
    """Waits in each scrape."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.may = threading.Event()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        self.asked.set()
        self.may.wait(60)
        yield GaugeMetricFamily("slow", "of an oven", value=1)


def test_bounded_label_combines_further_values() -> None:
    label = BoundedLabel(2)
    assert [label.of(value) for value in ("a", "b", "c", "a", "d")] == ["a", "b", OTHER, "a", OTHER]


def test_text_has_the_driver_label_on_every_series() -> None:
    metrics, lag = Metrics(), LOOP_LAG_SECONDS.histogram()
    lag.observe(0.3)
    metrics.read(lambda: [PREPARED_CLAIMS.of(3), *lag.collect()], driver="dra.pizza")
    metrics.read(
        lambda: [KUBELET_CLAIMS.of(2, "prepare", "error", "deadline"), *REVIEW_DURATION.histogram().collect()],
        driver="dra.pizza",
    )
    text = metrics.text().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(sample.name, *sorted(sample.labels.items())): sample.value for sample in samples}
    driver = ("driver", "dra.pizza")
    assert found["dra_driver_prepared_claims", driver] == 3
    bucket = "dra_driver_event_loop_lag_seconds_bucket"
    buckets = {sample.labels["le"]: sample.value for sample in samples if sample.name == bucket}
    assert buckets == {
        "0.001": 0, "0.005": 0, "0.025": 0, "0.1": 0, "0.5": 1, "1.0": 1, "5.0": 1, "10.0": 1, "+Inf": 1,
    }  # fmt: skip
    assert found["dra_driver_event_loop_lag_seconds_count", driver] == 1
    assert found["dra_driver_event_loop_lag_seconds_sum", driver] == 0.3
    labels = (("code", "deadline"), driver, ("method", "prepare"), ("result", "error"))
    assert found["dra_driver_kubelet_claims_total", *labels] == 2
    assert any(name == "process_start_time_seconds" for name, *_ in found)
    assert "_created" not in text
    assert REVIEW_DURATION.name not in text, "a metric without series is not listed"


def test_page_lists_every_metric() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*?) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [
        (
            family.shown_name,
            family.kind,
            ", ".join(f"`{label}`" for label in family.labels),
            ", ".join(family.roles),
            family.help,
        )
        for family in FAMILIES
    ]


def test_names_follow_the_conventions_of_prometheus() -> None:
    for family in FAMILIES:
        if family is not LEADER:  # dashboards of Kubernetes' controllers know it by that name
            assert re.fullmatch(r"dra_(driver|device)_[a-z_]+", family.name)
        assert not family.name.endswith("_total"), "the text format adds it"
        if family.kind == "histogram":
            assert family.name.endswith("_seconds")
            assert list(family.buckets) == sorted(set(family.buckets))
        assert family.help.endswith(".")
        names_objects = {"claim", "pod", "namespace", "container", "device"} & set(family.labels)
        assert not names_objects or family is DEVICE_INFO, "as many series as there are objects"


async def test_registered_metric_is_served_with_its_current_value() -> None:
    metrics = Metrics()
    gauge = Gauge("pizzas", "in the oven", registry=metrics.registry)
    async with probing(metrics=metrics) as port:
        gauge.set(3)
        code, text = await asked(port, "/metrics")

    assert code == 200
    assert "# TYPE pizzas gauge\npizzas 3.0\n" in text


async def test_without_metrics_the_answer_is_empty() -> None:
    async with probing() as port:
        assert await asked(port, "/metrics") == (200, "")
    async with probing(metrics=Metrics()) as port:
        assert await asked(port, "/metrics") == (200, "")


async def test_failing_collector_is_reported_and_probes_still_answer() -> None:
    metrics = Metrics()
    metrics.registry.register(Broken())
    async with probing(metrics=metrics) as port:
        assert await asked(port, "/metrics") == (500, "OSError: the oven is out\n")
        assert await asked(port, "/healthz") == (200, "ok\n")


async def test_hanging_collector_blocks_neither_probes_nor_further_scrapes() -> None:
    metrics, slow = Metrics(), Slow()
    metrics.registry.register(slow)
    async with probing(metrics=metrics) as port:
        first = asyncio.create_task(asked(port, "/metrics"))
        await asyncio.to_thread(slow.asked.wait, 60)

        assert await asked(port, "/metrics") == (503, "the previous scrape has not finished\n")
        assert await asked(port, "/healthz") == (200, "ok\n")

        slow.may.set()
        assert (await first)[0] == 200
