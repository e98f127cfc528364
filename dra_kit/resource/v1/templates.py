"""``ResourceClaimTemplate``: what claims are made from, one for each pod."""

from __future__ import annotations

from pydantic import Field

from dra_kit.resource.v1.base import APIModel, ObjectMeta
from dra_kit.resource.v1.claims import ResourceClaimSpec


class ResourceClaimTemplateSpec(APIModel, frozen=True):
    """The claims: labels and annotations from ``metadata``, and their spec."""

    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: ResourceClaimSpec = Field(default_factory=ResourceClaimSpec)


class ResourceClaimTemplate(APIModel, frozen=True):
    """A template in the namespace of the pods that name it."""

    api_version: str = "resource.k8s.io/v1"
    kind: str = "ResourceClaimTemplate"
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: ResourceClaimTemplateSpec = Field(default_factory=ResourceClaimTemplateSpec)
