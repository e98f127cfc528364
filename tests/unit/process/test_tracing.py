"""Traces with a collector, and no overhead without one."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext

import pytest

from dra_kit.errors import ConfigurationError
from dra_kit.process import tracing

COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


def test_spans_without_a_collector_are_one_no_op() -> None:
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
def test_tracing_is_configured_by_the_environment(environment: dict[str, str], wanted: bool) -> None:
    assert tracing.is_wanted(environment) is wanted


def test_unknown_protocol_is_rejected() -> None:
    with pytest.raises(
        ConfigurationError, match="OTLP protocol grpc is not known: leave it out, or write http/protobuf"
    ):
        tracing.configure("d", "node", {**COLLECTOR, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})


def test_missing_opentelemetry_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigurationError, match=r"pip install dra-kit\[otel\], or remove the variable"):
        tracing.configure("d", "node", COLLECTOR)


def test_node_without_a_collector_does_not_load_opentelemetry() -> None:
    program = (
        "import sys; import dra_kit.cli.roles, dra_kit.node.agent; from dra_kit.process import tracing;"
        "tracing.configure('d', 'node', {}); tracing.span('x').__enter__();"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=240).returncode == 0
