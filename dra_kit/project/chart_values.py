"""Models of the chart's values; the comments in ``values.yaml`` explain the values.

``python -m dra_kit.project.chart_values`` generates the chart's ``values.schema.json`` and tables of values from them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from dra_kit.kubernetes.values.json import Object

Name: TypeAlias = Annotated[
    str, Field(max_length=63, pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$")
]
"""A DNS subdomain, or empty."""
Directory: TypeAlias = Annotated[str, Field(pattern=r"^/.*[^/]$")]
Labels: TypeAlias = dict[str, str]
Cidr: TypeAlias = Annotated[str, Field(pattern=r"^[0-9a-fA-F.:]+/[0-9]{1,3}$")]
"""Addresses of a network, ``10.0.0.1/32`` or ``fd00::/8``."""
GracePeriod: TypeAlias = Annotated[int, Field(ge=30)]
"""At least as long as the shutdown of the process takes."""


def _optional(schema: dict[str, Any]) -> None:
    """Make all fields optional: users set only what differs from ``values.yaml``."""
    schema.pop("required", None)


class ChartValueGroup(BaseModel):
    """A group of values, in which other names are rejected and all fields are optional for users."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, json_schema_extra=_optional
    )


class ChartListEntry(BaseModel):
    """An entry of a list, whose required fields must be present."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)


class PullSecret(ChartListEntry):
    """A Secret in the release's namespace."""

    name: str


class PolicyRule(ChartListEntry):
    """A PolicyRule of rbac.authorization.k8s.io/v1."""

    verbs: Annotated[list[str], Field(min_length=1)]
    api_groups: list[str] = []
    resources: list[str] = []
    resource_names: list[str] = []
    non_resource_urls: Annotated[list[str], Field(alias="nonResourceURLs")] = []


class EnvironmentVariable(BaseModel):
    """An EnvVar of a container."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", frozen=True)

    name: str


class ImageValues(ChartValueGroup):
    """The driver's image."""

    repository: str
    tag: str
    digest: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")]
    pull_policy: Literal["Always", "IfNotPresent", "Never"]


class LoggingValues(ChartValueGroup):
    """Logging of the roles."""

    level: Literal["debug", "info", "warning", "error"]
    format: Literal["json", "text"]


class PodMonitorValues(ChartValueGroup):
    """A PodMonitor or ServiceMonitor, which makes Prometheus scrape the roles."""

    enabled: bool
    interval: Annotated[str, Field(pattern=r"^[0-9]+(ms|s|m|h)$")]
    labels: Labels


class PrometheusRuleValues(ChartValueGroup):
    """Alerts."""

    enabled: bool
    labels: Labels


class DashboardValues(ChartValueGroup):
    """A dashboard of Grafana."""

    enabled: bool
    labels: Labels
    annotations: Labels


class MonitoringValues(ChartValueGroup):
    """Settings for Prometheus and Grafana."""

    pod_monitor: PodMonitorValues
    service_monitor: PodMonitorValues
    prometheus_rule: PrometheusRuleValues
    dashboard: DashboardValues


class NetworkPoliciesValues(ChartValueGroup):
    """Network policies, and the addresses of the API server."""

    enabled: bool
    api_server_cidrs: list[Cidr] = Field(alias="apiServerCIDRs")


class NetworkPolicyRulesValues(ChartValueGroup):
    """Connections of pods."""

    ingress: list[Object]
    egress: list[Object]


class DrainGuardValues(ChartValueGroup):
    """The Job that prevents uninstalling a driver in use."""

    enabled: bool
    wait: Annotated[int, Field(ge=0)]
    decommission_wait: Annotated[int, Field(ge=0)]
    skip_nodes: list[str]
    node_selector: Labels
    tolerations: list[Object]
    resources: Object


class ServiceAccountValues(ChartValueGroup):
    """The service account of a role."""

    annotations: Labels


class RoleValues(ChartValueGroup):
    """Values of all roles."""

    service_account: ServiceAccountValues
    probe_port: Annotated[int, Field(ge=0, le=65535)]
    extra_args: list[str]
    extra_env: list[EnvironmentVariable]
    extra_volumes: list[Object]
    extra_volume_mounts: list[Object]
    termination_grace_period_seconds: GracePeriod
    priority_class_name: str
    node_selector: Labels
    affinity: Object
    tolerations: list[Object]
    resources: Object
    network_policy: NetworkPolicyRulesValues
    pod_annotations: Labels
    pod_labels: Labels


class AllowedInPodsValues(ChartValueGroup):
    """Restrictions on pods that effects create."""

    service_accounts: list[str]
    secrets: list[str]
    config_maps: list[str]
    image_pull_secrets: list[str]
    host_paths: list[Annotated[str, Field(pattern=r"^(/|.*\{\{)")]]
    host_namespaces: list[Literal["hostIPC", "hostNetwork", "hostPID"]]
    privileged: bool
    metadata: list[str]


class EffectPodsValues(ChartValueGroup):
    """Pods that effects create."""

    labels: Labels
    allowed: AllowedInPodsValues
    pod_disruption_budget: bool
    network_policy: NetworkPolicyRulesValues


class UpdateStrategyValues(ChartValueGroup):
    """The update strategy of the DaemonSet."""

    type: Literal["RollingUpdate", "OnDelete"]
    rolling_update: Object | None


class NodeValues(RoleValues):
    """The role on every node."""

    enabled: bool
    kubelet_dir: Directory
    cdi_dir: Directory
    nri_socket: Annotated[str, Field(pattern=r"^(/.+/[^/]+)?$")]
    state_dir: Annotated[str, Field(pattern=r"^(/.*[^/])?$")]
    check_device_nodes: bool
    pod_resources: bool
    settings: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], str | float | bool]
    extra_rules: list[PolicyRule]
    namespaced_rules: dict[str, list[PolicyRule]]
    own_objects_only: bool
    pool_names: Literal["own", "any"]
    effect_pods: EffectPodsValues
    decommission: bool
    privileged: bool
    capabilities: list[Annotated[str, Field(pattern=r"^[A-Z_]+$")]]
    se_linux_options: Object
    host_network: bool
    update_strategy: UpdateStrategyValues
    min_ready_seconds: Annotated[int, Field(ge=0)]


class ReplicatedRoleValues(RoleValues):
    """A role with several replicas."""

    enabled: bool
    replicas: Annotated[int, Field(ge=1)]
    pod_disruption_budget: bool
    topology_spread_constraints: list[Object]


class ControllerValues(ReplicatedRoleValues):
    """The role for the whole cluster."""

    cluster_pools: bool
    pool_names: list[Annotated[str, Field(min_length=1)]]
    binding: bool
    taint_rules: bool
    extra_rules: list[PolicyRule]


class CertificateJobValues(ChartValueGroup):
    """The Job that makes the API server trust a self-made certificate."""

    node_selector: Labels
    tolerations: list[Object]
    resources: Object


class CertificateValues(ChartValueGroup):
    """The webhook's certificate."""

    self_made: bool
    secret_name: str
    ca_bundle: Annotated[str, Field(pattern=r"^(-----BEGIN CERTIFICATE-----[\s\S]*)?$")]
    job: CertificateJobValues


class WebhookValues(ReplicatedRoleValues):
    """The role that checks opaque config."""

    certificate: CertificateValues
    configuration_annotations: Labels
    port: Annotated[int, Field(ge=1, le=65535)]


class ChartValues(ChartValueGroup):
    """All values of the chart, in the order of ``values.yaml``."""

    driver_name: Name
    fullname_override: str
    image: ImageValues
    image_pull_secrets: list[PullSecret]
    target: str
    globs: str
    device_classes: str
    config_policy: str
    logging: LoggingValues
    monitoring: MonitoringValues
    network_policy: NetworkPoliciesValues
    drain_guard: DrainGuardValues
    node: NodeValues
    controller: ControllerValues
    webhook: WebhookValues


_DRAFT: Final = "http://json-schema.org/draft-07/schema#"  # every helm 3 supports it
_GLOBAL: Final = {"type": "object", "description": "Values that helm shares between a chart and its subcharts"}
_LEFT_OUT: Final = {"$defs", "title", "default", "description", "ge", "gt", "le", "lt", "multiple_of"}
"""The limits are those of quantities, which a JSON schema cannot compare."""


def values_schema(text: str, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON schema of the values.

    Args:
        text: the text of ``values.yaml``, whose comments become descriptions.
        settings: the schema of ``node.settings`` of one driver; None for any driver.
    """
    made = ChartValues.model_json_schema()
    properties = plain(made, made.get("$defs", {}))["properties"]
    if settings is not None:
        properties["node"]["properties"]["settings"] = dict(settings)
    properties = {name: _or_null(part) for name, part in properties.items()}
    _describe(properties, value_comments(text), ())
    return {
        "$schema": _DRAFT,
        "title": "Values of the dra-driver chart",
        "type": "object",
        "additionalProperties": False,
        "properties": {"global": _GLOBAL, **properties},
    }


def plain(part: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a schema of pydantic, or a part of it, as draft 7, without titles, defaults and docstrings.

    References are replaced by their definitions; recursive ones accept anything.
    """
    if isinstance(part, list):
        return [plain(item, definitions) for item in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        name = part["$ref"].removeprefix("#/$defs/")
        return plain(definitions.get(name, {}), {key: item for key, item in definitions.items() if key != name})
    found: dict[str, Any] = {}
    for name, value in part.items():
        if name in {"properties", "patternProperties"}:
            found[name] = {key: plain(item, definitions) for key, item in value.items()}
        elif name not in _LEFT_OUT and (name, value) != ("additionalProperties", True):
            found[name] = plain(value, definitions)
    if "patternProperties" in found:
        found.setdefault("additionalProperties", False)  # a key that matches no pattern is not a name
    return _one_of_types(found)


def _one_of_types(part: dict[str, Any]) -> dict[str, Any]:
    """Return a list of types for an ``anyOf`` of types, for shorter messages of helm."""
    choices = part.get("anyOf", [])
    if choices and all(choice.keys() == {"type"} for choice in choices):
        del part["anyOf"]
        part["type"] = [choice["type"] for choice in choices]
    return part


def _or_null(part: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that also accepts null, with which helm removes a default, and which ``--reuse-values`` keeps."""
    made = dict(part)
    if "anyOf" in made:
        made["anyOf"] = [*made["anyOf"], *([] if {"type": "null"} in made["anyOf"] else [{"type": "null"}])]
    if "type" in made:
        types = made["type"] if isinstance(made["type"], list) else [made["type"]]
        made["type"] = [*types, *([] if "null" in types else ["null"])]
    if "enum" in made:
        made["enum"] = [*made["enum"], None]
    for name in ("properties", "patternProperties"):
        if name in made:
            made[name] = {key: _or_null(item) for key, item in made[name].items()}
    if isinstance(made.get("additionalProperties"), dict):
        made["additionalProperties"] = _or_null(made["additionalProperties"])
    return made


def _describe(properties: dict[str, Any], descriptions: Mapping[ValuePath, str], above: ValuePath) -> None:
    for name, part in list(properties.items()):
        path = (*above, name)
        _describe(part.get("properties", {}), descriptions, path)
        if descriptions.get(path):
            properties[name] = {"description": descriptions[path], **part}


def value_tables(text: str, schema: Mapping[str, Any], *, level: int = 2) -> str:
    """Return a heading of that level and a table for each group of values in the text of ``values.yaml``."""
    described = value_comments(text)
    groups: dict[str, list[str]] = {}
    for path, default in _leaves(yaml.safe_load(text), schema):
        group = path[0] if len(path) > 1 else ""
        what = described.get(path) or described.get(path[:-1] if len(path) > 2 else path, "")
        shown = json.dumps(default, ensure_ascii=False) if default not in ("", [], {}, None) else ""
        cells = [
            f"`{'.'.join(path)}`",
            _type(_at(schema, path)),
            f"`{shown}`" if shown else "",
            what.replace("|", r"\|"),
        ]
        groups.setdefault(group, []).append(f"| {' | '.join(cells)} |")
    parts = []
    for group, rows in groups.items():
        head = f"\n{'#' * level} {group or 'The driver'}\n" + (
            f"\n{described[group,]}\n" if described.get((group,)) else ""
        )
        parts.append("\n".join([head, "| value | type | default | what |", "|---|---|---|---|", *rows, ""]))
    return "\n".join(parts)


def _at(schema: Mapping[str, Any], path: ValuePath) -> Mapping[str, Any]:
    """Return the part of the schema of one value."""
    part = schema
    for name in path:
        part = part.get("properties", {}).get(name, {})
    return part


def _leaves(values: Any, schema: Mapping[str, Any], path: ValuePath = ()) -> Iterator[tuple[ValuePath, Any]]:
    """Yield each value that can be set separately, with its default."""
    if isinstance(values, dict) and (not path or _at(schema, path).get("properties")):
        for name, value in values.items():
            yield from _leaves(value, schema, (*path, name))
    else:
        yield path, values


def _type(part: Mapping[str, Any]) -> str:
    if "enum" in part:
        return ", ".join(f"`{value}`" for value in part["enum"] if value is not None)
    kind = part.get("type") or [str(choice.get("type", "")) for choice in part.get("anyOf", ())]
    kinds = [item for item in ([kind] if isinstance(kind, str) else kind) if item != "null"]  # every value may be null
    bounds = [f"from {part['minimum']}"] if "minimum" in part else []
    bounds += [f"to {part['maximum']}"] if "maximum" in part else []
    return " ".join([" or ".join(kinds), *bounds])


ValuePath: TypeAlias = tuple[str, ...]
"""Names of a value, outermost first: ``("node", "kubeletDir")``."""


def value_comments(text: str) -> Mapping[ValuePath, str]:
    """Return the comment above each key, as one line; empty for a key without a comment.

    Args:
        text: the text of ``values.yaml``, indented by two spaces per level.
    """
    comments_by_path: dict[ValuePath, str] = {}
    path: list[str] = []
    above: list[str] = []
    for line in text.splitlines():
        if comment := re.match(r"\s*# ?(.*)", line):
            above.append(comment[1])
        elif key := re.match(r"(\s*)(\w+):", line):
            path = [*path[: len(key[1]) // 2], key[2]]
            comments_by_path[tuple(path)] = " ".join(above)
            above = []
        else:
            above = []
    return comments_by_path


CHART: Final = Path(__file__).parents[2] / "charts" / "dra-driver"
_DEFAULTS: Final = (
    "# Made of values.yaml by `make chart`: what the templates take for values that are null or missing.\n"
)
_TABLES: Final = re.compile(r"(?<=<!-- values -->\n).*(?=<!-- end of values -->)", re.DOTALL)


def generated(chart: Path) -> Mapping[Path, str]:
    """Return the content of each file in the chart's folder that is generated from the model and ``values.yaml``."""
    values = (chart / "values.yaml").read_text(encoding="utf-8")
    schema = values_schema(values)
    readme = (chart / "README.md").read_text(encoding="utf-8")
    tabled = _TABLES.sub(lambda _: f"{value_tables(values, schema, level=3)}\n", readme)
    return {
        chart / "values.schema.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n",
        chart / "files" / "defaults.yaml": _DEFAULTS
        + yaml.safe_dump(_scalars(yaml.safe_load(values), schema), sort_keys=False),
        chart / "README.md": tabled,
    }


def _scalars(values: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults without maps and lists, for which null is the same as empty."""
    made: dict[str, Any] = {}
    for name, value in values.items():
        part = schema["properties"][name]
        if isinstance(value, dict) and part.get("properties"):
            made[name] = _scalars(value, part)
        elif not isinstance(value, (dict, list)):
            made[name] = value
    return made


def main() -> None:
    """Write the generated files of the chart."""
    for path, text in generated(CHART).items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
