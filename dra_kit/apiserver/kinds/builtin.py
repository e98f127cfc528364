"""All kinds that are served without a CustomResourceDefinition."""

from __future__ import annotations

from typing import Final

from dra_kit.apiserver.kinds import (
    definitions,
    events,
    inert,
    nodes,
    plain,
    pods,
    policies,
    rbac,
    resources,
    webhooks,
    workloads,
)
from dra_kit.apiserver.kinds.kind import Kind

KINDS: Final[tuple[Kind, ...]] = (
    *plain.KINDS,
    *rbac.KINDS,
    *workloads.KINDS,
    *inert.KINDS,
    *webhooks.KINDS,
    *policies.KINDS,
    *pods.KINDS,
    *nodes.KINDS,
    *events.KINDS,
    *resources.KINDS,
    *definitions.KINDS,
)
