"""The structured allocator: which devices the claims of a pod get on a node, exactly as kube-scheduler decides."""

from dra_kit.allocator.allocation import Allocator, Attempt
from dra_kit.allocator.cluster.nodes import Node
from dra_kit.allocator.cluster.snapshot import Snapshot
from dra_kit.allocator.cluster.usage import Usage
from dra_kit.allocator.gates import Gates

__all__ = ["Allocator", "Attempt", "Gates", "Node", "Snapshot", "Usage"]
