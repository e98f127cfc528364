"""Planning which ResourceSlices to write: pure functions over what is desired and what is stored."""

from dra_kit.resource.slices.desired import Accepted, Desired, DesiredPool, Plan, SliceFeatures
from dra_kit.resource.slices.dropped import DroppedField, dropped_fields
from dra_kit.resource.slices.planning import plan

__all__ = [
    "Accepted",
    "Desired",
    "DesiredPool",
    "DroppedField",
    "Plan",
    "SliceFeatures",
    "dropped_fields",
    "plan",
]
