"""The structured allocator: which devices the claims of a pod get on a node, exactly as kube-scheduler decides."""

from dra_kit.allocator.allocation import Allocator, Attempt
from dra_kit.allocator.gates import Gates
from dra_kit.allocator.nodes import Node
from dra_kit.allocator.snapshot import Snapshot
from dra_kit.allocator.usage import Usage

__all__ = ["Allocator", "Attempt", "Gates", "Node", "Snapshot", "Usage"]
