"""The Prometheus Operator's kinds as far as the chart writes them, by its API reference (monitoring.coreos.com/v1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from dra_kit.project.chart_values import plain

Duration: TypeAlias = Annotated[str, Field(pattern=r"^(0|(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class Relabeling(_Part):
    source_labels: list[str]
    target_label: str


class LabelDrop(_Part):
    action: Literal["labeldrop"]
    regex: str


class Selector(_Part):
    match_labels: dict[str, str]


class Endpoint(_Part):
    """As in a PodMonitor and in a ServiceMonitor."""

    port: str
    path: str
    interval: Duration
    honor_labels: bool
    relabelings: list[Relabeling]
    metric_relabelings: list[LabelDrop]


class PodMonitorSpec(_Part):
    selector: Selector
    pod_metrics_endpoints: list[Endpoint]


class ServiceMonitorSpec(_Part):
    selector: Selector
    endpoints: list[Endpoint]


class Alert(_Part):
    alert: str
    expr: str
    for_: Annotated[Duration, Field(alias="for")] = "0"
    labels: dict[str, str]
    annotations: dict[str, str]


class Group(_Part):
    name: Annotated[str, Field(min_length=1)]
    rules: list[Alert]


class PrometheusRuleSpec(_Part):
    groups: list[Group]


SPECS: Mapping[str, type[BaseModel]] = {
    "PodMonitor": PodMonitorSpec, "ServiceMonitor": ServiceMonitorSpec, "PrometheusRule": PrometheusRuleSpec,
}  # fmt: skip


class Metadata(_Part):
    name: str
    namespace: str
    labels: dict[str, str]


class Monitored(_Part):
    """An object of one of these kinds; its spec is looked at by the model of the kind."""

    api_version: Literal["monitoring.coreos.com/v1"]
    kind: Literal["PodMonitor", "ServiceMonitor", "PrometheusRule"]
    metadata: Metadata
    spec: dict[str, Any]


def check(body: Mapping[str, Any]) -> None:
    """Reject objects of other kinds, and unknown fields.

    Raises:
        ValidationError: naming the field.
    """
    SPECS[Monitored.model_validate(body).kind].model_validate(body["spec"])


def definitions() -> Iterator[dict[str, Any]]:
    """CustomResourceDefinitions for an API server that has no Prometheus Operator."""
    for kind, model in SPECS.items():
        made = model.model_json_schema()
        schema = {"type": "object", "properties": {"spec": _structural(plain(made, made.get("$defs", {})))}}
        plural = f"{kind.lower()}s"
        yield {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.monitoring.coreos.com"},
            "spec": {
                "group": "monitoring.coreos.com",
                "scope": "Namespaced",
                "names": {"plural": plural, "kind": kind},
                "versions": [
                    {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
                ],
            },
        }


def _structural(part: Any) -> Any:
    """An API server refuses unknown fields by itself, and ``additionalProperties: false``."""
    if isinstance(part, dict):
        return {
            name: _structural(item) for name, item in part.items() if (name, item) != ("additionalProperties", False)
        }
    return [_structural(item) for item in part] if isinstance(part, list) else part
