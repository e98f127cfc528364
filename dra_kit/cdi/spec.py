"""The Container Device Interface specification (CDI, up to 1.1.0) as immutable models.

Attributes are the snake_case of the specification's fields; absent fields have the zero value that container runtimes
assume. A model may hold values that CDI forbids: ``dra_kit.cdi.validation`` says what is wrong with them, and where.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, Self

from msgspec import Struct
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""Versions of the CDI specification that container runtimes load, oldest first."""

# Runtimes read spec files as YAML, also those named .json. YAML refuses these characters, or folds them as line breaks,
# unless they are escaped; characters above U+FFFF it wants as they are, where JSON would write two escapes.
_NOT_PRINTABLE_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def _alias(name: str) -> str:
    return "closID" if name == "clos_id" else to_camel(name)


def _sorted(annotations: Mapping[str, str]) -> Mapping[str, str]:
    return dict(sorted(annotations.items()))


Annotations = Annotated[Mapping[str, str], AfterValidator(_sorted)]


class _Model(BaseModel):
    # strict and without extra fields, because runtimes refuse a file with a wrong type or an unknown field
    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", strict=True, populate_by_name=True, alias_generator=_alias
    )


class DeviceNode(_Model):
    """A device file for the container; what is left out is taken from the host's file when a container starts.

    Args:
        path: in the container.
        host_path: on the host; empty means the same as ``path``. Since 0.5.0.
        type: ``b`` block, ``c`` or ``u`` character, ``p`` FIFO; empty means that of the host's file.
        major: device number; 0 means that of the host's file.
        minor: device number; only used together with ``major``.
        file_mode: permission bits of the file, a number up to 0o7777.
        permissions: what the device cgroup allows, of ``r``, ``w`` and ``m``; empty means ``rwm``. ``none`` allows
            nothing, which runtimes with a CDI library older than 1.1.1 refuse.
        uid: owner in the container; None means the container's user.
        gid: group in the container; None means the container's group.
    """

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class NetDevice(_Model):
    """A network interface that moves from the host into the container, as ``name``. Since 1.1.0."""

    host_interface_name: str
    name: str


class Hook(_Model):
    """A program of the host that the runtime runs at the OCI hook point ``hook_name``; ``timeout`` in seconds."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class Mount(_Model):
    """A mount in the container; ``options`` as for mount(8), ``type`` the file system's (since 0.4.0)."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class IntelRdt(_Model):
    """Settings of Linux resctrl. Since 0.7.0; ``schemata`` and ``enable_monitoring`` since 1.1.0."""

    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] | None = None
    enable_monitoring: bool = False


class ContainerEdits(_Model):
    """What a runtime changes in a container's OCI configuration.

    Args:
        env: ``NAME=value`` each; a later one replaces an earlier one, and the container's own.
        device_nodes: device files.
        net_devices: network interfaces. Since 1.1.0.
        hooks: programs around the container's life.
        mounts: files and directories.
        intel_rdt: resctrl settings. Since 0.7.0.
        additional_gids: supplementary groups; 0 is ignored by runtimes. Since 0.7.0.
    """

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether it changes nothing."""
        return not (
            self.env
            or self.device_nodes
            or self.net_devices
            or self.hooks
            or self.mounts
            or self.intel_rdt is not None
            or self.additional_gids
        )


NO_EDITS: Final = ContainerEdits()
"""Edits that change nothing."""


class CDIDevice(_Model):
    """A device that containers can ask for by ``name``; ``annotations`` (since 0.6.0) never reach the container."""

    name: str
    annotations: Annotations = Field(default_factory=dict)  # pydantic copies a default that is given as a value
    container_edits: ContainerEdits


class Spec(_Model):
    """One CDI spec file.

    Args:
        cdi_version: version of the specification; a runtime refuses the file when it uses a newer field.
        kind: ``vendor/class`` of all its devices.
        annotations: notes that never reach a container. Since 0.6.0.
        devices: at least one, with unique names.
        container_edits: applied once to each container that gets at least one of the devices.
    """

    cdi_version: str
    kind: str
    annotations: Annotations = Field(default_factory=dict)
    devices: tuple[CDIDevice, ...]
    container_edits: ContainerEdits = NO_EDITS

    def to_json(self) -> str:
        """Compact JSON in the specification's field order, without unset fields: equal specs give equal text."""
        data = self.model_dump(by_alias=True, exclude_defaults=True)
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        return _NOT_PRINTABLE_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text)

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Parse a spec file as strictly as runtimes do.

        Raises:
            ValueError: no JSON, an unknown or repeated field, a wrong type, a missing required field.
        """
        spec = cls.model_validate_json(data)
        json.loads(data, object_pairs_hook=_refuse_repeated_fields)
        return spec


def _refuse_repeated_fields(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(names) != len(set(names)):
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"repeated fields: {', '.join(repeated)}")


class Requirement(Struct, frozen=True):
    """``path`` of a spec uses ``feature``, which the specification has since ``version``."""

    version: str
    path: str
    feature: str


_DIGITS: Final = frozenset("0123456789")


def requirements(spec: Spec) -> Iterator[Requirement]:
    """Yield all features of a spec that are newer than CDI 0.3.0, by the specification's table of versions."""
    if spec.annotations:
        yield Requirement("0.6.0", "annotations", "annotations")
    if "." in spec.kind.partition("/")[2]:
        yield Requirement("0.6.0", "kind", "a dot in the class")
    yield from _edits_requirements(spec.container_edits, "containerEdits")
    for i, device in enumerate(spec.devices):
        path = f"devices[{i}]"
        if device.name[:1] in _DIGITS:
            yield Requirement("0.5.0", f"{path}.name", "a name that starts with a digit")
        if device.annotations:
            yield Requirement("0.6.0", f"{path}.annotations", "annotations")
        yield from _edits_requirements(device.container_edits, f"{path}.containerEdits")


def _edits_requirements(edits: ContainerEdits, path: str) -> Iterator[Requirement]:
    for i, node in enumerate(edits.device_nodes):
        if node.host_path:
            yield Requirement("0.5.0", f"{path}.deviceNodes[{i}].hostPath", "hostPath")
    for i, mount in enumerate(edits.mounts):
        if mount.type:
            yield Requirement("0.4.0", f"{path}.mounts[{i}].type", "type of a mount")
    if edits.net_devices:
        yield Requirement("1.1.0", f"{path}.netDevices", "netDevices")
    if edits.additional_gids:
        yield Requirement("0.7.0", f"{path}.additionalGids", "additionalGids")
    if edits.intel_rdt is not None:
        yield Requirement("0.7.0", f"{path}.intelRdt", "intelRdt")
        if edits.intel_rdt.schemata is not None:
            yield Requirement("1.1.0", f"{path}.intelRdt.schemata", "schemata")
        if edits.intel_rdt.enable_monitoring:
            yield Requirement("1.1.0", f"{path}.intelRdt.enableMonitoring", "enableMonitoring")


def minimum_version(spec: Spec) -> str:
    """Return the lowest ``cdiVersion`` that a spec may declare; the lower, the more runtimes load it."""
    return max((need.version for need in requirements(spec)), key=VERSIONS.index, default=VERSIONS[0])


def build_spec(
    kind: str,
    devices: tuple[CDIDevice, ...],
    *,
    container_edits: ContainerEdits = NO_EDITS,
    annotations: Mapping[str, str] | None = None,
) -> Spec:
    """Return a spec that declares the lowest version that its content needs."""
    spec = Spec(
        cdi_version=VERSIONS[0],
        kind=kind,
        annotations=annotations or {},
        devices=devices,
        container_edits=container_edits,
    )
    needed = minimum_version(spec)
    return spec if needed == spec.cdi_version else spec.model_copy(update={"cdi_version": needed})
