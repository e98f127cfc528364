"""``Prepared``: what a container with a device gets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from pydantic import AfterValidator, PlainValidator

from dra_kit.author.device import Attribute
from dra_kit.author.model import AuthorModel, JsonLike, copy_json
from dra_kit.errors import DraKitError, InvalidPrepared


def _env(value: Mapping[str, str]) -> Mapping[str, str]:
    for name in value:
        if not name or "=" in name or "\0" in name:
            begin = re.split("[=\0]", name)[0]  # the rest may be the value
            rule = "must not be empty or contain '=' or NUL"
            raise ValueError(f"a name that begins with {begin!r} is not a valid environment variable name: it {rule}")
        if "\0" in value[name]:
            raise ValueError(f"the value of {name} contains NUL, which an environment variable cannot hold")
    return value


HARDWARE_IDS_MAX: Final = 64
"""Hardware ids of one device."""
HARDWARE_ID_LENGTH: Final = 256
"""Allowed characters of a hardware id: each becomes the value of a metric label."""


def _hardware_ids(value: Sequence[str]) -> Sequence[str]:
    if len(value) > HARDWARE_IDS_MAX:
        raise ValueError(f"there are {len(value)} of them, at most {HARDWARE_IDS_MAX} tell a device")
    for item in value:
        if not item or item != item.strip() or not item.isprintable() or len(item) > HARDWARE_ID_LENGTH:
            msg = (
                f"an id is 1 to {HARDWARE_ID_LENGTH} printable characters without spaces around them, "
                f"not {item[:HARDWARE_ID_LENGTH]!r}"
            )
            raise ValueError(msg)
    if len(set(value)) < len(value):
        raise ValueError("each id is given once")
    return value


HardwareIds: TypeAlias = Annotated[Sequence[str], AfterValidator(_hardware_ids)]
Env: TypeAlias = Annotated[Mapping[str, str], AfterValidator(_env)]
Json: TypeAlias = Annotated[JsonLike, PlainValidator(copy_json)]


class PreparedModel(AuthorModel):
    """The base of what a preparer returns.

    Raises:
        InvalidPrepared: naming the object, the field, the value and the rule.
    """

    error_class_: ClassVar[type[DraKitError]] = InvalidPrepared
    shows_values_: ClassVar[bool] = False  # the text also goes into an Event, and a variable may hold a password


class Mount(PreparedModel):
    """A file or directory of the host in the container.

    Args:
        host_path: on the host.
        container_path: in the container; created there if it is missing.
        options: as for mount(8), for example ``["ro"]``. Without a ``type``, and without ``bind`` or ``rbind`` among
            them, ``rbind`` is added, as the kubelet does for volumes: runtimes bind only if the options say so.
        type: the type of a file system to mount in place of a host path, such as ``tmpfs``.
    """

    host_path: str
    container_path: str
    options: Sequence[str] = ()
    type: str | None = None

    @property
    def effective_options(self) -> Sequence[str]:
        """The options used for the mount."""
        # the options decide; a type of "bind" is only a name (runc, createLibcontainerMount)
        binds = self.type in {None, "", "bind", "none"} and not {"bind", "rbind"} & {*self.options}
        return ["rbind", *self.options] if binds else self.options


class DeviceNode(PreparedModel):
    """A device file in the container; type, major, minor and mode are taken from the host when not given."""

    path: str
    host_path: str | None = None
    type: Literal["b", "c", "u", "p"] | None = None
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str | None = None
    uid: int | None = None
    gid: int | None = None


class Hook(PreparedModel):
    """A program of the host that the runtime runs at one point of the container's life cycle."""

    hook_name: Literal["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]
    path: str
    args: Sequence[str] = ()
    env: Sequence[str] = ()
    timeout: int | None = None


class NetDevice(PreparedModel):
    """A network interface of the host that moves into the container under ``name``."""

    host_interface_name: str
    name: str


class IntelRdt(PreparedModel):
    """Where the runtime puts a container in resctrl: a class of service for cache and memory bandwidth (CDI 0.7.0).

    Source: ``linux.intelRdt`` of the OCI runtime specification 1.3. A container has one of them, so devices of one
    request and the claim's edits must not differ in it.

    Args:
        clos_id: name of the class of service, a folder of ``/sys/fs/resctrl``; it must exist if no schema is given. The
            root class is ``/``. Empty: the runtime creates a class with the container's id.
        l3_cache_schema: the line of the file ``schemata`` for the L3 cache, such as ``L3:0=f;1=f``.
        mem_bw_schema: the line for memory bandwidth, such as ``MB:0=50;1=50``.
        schemata: all lines of that file, instead of the two above (CDI 1.1.0); None for none.
        enable_monitoring: monitor the container separately from others of its class (CDI 1.1.0).
    """

    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: Sequence[str] | None = None
    enable_monitoring: bool = False


class ContainerEdits(PreparedModel):
    """Changes to a container, as CDI defines them."""

    env: Env = {}
    mounts: Sequence[Mount] = ()
    device_nodes: Sequence[DeviceNode] = ()
    hooks: Sequence[Hook] = ()
    net_devices: Sequence[NetDevice] = ()
    additional_gids: Sequence[int] = ()
    intel_rdt: IntelRdt | None = None


class Condition(PreparedModel):
    """A metav1.Condition of a device; the framework sets ``last_transition_time`` if it is omitted."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    last_transition_time: datetime | None = None
    observed_generation: int | None = None


class NetworkDeviceData(PreparedModel):
    """The result for a network device: its name in the pod, its addresses in CIDR form, its hardware address."""

    interface_name: str = ""
    ips: Sequence[str] = ()
    hardware_address: str = ""


class DeviceStatus(PreparedModel):
    """What the driver reports about an allocated device in the claim's ``status.devices``."""

    conditions: Sequence[Condition] = ()
    data: Json = None
    network_data: NetworkDeviceData | None = None


class DeviceMetadata(PreparedModel):
    """What the container can read about its device from a file, without access to the API (KEP-5304)."""

    attributes: Mapping[str, Attribute] = {}
    network_data: NetworkDeviceData | None = None


class Prepared(ContainerEdits):
    """What a container gets with one allocated device. Everything is optional.

    Args:
        env: environment variables by name. Values may contain any character except NUL.
        mounts: host files and directories.
        device_nodes: device files.
        hooks: programs around the container's life.
        net_devices: network interfaces.
        additional_gids: supplementary groups.
        intel_rdt: settings of resctrl for the container.
        cdi_devices: qualified names of existing CDI devices (``vendor/class=name``).
        claim_edits: edits that a container gets once for the claim, no matter how many of its devices it uses.
        status: published in the claim's ``status.devices``.
        metadata: written into a file that the container can read.
        state: the author's own JSON; stored durably, passed to ``unprepare`` and returned by ``context.prepared()``.
        hardware_ids: names by which the hardware itself, its tools and its exporters identify the device: a UUID, a PCI
            address, a serial number. ``dra-kit who`` and the metric ``dra_device_info`` map them to the pod.
    """

    cdi_devices: Sequence[str] = ()
    claim_edits: ContainerEdits | None = None
    status: DeviceStatus | None = None
    metadata: DeviceMetadata | None = None
    state: Json = None
    hardware_ids: HardwareIds = ()
