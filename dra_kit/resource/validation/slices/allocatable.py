"""How a device counts against the resources of its node (KEP-5517)."""

from __future__ import annotations

from collections.abc import Container, Mapping

from dra_kit.resource import v1
from dra_kit.resource.fielderror import FieldError, declarative, invalid, not_found, required
from dra_kit.resource.validation.fields.formats import key_path
from dra_kit.values.quantity import Quantity

_MAPPING_MEMBERS = "`capacityKey`, `deviceMultiplier`"


def validate_node_allocatable(
    resources: Mapping[str, v1.NodeAllocatableResource], capacities: Container[str], path: str
) -> list[FieldError]:
    """Check ``nodeAllocatableResources`` of one device; ``capacities`` are the keys of its capacities."""
    errors = []
    for name, resource in resources.items():
        where = key_path(path, name)
        if name not in {"cpu", "memory"} and not name.startswith("hugepages-"):
            errors.append(invalid(where, name, "must be a node allocatable resource name"))
        if resource.mapping is None and resource.overhead is None:
            errors.append(required(where, "at least one of mapping or overhead must be set"))
        if resource.mapping is not None:
            errors += _validate_mapping(resource.mapping, capacities, f"{where}.mapping")
        if resource.overhead is not None:
            errors += _validate_overhead(resource.overhead, f"{where}.overhead")
    return errors


def _validate_mapping(
    mapping: v1.NodeAllocatableResourceMapping, capacities: Container[str], path: str
) -> list[FieldError]:
    key, multiplier = mapping.capacity_key, mapping.capacity_multiplier
    errors = []
    if key == "":
        errors.append(invalid(f"{path}.capacityKey", "", "capacityKey must not be an empty string"))
    elif key is not None and key not in capacities:
        errors.append(not_found(f"{path}.capacityKey", key))
    if key is None and multiplier is not None:
        errors.append(required(f"{path}.capacityKey", "capacityKey is required when capacityMultiplier is set"))
    if multiplier is None and key is not None:
        detail = "capacityMultiplier is required when capacityKey is set"
        errors.append(required(f"{path}.capacityMultiplier", detail))
    errors += _positive(multiplier, f"{path}.capacityMultiplier")
    errors += _positive(mapping.device_multiplier, f"{path}.deviceMultiplier")
    if key is None and mapping.device_multiplier is None:
        errors += declarative([invalid(path, "", f"must specify one of: {_MAPPING_MEMBERS}")])
    elif key is not None and mapping.device_multiplier is not None:
        shown = "{capacityKey, deviceMultiplier}"
        errors += declarative([invalid(path, shown, f"must specify exactly one of: {_MAPPING_MEMBERS}")])
    return errors


def _validate_overhead(overhead: v1.NodeAllocatableResourceOverhead, path: str) -> list[FieldError]:
    if overhead.per_pod is None and overhead.per_container is None:
        return [invalid(path, "", "at least one of perPod or perContainer must be set")]
    amounts = {"perPod": overhead.per_pod, "perContainer": overhead.per_container}
    return [
        invalid(f"{path}.{name}", amount, "must be non-negative")
        for name, amount in amounts.items()
        if amount is not None and amount.sign < 0
    ]


def _positive(quantity: Quantity | None, path: str) -> list[FieldError]:
    return [invalid(path, quantity, "must be positive")] if quantity is not None and quantity.sign <= 0 else []
