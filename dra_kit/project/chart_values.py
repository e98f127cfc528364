"""Models of the chart's values; the comments in ``values.yaml`` explain the values."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

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
