"""All kinds that are served without a CustomResourceDefinition."""

from __future__ import annotations

from typing import Final

from dra_kit.apiserver.kinds import inert, plain, rbac, workloads
from dra_kit.apiserver.kinds.core import events, nodes, pods
from dra_kit.apiserver.kinds.kind import Kind
from dra_kit.apiserver.kinds.registration import definitions, policies, webhooks
from dra_kit.apiserver.kinds.resource import resources

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
