"""Traces where somebody collects them; nothing at all where nobody does."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext

import pytest

from dra_kit.errors import ConfigurationError
from dra_kit.process import tracing

COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


def test_without_a_collector_every_span_is_the_same_nothing() -> None:
    tracing.configure("dra.pizza", "node", {})
    first, second = tracing.span("a", claim="x"), tracing.span("b")
    assert first is second
    assert isinstance(first, nullcontext)


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        (COLLECTOR, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({**COLLECTOR, "OTEL_SDK_DISABLED": "true"}, False),
        ({**COLLECTOR, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
    ],
)
def test_the_environment_says_whether_somebody_collects(environment: dict[str, str], wanted: bool) -> None:
    assert tracing.is_wanted(environment) is wanted


def test_a_protocol_that_is_not_known_is_told() -> None:
    with pytest.raises(
        ConfigurationError, match="OTLP protocol grpc is not known: leave it out, or write http/protobuf"
    ):
        tracing.configure("d", "node", {**COLLECTOR, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})


def test_where_it_is_not_installed_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigurationError, match=r"pip install dra-kit\[otel\], or remove the variable"):
        tracing.configure("d", "node", COLLECTOR)


def test_nothing_of_it_is_loaded_by_a_node_without_a_collector() -> None:
    program = (
        "import sys; import dra_kit.cli.roles, dra_kit.node.agent; from dra_kit.process import tracing;"
        "tracing.configure('d', 'node', {}); tracing.span('x').__enter__();"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
