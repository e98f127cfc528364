"""Metrics beside the probes, as Prometheus asks for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

from prometheus_client import Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from dra_kit.process.metrics import Metrics
from tests.unit.process.test_probes import asked, probing


class Broken(Collector):
    """Fails when it is asked."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        raise OSError("the oven is out")


class Slow(Collector):
    """Answers when it may."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.may = threading.Event()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        self.asked.set()
        self.may.wait(60)
        yield GaugeMetricFamily("slow", "of an oven", value=1)


async def test_what_is_registered_is_told_as_it_is_now() -> None:
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


async def test_a_collector_that_fails_is_named_and_harms_no_probe() -> None:
    metrics = Metrics()
    metrics.registry.register(Broken())
    async with probing(metrics=metrics) as port:
        assert await asked(port, "/metrics") == (500, "OSError: the oven is out\n")
        assert await asked(port, "/healthz") == (200, "ok\n")


async def test_while_a_collector_hangs_others_are_sent_away_and_probes_answered() -> None:
    metrics, slow = Metrics(), Slow()
    metrics.registry.register(slow)
    async with probing(metrics=metrics) as port:
        first = asyncio.create_task(asked(port, "/metrics"))
        await asyncio.to_thread(slow.asked.wait, 60)

        assert await asked(port, "/metrics") == (503, "the former scrape has not ended\n")
        assert await asked(port, "/healthz") == (200, "ok\n")

        slow.may.set()
        assert (await first)[0] == 200
