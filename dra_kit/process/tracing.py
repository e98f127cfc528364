"""OpenTelemetry traces of the kubelet's calls, if a collector is configured (``pip install dra-kit[otel]``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final

from dra_kit import __version__
from dra_kit.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor


_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL: Final = "http/protobuf"
_NOTHING: Final = nullcontext()
_begin: Callable[[str, Mapping[str, str | int]], AbstractContextManager[object]] | None = None


def span(name: str, **attributes: str | int) -> AbstractContextManager[object]:
    """Open a span of a trace for the duration of the block; an exception in it is recorded.

    Underscores in the names of attributes become dots: ``claim_uid`` is ``dra.claim.uid``.
    """
    return _NOTHING if _begin is None else _begin(name, attributes)


def is_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment configures a collector of traces."""
    off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    none = environment.get("OTEL_TRACES_EXPORTER", "otlp") == "none"
    return not off and not none and any(environment.get(name) for name in _ENDPOINTS)


def configure(driver: str, role: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send traces as the environment configures; do nothing if it does not.

    Raises:
        ConfigurationError: OpenTelemetry is not installed, or the protocol is unknown.
    """
    if not is_wanted(environment):
        return
    protocol = next((environment[name] for name in _PROTOCOLS if environment.get(name)), _PROTOCOL)
    if protocol != _PROTOCOL:
        raise ConfigurationError(f"OTLP protocol {protocol} is not known: leave it out, or write {_PROTOCOL}")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigurationError(
            f"{' or '.join(_ENDPOINTS)} is set, and OpenTelemetry is not installed ({error}): "
            "pip install dra-kit[otel], or remove the variable"
        ) from error
    set_processor(BatchSpanProcessor(OTLPSpanExporter()), driver, role)


def set_processor(processor: SpanProcessor, driver: str, role: str) -> None:
    """Pass all spans from now on to a processor."""
    global _begin  # noqa: PLW0603 - one process has one tracer, or none
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    resource = Resource.create({"service.name": f"{driver}-{role}", "service.version": __version__})
    provider = TracerProvider(resource=resource)  # sends the remaining spans when the process exits
    provider.add_span_processor(processor)
    tracer = provider.get_tracer("dra_kit", __version__)

    def begin(name: str, attributes: Mapping[str, str | int]) -> AbstractContextManager[object]:
        named = {f"dra.{key.replace('_', '.')}": value for key, value in attributes.items()}
        return tracer.start_as_current_span(name, attributes=named)

    _begin = begin


def reset() -> None:
    """Drop all spans from now on; for tests."""
    global _begin  # noqa: PLW0603 - as above
    _begin = None
