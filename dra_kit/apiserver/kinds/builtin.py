"""All kinds that are served without a CustomResourceDefinition."""

from __future__ import annotations

from typing import Final

from dra_kit.apiserver.kinds import definitions, events, plain, pods, resources
from dra_kit.apiserver.kinds.kind import Kind

KINDS: Final[tuple[Kind, ...]] = (*plain.KINDS, *pods.KINDS, *events.KINDS, *resources.KINDS, *definitions.KINDS)
