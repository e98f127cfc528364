"""Models of resource.k8s.io/v1alpha3, as far as it is served and has kinds of its own (Kubernetes 1.37)."""

from __future__ import annotations

from pydantic import Field

from dra_kit.resource.v1.base import APIModel, Int64, ObjectMeta


class ResourcePoolStatusRequestSpec(APIModel, frozen=True):
    """Which pools are asked about: those of ``driver``, or one by name; of at most ``limit`` pools."""

    driver: str = ""
    pool_name: str | None = None
    limit: Int64 | None = None
    default_partition_type_attribute: str | None = None


class ResourcePoolStatusRequest(APIModel, frozen=True):
    """A question about the use of pools, which a controller answers once in the status (KEP-5677)."""

    api_version: str = "resource.k8s.io/v1alpha3"
    kind: str = "ResourcePoolStatusRequest"
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: ResourcePoolStatusRequestSpec = Field(default_factory=ResourcePoolStatusRequestSpec)
