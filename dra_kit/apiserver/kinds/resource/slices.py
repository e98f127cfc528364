"""ResourceSlice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from dra_kit.apiserver.answers import forbidden
from dra_kit.apiserver.kinds.resource.versioned import GROUP, ResourceStrategy
from dra_kit.apiserver.kinds.strategy import Context
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.field_errors import FieldError, go_quote
from dra_kit.kubernetes.resource.validation.slices import validate_slice
from dra_kit.kubernetes.values.json import Object

if TYPE_CHECKING:
    from dra_kit.kubernetes.resource.matching import Node

_ALLOCATABLE: Final = "DRANodeAllocatableResources"
_FRACTIONAL: Final = "DRAFractionalCapacityRange"


class SliceStrategy(ResourceStrategy):
    """ResourceSlice."""

    kind = "ResourceSlice"

    @override
    def admit_valid(self, obj: Object, context: Context) -> None:
        """Refuse devices that count against resources of nodes, for nodes without support of it (KEP-5517)."""
        if _ALLOCATABLE not in context.gates:
            return
        from dra_kit.kubernetes.resource.matching import Node  # the allocator is much code for a gate that is seldom on

        spec = _slice(obj).spec
        nodes = [Node.of(node) for node in context.listed("nodes")]
        for device in spec.devices:
            if not device.node_allocatable_resources:
                continue
            scope = device if spec.per_device_node_selection else spec
            if (problem := _without_support(device.name, scope, nodes)) is not None:
                raise forbidden(GROUP, "resourceslices", obj["metadata"].get("name") or "", problem)

    @override
    def validate_update(self, obj: Object, old: Object, context: Context) -> list[FieldError]:
        """Check the rules of ``resource/validation``."""
        return validate_slice(_slice(obj), old=_slice(old), fractional_ranges=_FRACTIONAL in context.gates)

    @override
    def same_spec(self, obj: Object, old: Object) -> bool:
        """Return whether two specs are the same; another spelling of the same quantity is no difference."""
        return super().same_spec(obj, old) or _slice(obj).spec == _slice(old).spec

    @override
    def warnings(self, obj: Object, old: Object | None, context: Context) -> list[str]:
        """Return a warning about driver names with upper case."""
        driver = obj["spec"].get("driver", "")
        if driver == driver.lower():
            return []
        return [f"spec.driver: driver names should be lowercase; {go_quote(driver)} contains uppercase characters"]


def _slice(obj: Object) -> v1.ResourceSlice:
    return v1.ResourceSlice.model_validate({**obj, "spec": obj.get("spec") or {}})


def _without_support(device: str, scope: v1.Device | v1.ResourceSliceSpec, nodes: Iterable[Node]) -> str | None:
    """Return why a device may not be published for the nodes of a scope; one without nodes is fine unless named."""
    from dra_kit.kubernetes.resource.matching import node_matches

    selector = scope.node_selector
    try:
        concerned = [node for node in nodes if node_matches(node, scope.node_name, scope.all_nodes, selector)]
    except ValueError:
        return None  # validation says what is wrong with the selector
    if scope.node_name and not concerned:
        return f"node {go_quote(scope.node_name)} not found for device {go_quote(device)}"
    for node in concerned:
        if _ALLOCATABLE not in node.declared_features:
            return f"node {go_quote(node.name)} does not support {_ALLOCATABLE} feature"
    return None
