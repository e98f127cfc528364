"""The trace of a prepare, and the lines that are logged meanwhile."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from io import StringIO

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import dra_kit as dra
from dra_kit.process import tracing
from dra_kit.process.logging import JsonFormatter
from tests.unit.node.drivers import Doing, driver
from tests.unit.node.hardware import kitchen
from tests.unit.node.role import Node


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    tracing.set_processor(SimpleSpanProcessor(exporter), "dra.pizza", "node")
    yield exporter
    tracing.reset()


async def test_prepare_is_one_trace_from_the_call_to_the_durable_write(node: Node, spans: InMemorySpanExporter) -> None:
    lunch = node.claim()
    async with node.running(kitchen()):
        await node.prepare(lunch)
        await node.unprepare(lunch)
    found = spans.get_finished_spans()
    parents = {span.context.span_id: span.name for span in found if span.context is not None}
    tree = {span.name: parents.get(span.parent.span_id) if span.parent else None for span in found}
    assert tree == {
        "NodePrepareResources": None,
        "prepare claim": "NodePrepareResources",
        "read claim": "prepare claim",
        "driver code": "prepare claim",
        "apply effect": "driver code",
        "store claim": "prepare claim",
        "NodeUnprepareResources": None,
        "release claim": "NodeUnprepareResources",
    }
    [prepared] = [span for span in found if span.name == "prepare claim"]
    assert dict(prepared.attributes or {}) == {"dra.claim": "default/lunch", "dra.claim.uid": lunch.uid}
    assert prepared.resource.attributes["service.name"] == "dra.pizza-node"


async def test_trace_contains_the_failure(node: Node, spans: InMemorySpanExporter) -> None:
    def refuse(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        raise dra.PermanentError("the oven is cold")

    async with node.running(driver(Doing(refuse))):
        await node.error(node.claim())
    [failed] = [span for span in spans.get_finished_spans() if span.name == "driver code"]
    assert not failed.status.is_ok
    assert dict(failed.attributes or {}) == {"dra.device": "pizza-0"}


@pytest.mark.parametrize("blocking", [True, False])
async def test_log_lines_of_the_driver_name_claim_pod_and_device(node: Node, blocking: bool) -> None:
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("author.test")
    logger.addHandler(handler)
    logger.setLevel("INFO")

    class Author(dra.Preparer):
        async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            logger.info("baking")
            return dra.Prepared(env={device.env_name: "1"})

    class Blocking(dra.Preparer):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            logger.info("baking")
            return dra.Prepared(env={device.env_name: "1"})

    lunch = node.claim(devices=["pizza-0", "pizza-1"], reserved_for=["guest"])
    try:
        await node.prepared_by(driver(Blocking() if blocking else Author()), lunch)
    finally:
        logger.removeHandler(handler)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["claim"], line["claim_uid"], line["pod"], line["device"]) for line in lines] == [
        ("default/lunch", lunch.uid, "default/guest", "pizza-0"),
        ("default/lunch", lunch.uid, "default/guest", "pizza-1"),
    ]
