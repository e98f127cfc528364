"""The Kubernetes resources that dra-kit uses, and their paths on an API server."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace


class Resource(Struct, frozen=True):
    """One served resource.

    Attributes:
        group: API group, empty for the core group.
        plural: the name in paths and in RBAC rules.
        older: versions of releases that do not serve ``version``, newest first.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    older: tuple[str, ...] = ()

    @property
    def versions(self) -> tuple[Resource, ...]:
        """The resource in each of its versions, newest first."""
        return (self, *(replace(self, version=version, older=()) for version in self.older))

    @property
    def api_version(self) -> str:
        """``apiVersion`` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """``<plural>.<group>``, as kubectl prints it; the plural alone in the core group."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path of one object, or of the collection when ``name`` is empty.

        ``namespace`` is empty for a cluster-scoped resource, and for the collection of all namespaces.
        """
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", _quoted(namespace)]
        parts.append(self.plural)
        if name:
            parts.append(_quoted(name))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


_NEEDS_NO_QUOTES: Final = re.compile(r"[a-z0-9.-]+").fullmatch  # nearly all names


def _quoted(name: str) -> str:
    return name if _NEEDS_NO_QUOTES(name) else quote(name, safe="")


DECOMMISSIONED: Final = "dra-kit/Decommissioned"
"""Condition of a driver's pod: true when nothing of the driver is left on the pod's node."""
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", namespaced=True)
RESOURCE_CLAIM_TEMPLATES = Resource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", namespaced=True
)
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False)
DEVICE_TAINT_RULES = Resource(
    "resource.k8s.io", "v1", "devicetaintrules", "DeviceTaintRule", namespaced=False, older=("v1beta2", "v1alpha3")
)
"""v1 since Kubernetes 1.37, v1beta2 since 1.36, v1alpha3 from 1.33 to 1.38; only v1 is served by default."""
RESOURCE_POOL_STATUS_REQUESTS = Resource(
    "resource.k8s.io", "v1alpha3", "resourcepoolstatusrequests", "ResourcePoolStatusRequest", namespaced=False
)
POD_GROUPS = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup", namespaced=True)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
PODS = Resource("", "v1", "pods", "Pod", namespaced=True)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota", namespaced=True)
EVENTS = Resource("events.k8s.io", "v1", "events", "Event", namespaced=True)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)
SECRETS = Resource("", "v1", "secrets", "Secret", namespaced=True)
CORE_EVENTS = Resource("", "v1", "events", "Event", namespaced=True)
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", namespaced=True)
CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", namespaced=True)
CLUSTER_ROLE_BINDINGS = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
SERVICES = Resource("", "v1", "services", "Service", namespaced=True)
ENDPOINTS = Resource("", "v1", "endpoints", "Endpoints", namespaced=True)
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", namespaced=True)
JOBS = Resource("batch", "v1", "jobs", "Job", namespaced=True)
CRON_JOBS = Resource("batch", "v1", "cronjobs", "CronJob", namespaced=True)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", namespaced=True)
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet", namespaced=True)
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet", namespaced=True)
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet", namespaced=True)
CUSTOM_RESOURCE_DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
VALIDATING_ADMISSION_POLICIES = Resource(
    "admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False
)
VALIDATING_WEBHOOK_CONFIGURATIONS = Resource(
    "admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration",
    namespaced=False,
)  # fmt: skip
