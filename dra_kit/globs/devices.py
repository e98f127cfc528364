"""Devices as they are published and given to containers, of what was matched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dra_kit.author.devices.device import Device
from dra_kit.author.devices.vocabulary import CapacityRequestPolicy, CapacityRequestPolicyRange, DeviceCapacity
from dra_kit.author.preparing.claim import env_name
from dra_kit.author.preparing.prepared import ContainerEdits, DeviceNode, Mount
from dra_kit.globs.attributes import NoValueError, Value, default_of, value_of
from dra_kit.globs.matching import DeviceFile, Match
from dra_kit.globs.model import CapacityEntry, DeviceEntry
from dra_kit.globs.templates import filled


class GlobDevice(Device):
    """A device, with what a container gets that is given it."""

    edits: ContainerEdits


def device_of(match: Match, entry: DeviceEntry, name: str, root: Path) -> tuple[GlobDevice, Mapping[str, str]]:
    """Return a device, and why it lacks attributes, by their names.

    Args:
        match: its device node.
        entry: what the file says of it.
        name: of the device.
        root: where the node's / is.
    """
    values = {**match.values, "device": name, "env": env_name(name)}
    attributes: dict[str, Value] = {}
    lacks: dict[str, str] = {}
    for attribute, source in entry.attributes.items():
        try:
            attributes[attribute] = value_of(source, match.file, values, root)
        except NoValueError as error:
            if (default := default_of(source)) is not None:
                attributes[attribute] = default
            else:
                lacks[attribute] = str(error)
    device = GlobDevice(
        name=name,
        attributes=attributes,
        capacity={capacity: capacity_of(given) for capacity, given in entry.capacity.items()},
        allow_multiple_allocations=entry.allow_multiple_allocations or None,
        edits=_edits(match, entry, values),
    )
    return device, lacks


def capacity_of(entry: CapacityEntry) -> DeviceCapacity:
    """Return a capacity as the author API has it.

    Raises:
        InvalidDevice: an amount is none.
    """
    policy = entry.request_policy
    if policy is None:
        return DeviceCapacity(value=entry.value)
    limits = policy.valid_range
    allowed = None if limits is None else CapacityRequestPolicyRange(**dict(limits))
    return DeviceCapacity(
        value=entry.value,
        request_policy=CapacityRequestPolicy(
            default=policy.default, valid_values=policy.valid_values, valid_range=allowed
        ),
    )


def _edits(match: Match, entry: DeviceEntry, values: Mapping[str, str]) -> ContainerEdits:
    own = filled(entry.container_path, values) if entry.container_path else match.file.path
    nodes = [_node(own, match.file, entry), *(_node(file.path, file, entry) for file in match.companions)]
    return ContainerEdits(
        env={filled(name, values): filled(text, values) for name, text in entry.env.items()},
        device_nodes=nodes,
        mounts=[
            Mount(
                host_path=filled(mount.host_path, values),
                container_path=filled(mount.container_path, values),
                options=mount.options,
            )
            for mount in entry.mounts
        ],
    )


def _node(path: str, file: DeviceFile, entry: DeviceEntry) -> DeviceNode:
    return DeviceNode(
        path=path,
        host_path=None if path == file.host_path else file.host_path,
        permissions=entry.permissions,
        uid=entry.uid,
        gid=entry.gid,
        file_mode=entry.file_mode,
    )
