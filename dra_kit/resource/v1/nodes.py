"""``v1.NodeSelector``: which nodes may use a device."""

from __future__ import annotations

from dra_kit.resource.v1.base import APIModel


class NodeSelectorRequirement(APIModel, frozen=True):
    """``key operator values`` over a node's labels or fields.

    ``operator`` is In, NotIn, Exists, DoesNotExist, Gt or Lt.
    """

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeSelectorTerm(APIModel, frozen=True):
    """All requirements together."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(APIModel, frozen=True):
    """Any of the terms. ResourceSlices and devices may have exactly one term."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()
